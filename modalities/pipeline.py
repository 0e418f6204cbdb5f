"""What pipelines of all modalities share: a target with its weights, the methods it can use, and how they are built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.decode import Method
from polydraft.core.drafters.block import BlockNetwork
from polydraft.core.drafters.eagle import EagleNetwork
from polydraft.core.drafters.heads import MedusaHeads
from polydraft.core.drafters.hydra import HydraHeads
from polydraft.core.drafters.kangaroo import KangarooAdapter
from polydraft.core.drafters.lm import IndependentLM
from polydraft.core.drafters.network import FeatureNetwork
from polydraft.core.errors import InvalidArgument
from polydraft.core.fit import best_window, pass_seconds
from polydraft.core.methods import Choice, MethodContext
from polydraft.core.network import context as positions
from polydraft.core.proof import COVERED, check, label
from polydraft.core.registry import build, parse
from polydraft.core.sampling import RepetitionAware, Sampler, Sampling
from polydraft.core.target import CausalTarget, Prompt
from polydraft.modalities.loading import ModelCard, causal_lm, read_weights
from polydraft.modalities.translation import between

NETWORKS = (EagleNetwork, MedusaHeads, HydraHeads, KangarooAdapter, BlockNetwork)
BY_KIND: dict[str, type[FeatureNetwork]] = {network.kind: network for network in NETWORKS}


class Pipeline(ABC):
    """A target with its weights. A modality says what may be generated where, and what its codes look like.

    context: positions that a row may have, what is generated included.
    """

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        self.card, self.device, self.dtype = card, device, dtype
        self.default_method = self.checked(method or card.defaults["method"])
        self.target_model = self.read_target(card.target)
        self.context = positions(self.target_model.config.get_text_config())
        self._drafters: dict[str, Any] = {}
        self._targets: dict[bool, CausalTarget] = {}
        self._methods: dict[tuple[str, bool], Method] = {}

    @property
    @abstractmethod
    def mask(self) -> Tensor:
        """`[K, V]` bool: ids that may be generated, a row a slot."""

    @property
    @abstractmethod
    def codes(self) -> Tensor | None:
        """`[V, D]`: what codes are looked up by; nan for other ids. None where tokens are no codes."""

    @abstractmethod
    def sample_prompts(self) -> list[Prompt]:
        """Prompts to time a pass with."""

    row = 0  # tokens a row of a picture
    eos: frozenset[int] = frozenset()
    rigid: Tensor | None = None  # ids that lossy rules leave alone
    unread: Tensor | None = None  # ids of prompts that stand for what only the target can see
    words: Any = None  # the target's tokenizer, where drafters may have other ones

    @property
    def allowed(self) -> Tensor:
        """`[V]` bool: ids that may be generated somewhere."""
        return self.mask.any(0)

    @cached_property
    def ends(self) -> Tensor | None:
        """`[V]` bool: ids that end a sequence; None where nothing does."""
        if not self.eos:
            return None
        ends = torch.zeros(self.mask.shape[1], dtype=torch.bool, device=self.device)
        ends[list(self.eos)] = True
        return ends

    @property
    def defaults(self) -> dict[str, Any]:
        return self.card.defaults

    def available_methods(self) -> list[str]:
        return self.card.methods

    def checked(self, method: str) -> Choice:
        """The parsed method, refused here and not later if this model cannot use it."""
        choice = parse(method)
        if choice.lacks(self.card.drafters, self.card.has_codes):
            kinds: dict[str, Any] = dict.fromkeys(self.card.drafters)
            bare: Any = None  # nothing is loaded for a refusal
            codes = torch.empty(0) if self.card.has_codes else None
            build(choice, MethodContext(self.card.name, bare, bare, codes=codes, drafters=kinds))  # names what fits
        return choice

    def chosen(self, speculative: bool, method: str | None) -> Choice:
        """The method to use; plain decoding when `speculative` is off."""
        if speculative:
            return self.default_method if method is None else self.checked(method)
        if method not in (None, "ar"):
            raise InvalidArgument(f"speculative=False is plain decoding and method={method!r} is not; leave one out.")
        return parse("ar")

    def sampling(self, **asked: Any) -> Sampling:
        """What was asked for; where that is None or not asked, the model's own."""
        own = {field.name: self.defaults[field.name] for field in fields(Sampling) if field.name in self.defaults}
        if "repetition_aware" in own:
            own["repetition_aware"] = RepetitionAware(**own["repetition_aware"])
        return Sampling(**own | {name: value for name, value in asked.items() if value is not None})

    def method(self, choice: Choice, guided: bool = False) -> Method:
        """Everything `decode` needs but prompts; guided: whether any of them is."""
        if (choice.name, guided) not in self._methods:
            target = self.target(guided)
            drafter, verifier = build(choice, self.method_context(target))
            self._methods[choice.name, guided] = Method(
                choice.name, target, drafter, verifier, Sampler(self.mask, self.ends), label(verifier.guarantee, target)
            )
        return self._methods[choice.name, guided]

    def forget(self, method: Method) -> None:
        """Keep a method no longer; asked for again, it is made again."""
        self._methods = {key: kept for key, kept in self._methods.items() if kept is not method}

    def method_context(self, target: CausalTarget) -> MethodContext:
        """What methods are built on."""
        kinds = {kind: partial(self.drafter, kind) for kind in self.card.drafters}
        return MethodContext(
            self.card.name, target, self.allowed, self.row, self.codes, self.rigid, kinds, self.fitted, self.unread
        )

    def read_target(self, folder: Path) -> PreTrainedModel:
        """The target's weights."""
        return causal_lm(folder, self.device, self.dtype)

    def target(self, guided: bool = False) -> CausalTarget:
        """The target, ready to score drafts; one of a family that no test covers has proved itself."""
        if guided not in self._targets:
            self._targets[guided] = self.adapted(guided)
            if self._targets[guided].config.model_type not in COVERED:
                check(self._targets[guided])
        return self._targets[guided]

    def adapted(self, guided: bool) -> CausalTarget:
        """The adapter of the target's kind."""
        return CausalTarget(self.target_model, guided=guided, context=self.context)

    def drafter(self, kind: str) -> Any:
        """The drafter network of `kind`, loaded when first used."""
        if kind not in self._drafters:
            self._drafters[kind] = self.read_drafter(kind, self.card.path / self.card.manifest["drafters"][kind])
        return self._drafters[kind]

    def read_drafter(self, kind: str, folder: Path) -> Any:
        """A language model of its own, or a network on the target's features."""
        if kind == "lm":
            model = causal_lm(folder, self.device, self.dtype)
            size, own = (config.get_text_config().vocab_size for config in (self.target_model.config, model.config))
            translation = between(self.words, folder, size, own)
            return IndependentLM(model, translation if translation is None else translation.to(self.device))
        return read_weights("drafter", folder, lambda: BY_KIND[kind].from_folder(folder, self.target_model))

    def fitted(self, method: str) -> dict[str, Any]:
        """Parameters fitted to the model, and to this machine where they depend on it."""
        values = dict(self.card.manifest.get("fitted", {}).get(method, {}))
        if method == "jacobi" and self.card.manifest.get("jacobi_committed"):
            values["window"] = self.window
        return values

    @cached_property
    def window(self) -> int:
        """The Jacobi window that commits most tokens a second here: the model's τ(window) over this machine's t(N)."""
        committed = {int(window): tau for window, tau in self.card.manifest["jacobi_committed"].items()}
        prompts = self.sample_prompts()
        return best_window(committed, pass_seconds(self.target(guided(prompts)), prompts, list(committed)))


def guided(prompts: list[Prompt]) -> bool:
    """Whether any prompt is, so that rows need two branches."""
    return any(prompt.sampling.guidance_scale != 1 for prompt in prompts)


def seeds(seed: int | list[int], rows: int, what: str) -> list[int]:
    """One seed a row: consecutive from a number, or the given ones. what: a row's name, in an error."""
    given = [seed + row for row in range(rows)] if isinstance(seed, int) else list(seed)
    if len(given) != rows or not all(isinstance(value, int) and 0 <= value < 2**63 for value in given):
        raise InvalidArgument(f"seed={seed} does not fit {rows} {what}s; give a whole number from 0, or one a {what}.")
    return given
