"""Models that belong to the caller: targets and drafters over their weights as they lie, and nothing of them changed.

    pipe = BorrowedModel(model, drafters=["eagle-folder"])
    with pipe.evaluation_mode(), pipe.loan:
        method = pipe.method(pipe.check_method("eagle2"))

While a model is lent, its weights are read in place by the C library, where that knows the layers; they are held once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from polydraft.core.errors import UnsupportedMethod, UnsupportedModel
from polydraft.core.methods.spec import ParamValues
from polydraft.core.model.cache import KVCache
from polydraft.core.model.cross_attention import layer_linears
from polydraft.core.model.decoder import TreeDecoder
from polydraft.core.model.lent_linears import LentLinears, decoder_linears
from polydraft.core.model.threads import ThreadTuner
from polydraft.core.target.causal import CausalTarget, PromptInputs, find_backbone
from polydraft.core.target.conformance import (
    EXACT_UP_TO_TIES,
    MODEL_ERRORS,
    TESTED_ARCHITECTURES,
    check_logits_match_model,
    unsupported_model_error,
)
from polydraft.core.target.encoder_decoder import EncoderDecoderTarget
from polydraft.core.target.spliced import SplicedTarget
from polydraft.modalities.custom_generate.prefill import PREFILLED, PrefilledPrompt, prefill_rows
from polydraft.modalities.generation_config import UNSUPPORTED_DEFAULTS, UNSUPPORTED_SAMPLING_DEFAULTS
from polydraft.modalities.given_drafters import LoadedDrafter, origin_of, tokenizer_of
from polydraft.modalities.model_card import ModelCard, with_drafters
from polydraft.modalities.pipeline import Pipeline
from polydraft.modalities.transcription.draft_model import is_draft_model
from polydraft.modalities.vlm.target import has_mrope, image_token_ids

ATTENTION = "_attn_implementation_internal"  # of a configuration; the public name also writes to its parts
checked_configs: set[str] = set()  # of models whose logits have been compared with those of their own forward
KNOWN_PACKAGES = ("transformers", "torch", "polydraft")  # whose layers a configuration describes
CAPTURING = "transformers.utils.output_capturing"  # module of hooks that keep outputs for the caller


class Loan:
    """Set what decoding needs in configurations, parameters and linear layers while models are lent, and put it back.

    Args:
        models (nn.Module): The models.
    """

    def __init__(self, *models: nn.Module) -> None:
        self.configs: list[Any] = all_configs([module for model in models for module in model.modules()])
        self.parameters: list[nn.Parameter] = [parameter for model in models for parameter in model.parameters()]
        self.linears: LentLinears = LentLinears(members for model in models for members in decoding_linears(model))
        self.networks: list[TreeDecoder] = []  # over the models
        self.kernels: list[Any] | None = None  # attention of every configuration while it is lent
        self.given: tuple[list[Any], list[nn.Parameter]] | None = None  # attention, and parameters to be trained

    def __enter__(self) -> None:
        self.given = self.attention_kernels(), [each for each in self.parameters if each.requires_grad]
        try:
            if self.kernels is not None:
                self.set_kernels(self.kernels)
            with torch.inference_mode():
                self.linears.__enter__()
                for network in self.networks:
                    network.refresh_norms()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_error: object) -> None:
        assert self.given is not None
        self.linears.__exit__()
        self.kernels = self.attention_kernels()
        kernels, trained = self.given
        self.set_kernels(kernels)
        for parameter in trained:
            parameter.requires_grad_(True)

    def attention_kernels(self) -> list[Any]:
        """Return the present attention of every configuration."""
        return [vars(config).get(ATTENTION) for config in self.configs]

    def set_kernels(self, kernels: list[Any]) -> None:
        """Set the attention of every configuration."""
        for config, kernel in zip(self.configs, kernels, strict=True):
            setattr(config, ATTENTION, kernel)


def describe_structure(model: PreTrainedModel) -> list[tuple[Any, ...]]:
    """Return what a target over a model is built for; values of parameters may change, and nothing of this.

    Modules are compared by identity.
    """
    modules = [
        (
            module, is_altered(module),
            [
                (each.dtype, each.device, each.shape, each.stride())
                for each in module._parameters.values() if each is not None
            ],
        )
        for module in model.modules()
    ]  # fmt: skip
    return [(model.config.to_json_string(use_diff=False),), *modules]  # differences take four times as long


def is_altered(module: nn.Module) -> bool:
    """Return whether a module's forward is not the one that its class has in transformers or torch.

    transformers leaves hooks where it has been asked for hidden states once, as of a vision tower; they change nothing.
    """
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    has_hooks = any(getattr(hook, "__module__", "") != CAPTURING for hook in hooks)
    is_known = type(module).__module__.partition(".")[0] in KNOWN_PACKAGES
    return has_hooks or not is_known or "forward" in vars(module)


def check_encoder(model: PreTrainedModel) -> None:
    """Check that a model's encoder, if it has one, is of the kind of Whisper's.

    Raises:
        UnsupportedModel: It is of another kind.
    """
    config = model.config
    has_limits = hasattr(config, "max_source_positions") and hasattr(config, "max_target_positions")
    if config.is_encoder_decoder and not has_limits:
        raise UnsupportedModel(
            f"{type(model).__name__} has an encoder that polydraft does not know; use a model built like Whisper, or "
            "one without an encoder."
        )


def all_configs(modules: Sequence[nn.Module]) -> list[Any]:
    """Return the configurations of modules and their parts, each once."""
    found: dict[int, Any] = {}
    pending: list[Any] = [getattr(module, "config", None) for module in modules]
    while pending:
        config = pending.pop()
        if not hasattr(config, "sub_configs"):
            continue
        if id(config) not in found:
            found[id(config)] = config
            pending += [getattr(config, name, None) for name in config.sub_configs]
    return list(found.values())


def decoding_linears(model: Any) -> list[list[nn.Linear]]:
    """Return the linear layers of a model's decoder and LM head, grouped by the tensor that they read."""
    try:
        decoder, lm_head = find_backbone(model), model.get_output_embeddings()
        if not model.config.is_encoder_decoder:
            return decoder_linears(decoder, lm_head)
        return [[lm_head], *(members for layer in decoder.layers for members in layer_linears(layer))]
    except MODEL_ERRORS:  # the target will say what is missing
        return []


class PrefilledTarget(SplicedTarget):
    """Target adapter over a decoder whose prompts its own forward has prefilled."""

    @property
    def has_rope_offsets(self) -> bool:
        """Return whether rotary positions may differ from KV slots."""
        return has_mrope(self.model)

    def prefill_inputs(
        self, prompts: list[PromptInputs], ids: Tensor, lengths: list[int], cache: KVCache
    ) -> Iterator[dict[str, Any]]:
        prefilled = [prompt.model_kwargs.get(PREFILLED) for prompt in prompts]
        for each in prefilled:
            yield {PREFILLED: each}
        if self.has_rope_offsets:
            offsets = [0 if each is None else each.rope_offset for each in prefilled]
            cache.append_rope_offsets(torch.tensor(offsets, device=self.device))

    def prefill_row(self, ids: Tensor, inputs: dict[str, Any], row: int, cache: KVCache) -> tuple[Tensor, Tensor]:
        prefilled: PrefilledPrompt | None = inputs[PREFILLED]
        if prefilled is None:  # a prompt of ids alone, with which the target is tested
            (prefilled,) = prefill_rows(self.model, ids[None], [0], {})
        cache.copy_from(row, prefilled.cache)
        return prefilled.hidden_states, prefilled.embeddings

    def branch_inputs(self, prompt: PromptInputs, branch: int) -> dict[str, Tensor]:
        return {}


class LentLayers:
    """Targets over layers that are prepared while they are lent."""

    def prepare_layers(self, model: PreTrainedModel) -> None:
        """Leave the model's layers as the loan has prepared them."""


class BorrowedTarget(LentLayers, PrefilledTarget):
    """Target adapter over a decoder that belongs to the caller."""


class BorrowedEncoderDecoderTarget(LentLayers, EncoderDecoderTarget):
    """Target adapter over a model with an encoder that belongs to the caller."""


class BorrowedDraftModel(LentLayers, CausalTarget):
    """Adapter over a small language model that belongs to the caller and drafts."""


class BorrowedModel(Pipeline):
    """Methods over a model that the caller has loaded.

    Args:
        model (PreTrainedModel): A causal or vision-language model of transformers, or one with an encoder like
            Whisper's.
        drafters (Sequence[str | LoadedDrafter]): Folders and repositories, and loaded language models.
        tokenizer (Any): The model's, where a draft model has another vocabulary; None is the one of the folder that the
            model was loaded from.
        takes_over (bool): Whether the model's layers are prepared for this machine, for good.
    """

    # `generate` follows them
    followed_fields: frozenset[str] = frozenset(UNSUPPORTED_DEFAULTS | UNSUPPORTED_SAMPLING_DEFAULTS)

    def __init__(
        self, model: PreTrainedModel, drafters: Sequence[str | LoadedDrafter] = (), tokenizer: Any = None, *,
        takes_over: bool = False,
    ) -> None:  # fmt: skip
        check_encoder(model)
        self.borrowed: PreTrainedModel = model
        self.structure: list[tuple[Any, ...]] = describe_structure(model)
        self.given_tokenizer: Any = tokenizer
        self.takes_over: bool = takes_over
        folder = origin_of(model)
        manifest = {
            "modality": "transcription" if model.config.is_encoder_decoder else "vlm", "drafters": {}, "target": ".",
            "defaults": {"method": "auto"}, "inputs": "text",
        }  # fmt: skip
        card = with_drafters(ModelCard(folder.name, folder, manifest), drafters)
        self.draft_models: list[Any] = [] if card.loaded_drafter is None else [card.loaded_drafter.model]
        self.loan: Loan = Loan(*self.draft_models, *([] if takes_over else [model]))
        super().__init__(card, method=None, device=model.device, dtype=model.dtype)

    @contextmanager
    def evaluation_mode(self) -> Iterator[None]:
        """Put the models in evaluation mode, and at the end those of their modules back in training mode that were."""
        modules = [module for model in (self.borrowed, *self.draft_models) for module in model.modules()]
        training = [module for module in modules if module.training]
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True

    @property
    def vocab_size(self) -> int:
        """Return the number of ids that get a logit."""
        size: int = self.borrowed.config.get_text_config(decoder=True).vocab_size
        return size

    def load_target_model(self, folder: Path) -> PreTrainedModel:
        """Return the caller's model."""
        return self.borrowed

    @cached_property
    def tokenizer(self) -> Any:
        """Return the model's tokenizer, None where it is not known."""
        return tokenizer_of(self.borrowed) if self.given_tokenizer is None else self.given_tokenizer

    def load_draft_model(self, folder: Path) -> CausalTarget:
        if is_draft_model(folder):
            raise UnsupportedMethod(
                f"the drafter in {folder} transcribes, and `generate` has prepared the sound for its own model alone; "
                "use load(model, processor=…, drafter=…)."
            )
        return super().load_draft_model(folder)

    def adapt_draft_model(self, model: PreTrainedModel) -> CausalTarget:
        """Return the adapter of a language model that stays the caller's."""
        try:
            target = BorrowedDraftModel(model)
        except UnsupportedModel:
            raise
        except MODEL_ERRORS as error:
            raise unsupported_model_error(model, error) from error
        if target.config.model_type not in TESTED_ARCHITECTURES or any(map(is_altered, model.modules())):
            self.check_logits(target)
        self.loan.networks.append(target.network)
        return target

    @property
    def is_tested_architecture(self) -> bool:
        """Return whether the tests cover the model's architecture, and all its layers are of that architecture."""
        return super().is_tested_architecture and not any(map(is_altered, self.borrowed.modules()))

    def build_target(self, guided: bool) -> CausalTarget:
        try:
            return self.adapt_model()
        except UnsupportedModel:
            raise
        except MODEL_ERRORS as error:
            raise unsupported_model_error(self.borrowed, error) from error

    def adapt_model(self) -> CausalTarget:
        """Return the adapter for the kind of model."""
        model = self.borrowed
        if model.config.is_encoder_decoder:
            return (EncoderDecoderTarget if self.takes_over else BorrowedEncoderDecoderTarget)(model)
        if self.takes_over:  # of weights that may be trained two copies would be kept
            model.requires_grad_(False)
        placeholder_ids = image_token_ids(model.config)
        return (PrefilledTarget if self.takes_over else BorrowedTarget)(model, placeholder_ids=placeholder_ids)

    def target(self, guided: bool = False) -> CausalTarget:
        if guided not in self._targets:
            target = self.build_target(guided)
            if not self.is_tested_architecture:
                self.check_logits(target)
            self._targets[guided] = target
            self.loan.networks.append(target.network)
            if self.takes_over:  # which has replaced layers
                self.structure = describe_structure(self.borrowed)
        return self._targets[guided]

    def check_model(self) -> None:
        """Check that the model is one that can be decoded.

        Raises:
            UnsupportedModel: It is not.
        """
        if not self._targets:  # else it has been checked
            with self.loan, torch.inference_mode():
                self.target()

    def check_logits(self, target: CausalTarget) -> None:
        """Compare a target's logits with those of the model's own forward.

        Models that are all described by a configuration are compared once per configuration.

        Raises:
            UnsupportedModel: They differ.
        """
        key = f"{type(target.model).__name__} {target.network.dtype} {target.model.config.to_json_string()}"
        if any(map(is_altered, target.model.modules())):
            check_logits_match_model(target)
        elif key not in checked_configs:
            check_logits_match_model(target)
            checked_configs.add(key)

    @property
    def token_mask(self) -> Tensor:
        return torch.ones(1, self.target().vocab_size, dtype=torch.bool, device=self.device)

    @property
    def codebook(self) -> Tensor | None:
        return None  # text tokens have no codebook

    def sample_prompts(self) -> list[PromptInputs]:
        return []  # passes are not timed in advance

    def thread_tuner(self, guided: bool = False) -> ThreadTuner:
        return ThreadTuner()  # the caller has chosen the number of threads

    def effective_guarantee(self, guarantee: str, target: CausalTarget) -> str:
        if self.takes_over or target.network.is_native or guarantee != "identical":
            return super().effective_guarantee(guarantee, target)
        return EXACT_UP_TO_TIES  # torch's products may sum in another order for another number of rows

    def tuned_params(self, method: str) -> ParamValues:
        """Return a method's parameters that are tuned to the model; draft sizes adapt while it decodes."""
        return dict(self.card.manifest.get("fitted", {}).get(method, {}))
