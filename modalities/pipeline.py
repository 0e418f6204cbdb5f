"""Base class of the pipelines of all modalities: a target model, its drafters, and the methods built on them."""

from __future__ import annotations

import logging
import operator
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import fields
from functools import cached_property, partial, wraps
from pathlib import Path
from threading import RLock
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.checks.arguments import argument_error, to_integer, to_items
from polydraft.core.decode import Method
from polydraft.core.drafters.heads.block import BlockModel
from polydraft.core.drafters.heads.ctc import CTCModel
from polydraft.core.drafters.heads.hydra import HydraHeads
from polydraft.core.drafters.heads.medusa import MedusaHeads
from polydraft.core.drafters.heads.row_above import RowAboveHeads
from polydraft.core.drafters.jacobi.local_refinement import LocalRefinementModel
from polydraft.core.drafters.network.base import DrafterModel
from polydraft.core.drafters.network.draft_model import DraftModel
from polydraft.core.drafters.network.eagle import EagleModel
from polydraft.core.drafters.network.early_exit import KangarooAdapter
from polydraft.core.errors import InvalidArgument, UnsupportedModel
from polydraft.core.methods.budget import NodeBudget
from polydraft.core.methods.naming import Registry
from polydraft.core.methods.spec import MethodContext, MethodSpec, default_params
from polydraft.core.methods.tuning import (
    NUM_CHECKED_PASSES,
    BatchAwareDraftSize,
    PassTimes,
    Timing,
    expected_tau_by_nodes,
    time_passes,
)
from polydraft.core.model.decoder import max_context_len
from polydraft.core.model.threads import ThreadTuner, has_free_cores, limit_threads, starting_count_index, thread_counts
from polydraft.core.sampling.params import RepetitionAware, SamplingParams
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.core.target.conformance import (
    TESTED_ARCHITECTURES,
    bitwise_equal_thread_counts,
    build_checked_target,
    check_logits_match_model,
    effective_guarantee,
)
from polydraft.modalities.adapters import merge_adapter
from polydraft.modalities.generation_config import build_constraints, unsupported_fields
from polydraft.modalities.given_drafters import Drafter, Drafters, to_drafter, tokenizer_in
from polydraft.modalities.model_card import LANGUAGE_MODEL, ModelCard, folder_snapshot, with_drafters
from polydraft.modalities.vlm.reference import reference_refusal
from polydraft.modalities.vocab_mapping import map_vocabularies
from polydraft.modalities.weights import load_causal_lm, load_pretrained, read_weights

log: logging.Logger = logging.getLogger("polydraft.models")
TOKEN_KINDS = {"image": "image", "speech": "speech", "vlm": "text", "transcription": "text"}  # by modality
WINDOWED_METHODS = ("jacobi", "local")  # whose τ by window size is `<method>_committed` in a manifest
NETWORKS = (
    EagleModel, MedusaHeads, HydraHeads, RowAboveHeads, KangarooAdapter, BlockModel, LocalRefinementModel, CTCModel,
)  # fmt: skip
NEAR_SIZES, FAR_SIZES = (0, 2, 4, 8, 12, 16, 24, 32), (64, 128)  # draft nodes of the passes that are timed
TREE_SIZES = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24)  # draft nodes that trees of draft heads are tuned to
MAX_TREE_SIZE = TREE_SIZES[-1]
QUIET_CHECKS = 3  # probes of the cores, of a few milliseconds each, before passes of several threads are timed
MAX_SEED = 2**63 - 1
NETWORKS_BY_KIND: dict[str, type[DrafterModel]] = {network.kind: network for network in NETWORKS}
P = ParamSpec("P")
R = TypeVar("R")
AnyPipeline = TypeVar("AnyPipeline", bound="Pipeline")


def synchronized(method: Callable[Concatenate[AnyPipeline, P], R]) -> Callable[Concatenate[AnyPipeline, P], R]:
    """Decorate a method of a pipeline so that it holds the pipeline's lock."""

    @wraps(method)
    def locked(self: AnyPipeline, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            return method(self, *args, **kwargs)

    return locked


class Pipeline(ABC):
    """Target model with its weights, drafters and decoding methods; a modality adds the token mask and the codebook.

    Threads may share a pipeline and get the results that they would get alone: one at a time encodes prompts, runs a
    target pass, or decodes images and audio. The lock is not held between passes, so a stream may pause, and callbacks
    may wait for other threads or call the pipeline again. A stream itself belongs to one thread at a time.
    """

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        self.lock: RLock = RLock()  # shared by all pipelines of the same weights
        self.card: ModelCard = card
        self.device: torch.device = device
        self.dtype: torch.dtype = dtype
        self.default_method: MethodSpec = self.check_method(card.defaults["method"] if method is None else method)
        self.target_model: PreTrainedModel = self.load_target_model(card.target)
        if card.adapter is not None:
            merge_adapter(self.target_model, card.adapter)
        self.dtype = self.target_model.dtype
        if ignored := unsupported_fields(getattr(self.target_model, "generation_config", None), self.followed_fields):
            log.warning(
                "note: %s asks for %s in generation_config.json, which polydraft does not follow", card.name,
                ", ".join(ignored),
            )  # fmt: skip
        self.context_len: int = self.max_positions()  # of prompt and generated tokens together
        self._drafters: dict[str, Any] = {}
        self._targets: dict[bool, CausalTarget] = {}
        self._methods: dict[tuple[str, bool], Method] = {}
        self._sizes: dict[str, tuple[PassTimes, BatchAwareDraftSize]] = {}
        self._tuners: dict[bool, ThreadTuner] = {}
        self._pass_times: dict[int, PassTimes] = {}
        self._node_budgets: dict[bool, NodeBudget] = {}

    def __repr__(self) -> str:
        """Return the class with the model, its default method, device and dtype."""
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{type(self).__name__}({self.card.name!r}, method={self.default_method.name!r}, "
            f"device={str(self.device)!r}, dtype={dtype!r})"
        )

    def max_positions(self) -> int:
        """Return the number of positions that the target was trained for."""
        return max_context_len(self.target_model.config.get_text_config())

    @property
    @abstractmethod
    def token_mask(self) -> Tensor:
        """Return the `[K, V]` bool mask of allowed token ids in every grammar state."""

    @property
    @abstractmethod
    def codebook(self) -> Tensor | None:
        """Return the `[V, D]` codebook embeddings, NaN at ids that are no codes; None where tokens are no codes."""

    @abstractmethod
    def sample_prompts(self) -> list[PromptInputs]:
        """Return prompts to time target passes with."""

    description: Any = None  # files of a model that the caller has loaded
    followed_fields: frozenset[str] = frozenset()  # generation_config.json fields that only this pipeline supports
    row_length = 0  # tokens of an image row; 0 where tokens are no grid
    preview_index: Tensor | None = None  # [T] the earlier token of the same spot of an image, -1 without one
    num_preview_tokens: int = 0  # tokens before the image rows: a smaller image, or a plan of the scene
    eos_token_ids: frozenset[int] = frozenset()
    exact_only_mask: Tensor | None = None  # [V] bool; ids that lossy verification must match exactly
    image_placeholder_mask: Tensor | None = None  # [V] bool; prompt ids of images, which only the target sees
    tokenizer: Any = None  # the target's, where draft models may have others
    reference_tokens: Tensor | None = None  # [F] ids of a text that answers may quote

    @property
    def registry(self) -> Registry:
        """Return the drafters and verifiers for the model's kind of token."""
        return self.card.registry

    @property
    def allowed_token_mask(self) -> Tensor:
        """Return the `[V]` bool mask of ids that are allowed in any grammar state."""
        return self.token_mask.any(0)

    @cached_property
    def stop_token_mask(self) -> Tensor | None:
        """Return the `[V]` bool mask of ids that end a sequence, None without any."""
        if not self.eos_token_ids:
            return None
        mask = torch.zeros(self.token_mask.shape[1], dtype=torch.bool, device=self.device)
        mask[list(self.eos_token_ids)] = True
        return mask

    @cached_property
    def sampler(self) -> Any:
        """Return the sampler, with the model's grammar and the constraints of its generation_config.json."""
        config, vocab_size = self.target_model.generation_config, self.token_mask.shape[1]
        constraints = build_constraints(config, vocab_size, self.eos_token_ids, self.device)
        return Sampler(self.token_mask, self.stop_token_mask, constraints)

    @property
    def defaults(self) -> dict[str, Any]:
        """Return the model's default method and sampling parameters, by name."""
        return self.card.defaults

    def available_methods(self) -> list[str]:
        """Return the names of the decoding methods that the model supports."""
        return self.card.methods

    def check_method(self, method: str) -> MethodSpec:
        """Parse a method's name and check that the model supports it, as `ModelCard.check_method` does."""
        return self.card.check_method(method)

    def parse_method(self, method: str) -> MethodSpec:
        """Parse a method's name, as `ModelCard.parse_method` does."""
        return self.card.parse_method(method)

    def select_method(self, speculative: bool, method: str | None) -> MethodSpec:
        """Return the method that a call asks for.

        Args:
            speculative (bool): False is plain decoding.
            method (str | None): a method's name; None is the model's default.

        Raises:
            InvalidArgument: `speculative` is off and the method is not plain decoding.
        """
        if speculative:
            return self.default_method if method is None else self.check_method(method)
        if method not in (None, "ar"):
            raise InvalidArgument(f"speculative=False is plain decoding and method={method!r} is not; leave one out.")
        return self.registry.parse("ar")

    def sampling_params(self, **given: Any) -> SamplingParams:
        """Return the sampling parameters of a call; those that are not given, or None, are the model's defaults."""
        names = [field.name for field in fields(SamplingParams)]
        params = {name: self.defaults[name] for name in names if name in self.defaults}
        if "repetition_aware" in params:
            params["repetition_aware"] = RepetitionAware(**params["repetition_aware"])
        return SamplingParams(**params | {name: value for name, value in given.items() if value is not None})

    def check_settings(self) -> None:
        """Check the folder's sampling settings and constraints now, so that no request is the first to fail on them."""
        self.sampling_params()
        if hasattr(self.target_model, "generation_config"):
            self.sampler  # noqa: B018 (building it checks the constraints)

    def method(self, spec: MethodSpec, guided: bool = False) -> Method:
        """Return the method that `decode` runs, built when it is first used.

        A method whose draft size depends on measured pass times is built again once they have been measured again.

        Args:
            spec (MethodSpec): the parsed method.
            guided (bool): whether any prompt uses classifier-free guidance.
        """
        key = spec.name, guided
        cached = self._methods.get(key)
        if cached is None or (cached.pass_times is not None and cached.pass_times is not self.pass_times()):
            with self.thread_tuner(guided).apply():
                self._methods[key] = self.build_method(spec, guided)
        return self._methods[key]

    def build_method(self, spec: MethodSpec, guided: bool) -> Method:
        """Build a method on the target, with its drafter and its verifier."""
        target = self.target(guided)
        drafter, verifier = self.registry.build(spec, self.method_context(target))
        sized_by, _ = self._sizes.get(spec.drafter.name, (None, None))
        guarantee = self.effective_guarantee(verifier.guarantee, target)
        threads = self.thread_tuner(guided)
        budget = self.node_budget(guided) if verifier.guarantee == "identical" else None
        return Method(spec.name, target, drafter, verifier, self.sampler, guarantee, threads, sized_by, budget)

    def node_budget(self, guided: bool) -> NodeBudget | None:
        """Return the rule that drops draft nodes which do not pay, shared by all methods; None on accelerators."""
        if self.device.type != "cpu":
            return None
        return self._node_budgets.setdefault(guided, NodeBudget())

    def thread_tuner(self, guided: bool = False) -> ThreadTuner:
        """Return the tuner of the number of threads of target passes; on accelerators it has no choice."""
        if guided not in self._tuners:
            counts = thread_counts() if self.device.type == "cpu" else ()
            level = starting_count_index(counts)
            with limit_threads(counts[level]) if counts else nullcontext():
                counts = self.bitwise_equal_thread_counts(self.target(guided), counts) if len(counts) > 1 else counts
            self._tuners[guided] = ThreadTuner(counts, min(level, max(0, len(counts) - 1)))
        return self._tuners[guided]

    def bitwise_equal_thread_counts(self, target: CausalTarget, counts: Sequence[int]) -> tuple[int, ...]:
        """Return the thread counts that give bitwise equal logits."""
        return bitwise_equal_thread_counts(target, counts)

    def effective_guarantee(self, guarantee: str, target: CausalTarget) -> str:
        """Return the guarantee that a verifier keeps on this target and this machine."""
        return effective_guarantee(guarantee, target)

    def evict_method(self, method: Method) -> None:
        """Drop a cached method; it is built again if it is asked for again."""
        self._methods = {key: cached for key, cached in self._methods.items() if cached is not method}

    def method_context(self, target: CausalTarget) -> MethodContext:
        """Return the model's parts that methods are built from."""
        loaders = {kind: partial(self.drafter, kind) for kind in self.card.drafters}
        return MethodContext(
            self.card.name, target, self.allowed_token_mask, self.row_length, self.codebook,
            self.exact_only_mask, loaders, self.tuned_params, self.image_placeholder_mask,
            self.preview_index, self.num_preview_tokens, self.default_method.drafter.name,
            TOKEN_KINDS[self.card.modality], self.memory_key,
            self.reference_tokens,
        )  # fmt: skip

    def memory_key(self) -> tuple[str, ...]:
        """Return what tells the model, its version and its device apart where measured speeds are kept."""
        device = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type
        drafters = self.card.manifest["drafters"]
        folders = folder_snapshot(self.card.path, self.card.adapter)
        return repr(folders), repr(sorted(drafters.items())), device, str(self.dtype)

    @classmethod
    def from_model(
        cls, model: PreTrainedModel, processor: Any, *, drafter: Drafters | None = None,
        method: str | None = None,
    ) -> Self:  # fmt: skip
        """Return a pipeline over a model that is loaded already, whose weights it takes over.

        Their layout is changed for this machine, so that transformers' own `generate` is slower afterwards and the
        model cannot be trained; `speculate` leaves it as it is.

        Args:
            model (PreTrainedModel): A language model, a vision-language model or a model that transcribes.
            processor (Any): Its processor, or the tokenizer of a language model.
            drafter (Drafters | None): As for `load`.
            method (str | None): The pipeline's default method; None is the first drafter's, else "auto".

        Raises:
            InvalidArgument: The processor is none.
            UnsupportedModel: The model is of another kind, or the class is not for its kind.
            PolydraftError: The errors of `load`.
        """
        from polydraft.modalities.loading import load_from_memory

        pipe = load_from_memory(model, processor, drafter, method)
        if not isinstance(pipe, cls):
            raise UnsupportedModel(
                f"{type(model).__name__} is a model for {type(pipe).__name__}, not for {cls.__name__}; use "
                f"{type(pipe).__name__}.from_model."
            )
        return pipe

    def load_target_model(self, folder: Path) -> PreTrainedModel:
        """Load the target model's weights."""
        from transformers import AutoModelForCausalLM

        return self.load_pretrained_target(AutoModelForCausalLM, folder)

    def load_pretrained_target(self, auto: Any, folder: Path) -> PreTrainedModel:
        """Load the target's weights by a class of transformers, spread and quantised as the card says.

        A model that the caller has loaded is taken over.
        """
        if self.card.loaded_model is not None:
            loaded: PreTrainedModel = self.card.loaded_model.requires_grad_(False)
            return loaded
        return load_pretrained(
            auto, folder, self.device, self.dtype, self.card.device_map,
            quantization_config=self.card.quantization_config,
        )  # fmt: skip

    def target(self, guided: bool = False) -> CausalTarget:
        """Return the target adapter, which scores drafts.

        A model of an architecture that the tests do not cover is checked first: the adapter's logits must match those
        of the model's own forward pass.

        Args:
            guided (bool): whether prompts have a second branch for classifier-free guidance.

        Raises:
            UnsupportedModel: the logits do not match.
        """
        if guided not in self._targets:
            target = self.build_target(guided)
            if not self.is_tested_architecture:
                check_logits_match_model(target, [] if guided else self.conformance_prompts())
            self._targets[guided] = target
        return self._targets[guided]

    @property
    def is_tested_architecture(self) -> bool:
        """Return whether the tests cover the target's architecture, so that its logits need no check."""
        return self.target_model.config.get_text_config().model_type in TESTED_ARCHITECTURES

    def conformance_prompts(self) -> list[PromptInputs]:
        """Return further prompts for the check of the logits, which has text prompts of its own."""
        return []

    def build_target(self, guided: bool) -> CausalTarget:
        """Build the target adapter for the model."""
        return CausalTarget(self.target_model, guided=guided, context=self.context_len)

    def drafter(self, kind: str) -> Any:
        """Return the drafter network of a kind, loaded when it is first used."""
        if kind not in self._drafters:
            folder = self.card.path / self.card.manifest["drafters"][kind]
            self._drafters[kind] = self.load_drafter_network(kind, folder)
        return self._drafters[kind]

    def load_drafter(self, kind: str) -> None:
        """Load a drafter network now, so that a faulty one is refused before the first request."""
        Pipeline.drafter(self, kind)

    def load_drafter_network(self, kind: str, folder: Path) -> Any:
        """Load a draft language model, or a drafter network on the target's hidden states."""
        if kind == LANGUAGE_MODEL:
            loaded = self.card.loaded_drafter
            model = self.load_draft_model(folder) if loaded is None else self.adapt_draft_model(loaded.model)
            tokenizer = tokenizer_in(folder) if loaded is None else loaded.load_tokenizer()
            target_size = self.target_model.config.get_text_config(decoder=True).vocab_size
            mapping = map_vocabularies(self.tokenizer, tokenizer, target_size, model.vocab_size)
            return DraftModel(model, mapping if mapping is None else mapping.to(self.device))
        return read_weights("drafter", folder, lambda: NETWORKS_BY_KIND[kind].from_folder(folder, self.target_model))

    def load_draft_model(self, folder: Path) -> CausalTarget:
        """Load a draft language model and check its logits; raise UnsupportedModel if they do not match."""
        try:
            return build_checked_target(load_causal_lm(folder, self.device, self.dtype))
        except UnsupportedModel as error:
            raise UnsupportedModel(f"the drafter in {folder} cannot draft: {error}") from error

    def adapt_draft_model(self, model: PreTrainedModel) -> CausalTarget:
        """Return the adapter of a language model that the caller has loaded, which is taken over as the target is.

        Raises:
            UnsupportedModel: Its logits do not match those of its own forward pass.
        """
        return build_checked_target(model.eval().requires_grad_(False))

    def with_drafter(self, drafter: Drafter) -> Self:
        """Return a pipeline of the same target weights with one more drafter, whose first method is the card's default.

        Args:
            drafter (Drafter): the drafter, as for `load`.
        """
        other = copy(self)
        other.card = with_drafters(self.card, [to_drafter(drafter)])
        other._drafters, other._methods, other._sizes = {}, {}, {}
        return other

    def with_reference(self, reference: str | Path) -> Self:
        """Return a pipeline of the same target weights whose drafts also look matches up in a text.

        Args:
            reference (str | Path): a text file.

        Raises:
            InvalidArgument: the model generates no text, or the file cannot be read.
        """
        raise InvalidArgument(reference_refusal(self.card.name))

    def tuned_params(self, method: str) -> dict[str, Any]:
        """Return a method's parameters that are tuned to the model, and its draft size tuned to this machine."""
        params = dict(self.card.manifest.get("fitted", {}).get(method, {}))
        if taus := self.tau_by_draft_size(method):
            params["window" if method in WINDOWED_METHODS else "nodes"] = self.best_draft_size(method, taus)
        return params

    def tau_by_draft_size(self, method: str) -> dict[int, float]:
        """Return the model's τ by draft size (window or tree nodes); empty where the method's size is fixed."""
        if method in WINDOWED_METHODS:
            taus = {int(window): tau for window, tau in self.card.manifest.get(f"{method}_committed", {}).items()}
            return {0: 1.0} | taus if taus else {}  # without guesses, the target's token is committed
        tuned = self.card.manifest.get("fitted", {}).get(method, {})
        if "shares" not in tuned:
            return {}
        params = default_params(self.registry.drafters[method]) | tuned
        shares = [row[: params["width"]] for row in params["shares"]]
        taus = expected_tau_by_nodes(shares, params["depth"], MAX_TREE_SIZE)
        return {nodes: tau for nodes, tau in taus.items() if nodes in TREE_SIZES}

    def best_draft_size(self, method: str, taus: dict[int, float]) -> BatchAwareDraftSize:
        """Return the draft size N of the most tokens a second: the model's τ(N) over this machine's pass time t(N)."""
        times = self.pass_times()
        if method not in self._sizes or self._sizes[method][0] is not times:
            # How many guesses hold varies between prompts, and more so in longer windows: of two that are nearly equal
            # over all prompts, the longer one gains much where guesses are easy and loses little elsewhere.
            self._sizes[method] = times, BatchAwareDraftSize(
                taus, times.single_sequence_latency, times.batch_latency, times.sequence_seconds,
                prefers_larger=method in WINDOWED_METHODS, overhead_seconds=times.overhead_seconds,
            )  # fmt: skip
        return self._sizes[method][1]

    def pass_times(self) -> PassTimes:
        """Return the pass times t(N) with the current number of threads.

        They are measured again once later passes have contradicted them, or if their repeats disagreed. While other
        processes occupy the cores, one thread is measured, whose CPU time they do not change; passes of several
        threads could take arbitrarily long then.
        """
        threads = self.thread_tuner(self.is_sample_guided)
        count = threads.count if threads.counts else 0
        if count > 1 and self.needs_timing(count) and not all(has_free_cores(count) for _ in range(QUIET_CHECKS)):
            count = 1
        if self.needs_timing(count):
            previous = self._pass_times.get(count)
            patience = 2 * previous.patience if previous is not None and previous.is_outdated else NUM_CHECKED_PASSES
            self._pass_times[count] = PassTimes(partial(self.measure_passes, count), NEAR_SIZES, FAR_SIZES, patience)
        return self._pass_times[count]

    def needs_timing(self, threads: int) -> bool:
        """Return whether t(N) with this many threads is unknown or outdated."""
        times = self._pass_times.get(threads)
        return times is None or times.is_outdated or not times.is_stable

    @cached_property
    def is_sample_guided(self) -> bool:
        """Return whether passes are timed with two branches; sample prompts are built for that only once."""
        return uses_cfg(self.sample_prompts()[:1])

    def measure_passes(self, threads: int, nodes: Sequence[int], num_sequences: int = 1) -> Timing:
        """Measure t(N) of some sequences with a number of threads; 0 leaves the number to torch."""
        prompts = self.sample_prompts()[:1] * num_sequences
        # Other processes do not change the CPU time of a single thread.
        clock = time.thread_time if threads == 1 else time.perf_counter
        with limit_threads(threads) if threads else nullcontext():
            return time_passes(self.target(uses_cfg(prompts)), prompts, nodes, clock)


def uses_cfg(prompts: list[PromptInputs]) -> bool:
    """Return whether any prompt uses classifier-free guidance, so that rows need two branches."""
    return any(prompt.sampling_params.guidance_scale != 1 for prompt in prompts)


def check_sampling_params(**params: Any) -> None:
    """Check sampling parameters, None being the model's default; raise InvalidArgument for one out of range."""
    SamplingParams(**{name: value for name, value in params.items() if value is not None})


def expand_seeds(seed: int | Sequence[int], rows: int, what: str) -> list[int]:
    """Return one seed for every row: consecutive ones from a number, or the given ones.

    Args:
        seed (int | Sequence[int]): a number, or one for every row; integers of Python, numpy or torch.
        rows (int): number of rows.
        what (str): what errors call a row.

    Raises:
        InvalidArgument: a seed is impossible, or their number is not `rows`.
    """
    parsed = parse_seeds(seed)
    seeds = [parsed + row for row in range(rows)] if isinstance(parsed, int) else parsed
    if len(seeds) != rows or max(seeds, default=0) > MAX_SEED:
        raise argument_error("seed", seed, f"a whole number from 0, or a list of {rows}, one a {what}")
    return seeds


def parse_seeds(seed: int | Sequence[int]) -> int | list[int]:
    """Return a seed, or several, as Python integers; raise InvalidArgument for anything else."""
    try:
        operator.index(seed)  # type: ignore[arg-type]  # raises for lists and arrays
    except (TypeError, ValueError, RuntimeError):
        items = to_items("seed", seed, "a whole number from 0, or a list of such numbers")
        return [to_integer("seed", value, 0, MAX_SEED) for value in items]
    return to_integer("seed", seed, 0, MAX_SEED)
