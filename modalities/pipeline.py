"""What pipelines of all modalities share: a target with its weights, the methods it can use, and how they are built."""

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

from polydraft.core.arguments import refusal, to_integer, to_items
from polydraft.core.decode import Method
from polydraft.core.drafters.heads.above import AboveHeads
from polydraft.core.drafters.heads.block import BlockNetwork
from polydraft.core.drafters.heads.hydra import HydraHeads
from polydraft.core.drafters.heads.medusa import MedusaHeads
from polydraft.core.drafters.jacobi.local import LocalNetwork
from polydraft.core.drafters.network.base import FeatureNetwork
from polydraft.core.drafters.network.eagle import EagleNetwork
from polydraft.core.drafters.network.kangaroo import KangarooAdapter
from polydraft.core.drafters.network.lm import IndependentLM
from polydraft.core.errors import InvalidArgument, UnsupportedModel
from polydraft.core.law.sampling import RepetitionAware, Sampler, Sampling
from polydraft.core.methods.fit import CHECKED, ByRows, PassTimes, Timing, expected, time_passes
from polydraft.core.methods.method import Choice, MethodContext, defaults
from polydraft.core.methods.naming import Registry
from polydraft.core.model.network import context as positions
from polydraft.core.model.proof import COVERED, alike_counts, check, label, proven
from polydraft.core.model.threads import ThreadTuner, limited, starting_level, thread_counts, undisturbed
from polydraft.core.target import CausalTarget, Prompt
from polydraft.modalities.generation import constraints, unheeded
from polydraft.modalities.loading import ModelCard, causal_lm, read_weights, with_drafter
from polydraft.modalities.translation import between

log = logging.getLogger("polydraft.models")
WINDOWED = ("jacobi", "local")  # methods of which `<method>_committed` in a manifest is τ by window
NETWORKS = (EagleNetwork, MedusaHeads, HydraHeads, AboveHeads, KangarooAdapter, BlockNetwork, LocalNetwork)
NEAR, FAR = (0, 2, 4, 8, 12, 16, 24, 32), (64, 128)  # nodes that passes are timed with
SIZES = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24)  # nodes that trees of heads may get
MOST = SIZES[-1]
SURE = 3  # looks at the cores, each of a few milliseconds, before passes of several threads are timed
LARGEST_SEED = 2**63 - 1
BY_KIND: dict[str, type[FeatureNetwork]] = {network.kind: network for network in NETWORKS}
P = ParamSpec("P")
R = TypeVar("R")
AnyPipeline = TypeVar("AnyPipeline", bound="Pipeline")


def exclusive(method: Callable[Concatenate[AnyPipeline, P], R]) -> Callable[Concatenate[AnyPipeline, P], R]:
    """Let a method of a pipeline run in one thread at a time, among all that hold the pipeline's lock."""

    @wraps(method)
    def alone(self: AnyPipeline, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            return method(self, *args, **kwargs)

    return alone


class Pipeline(ABC):
    """A target with its weights. A modality says what may be generated where, and what its codes look like.

    Threads may share a pipeline, and get what they would get alone: one at a time reads prompts, makes a target pass,
    or decodes pictures and sound. Nothing is held between passes, so a stream may rest, and callbacks may wait for
    other threads or call the pipeline again. A stream itself belongs to one thread at a time.

    context: positions that a row may have, what is generated included. lock: shared with all pipelines of the same
    weights.
    """

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        self.lock = RLock()
        self.card, self.device, self.dtype = card, device, dtype
        self.default_method = self.checked(card.defaults["method"] if method is None else method)
        self.target_model = self.read_target(card.target)
        self.dtype = self.target_model.dtype
        if dropped := unheeded(getattr(self.target_model, "generation_config", None), self.heeded):
            log.warning(
                "note: %s asks for %s in generation_config.json, which polydraft does not follow", card.name,
                ", ".join(dropped),
            )  # fmt: skip
        self.context = self.positions()
        self._drafters: dict[str, Any] = {}
        self._targets: dict[bool, CausalTarget] = {}
        self._methods: dict[tuple[str, bool], Method] = {}
        self._sizes: dict[str, tuple[PassTimes, ByRows]] = {}
        self._tuners: dict[bool, ThreadTuner] = {}
        self._pass_times: dict[int, PassTimes] = {}

    def positions(self) -> int:
        """Positions that the target knows."""
        return positions(self.target_model.config.get_text_config())

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

    heeded: frozenset[str] = frozenset()  # fields of generation_config.json that it follows and other pipelines do not
    row = 0  # tokens a row of a picture
    origins: Tensor | None = None  # which earlier token shows the same spot of a picture, where one does
    preview: int = 0  # tokens drawn before the rows of a picture: a smaller one, or its plan
    eos: frozenset[int] = frozenset()
    rigid: Tensor | None = None  # ids that lossy rules leave alone
    unread: Tensor | None = None  # ids of prompts that stand for what only the target can see
    words: Any = None  # the target's tokenizer, where drafters may have other ones

    @property
    def registry(self) -> Registry:
        """Ways to draft and to judge its kind of token."""
        return self.card.registry

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

    @cached_property
    def sampler(self) -> Any:
        """The model's grammar, and what its checkpoint asks for beside it."""
        own, vocab = self.target_model.generation_config, self.mask.shape[1]
        return Sampler(self.mask, self.ends, constraints(own, vocab, self.eos, self.device))

    @property
    def defaults(self) -> dict[str, Any]:
        return self.card.defaults

    def available_methods(self) -> list[str]:
        return self.card.methods

    def checked(self, method: str) -> Choice:
        """The parsed method, refused here and not later if this model cannot use it."""
        return self.card.checked(method)

    def parsed(self, method: str) -> Choice:
        """See `ModelCard.parsed`."""
        return self.card.parsed(method)

    def chosen(self, speculative: bool, method: str | None) -> Choice:
        """The method to use; plain decoding when `speculative` is off."""
        if speculative:
            return self.default_method if method is None else self.checked(method)
        if method not in (None, "ar"):
            raise InvalidArgument(f"speculative=False is plain decoding and method={method!r} is not; leave one out.")
        return self.registry.parse("ar")

    def sampling(self, **asked: Any) -> Sampling:
        """What was asked for; where that is None or not asked, the model's own."""
        own = {field.name: self.defaults[field.name] for field in fields(Sampling) if field.name in self.defaults}
        if "repetition_aware" in own:
            own["repetition_aware"] = RepetitionAware(**own["repetition_aware"])
        return Sampling(**own | {name: value for name, value in asked.items() if value is not None})

    def check_settings(self) -> None:
        """Check what the folder says of generation, so that no request is the first to learn that it is wrong."""
        self.sampling()
        if hasattr(self.target_model, "generation_config"):
            self.sampler  # noqa: B018 (it is made once, here)

    def method(self, choice: Choice, guided: bool = False) -> Method:
        """Everything `decode` needs but prompts; guided: whether any of them is.

        Made again where passes were timed anew, by which drafts are sized.
        """
        key = choice.name, guided
        known = self._methods.get(key)
        if known is None or (known.pass_times is not None and known.pass_times is not self.pass_times()):
            with self.threads(guided).apply():
                self._methods[key] = self.built(choice, guided)
        return self._methods[key]

    def built(self, choice: Choice, guided: bool) -> Method:
        """Build the method on the model's target."""
        target = self.target(guided)
        drafter, verifier = self.registry.build(choice, self.method_context(target))
        times, _ = self._sizes.get(choice.drafter.name, (None, None))
        sized_by = times if times is not None and times.measured else None
        guarantee = self.label(verifier.guarantee, target)
        threads = self.threads(guided)
        return Method(choice.name, target, drafter, verifier, self.sampler, guarantee, threads, sized_by)

    def threads(self, guided: bool = False) -> ThreadTuner:
        """Return what chooses the number of threads of the target's passes; on accelerators nothing does."""
        if guided not in self._tuners:
            counts = thread_counts() if self.device.type == "cpu" else ()
            level = starting_level(counts)
            with limited(counts[level]) if counts else nullcontext():
                counts = self.counts_alike(self.target(guided), counts) if len(counts) > 1 else counts
            self._tuners[guided] = ThreadTuner(counts, min(level, max(0, len(counts) - 1)))
        return self._tuners[guided]

    def counts_alike(self, target: CausalTarget, counts: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers of threads that rows may change between and keep their bits."""
        return alike_counts(target, counts)

    def label(self, guarantee: str, target: CausalTarget) -> str:
        """`guarantee` as results of this target may carry it here."""
        return label(guarantee, target)

    def forget(self, method: Method) -> None:
        """Keep a method no longer; asked for again, it is made again."""
        self._methods = {key: kept for key, kept in self._methods.items() if kept is not method}

    def method_context(self, target: CausalTarget) -> MethodContext:
        """What methods are built on."""
        kinds = {kind: partial(self.drafter, kind) for kind in self.card.drafters}
        return MethodContext(
            self.card.name, target, self.allowed, self.row, self.codes, self.rigid, kinds, self.fitted, self.unread,
            self.origins, self.preview,
        )  # fmt: skip

    def read_target(self, folder: Path) -> PreTrainedModel:
        """The target's weights."""
        return causal_lm(folder, self.device, self.dtype, self.card.device_map)

    def target(self, guided: bool = False) -> CausalTarget:
        """The target, ready to score drafts; one of a family that no test covers has proved itself."""
        if guided not in self._targets:
            made = self.adapted(guided)
            if not self.covered:
                check(made, [] if guided else self.proofs())
            self._targets[guided] = made
        return self._targets[guided]

    @property
    def covered(self) -> bool:
        """Whether tests cover the target's family, so that it need not prove itself."""
        return self.target_model.config.get_text_config().model_type in COVERED

    def proofs(self) -> list[Prompt]:
        """Prompts that a target must read as its model's own forward does, beside ids alone."""
        return []

    def adapted(self, guided: bool) -> CausalTarget:
        """The adapter of the target's kind."""
        return CausalTarget(self.target_model, guided=guided, context=self.context)

    def drafter(self, kind: str) -> Any:
        """The drafter network of `kind`, loaded when first used."""
        if kind not in self._drafters:
            self._drafters[kind] = self.read_drafter(kind, self.card.path / self.card.manifest["drafters"][kind])
        return self._drafters[kind]

    def load_drafter(self, kind: str) -> None:
        """Load a drafter before it is asked to draft, whatever it will draft then."""
        Pipeline.drafter(self, kind)

    def read_drafter(self, kind: str, folder: Path) -> Any:
        """A language model of its own, or a network on the target's features."""
        if kind == "lm":
            own = self.proven_drafter(folder)
            size = self.target_model.config.get_text_config().vocab_size
            translation = between(self.words, folder, size, own.vocab)
            return IndependentLM(own, translation if translation is None else translation.to(self.device))
        return read_weights("drafter", folder, lambda: BY_KIND[kind].from_folder(folder, self.target_model))

    def proven_drafter(self, folder: Path) -> CausalTarget:
        """Return the language model in `folder`, which drafts; raises UnsupportedModel for one that cannot."""
        try:
            return proven(causal_lm(folder, self.device, self.dtype))
        except UnsupportedModel as error:
            raise UnsupportedModel(f"the drafter in {folder} cannot draft: {error}") from error

    def beside(self, drafter: str | Path) -> Self:
        """The same model, its weights shared, with one drafter more; see `loading.load`."""
        other = copy(self)
        other.card = with_drafter(self.card, str(drafter))
        other._drafters, other._methods, other._sizes = {}, {}, {}
        return other

    def fitted(self, method: str) -> dict[str, Any]:
        """Parameters fitted to the model, and to this machine where they depend on it."""
        values = dict(self.card.manifest.get("fitted", {}).get(method, {}))
        if committed := self.committed(method):
            values["window" if method in WINDOWED else "nodes"] = self.size(method, committed)
        return values

    def committed(self, method: str) -> dict[int, float]:
        """The model's τ by how much `method` drafts a pass, where that is to be fitted to the machine."""
        if method in WINDOWED:
            return {int(window): tau for window, tau in self.card.manifest.get(f"{method}_committed", {}).items()}
        told = self.card.manifest.get("fitted", {}).get(method, {})
        if "shares" not in told:
            return {}
        known = defaults(self.registry.drafters[method]) | told
        taus = expected([row[: known["width"]] for row in known["shares"]], known["depth"], MOST)
        return {nodes: tau for nodes, tau in taus.items() if nodes in SIZES}

    def size(self, method: str, committed: dict[int, float]) -> ByRows:
        """How much drafted a pass commits most tokens a second here: the model's τ(N) over this machine's t(N)."""
        times = self.pass_times()
        if method not in self._sizes or self._sizes[method][0] is not times:
            self._sizes[method] = times, ByRows(committed, times.near, times.far)
        return self._sizes[method][1]

    def pass_times(self) -> PassTimes:
        """Return t(N) with the present number of threads.

        Measured anew where passes long turned out otherwise, and where repeats did not agree. While others take the
        cores one thread alone is measured, whose own time they do not change: with more, passes could take for ever.
        """
        threads = self.threads(self.is_sample_guided)
        count = threads.count if threads.counts else 0
        if count > 1 and self.needs_timing(count) and not all(undisturbed(count) for _ in range(SURE)):
            count = 1
        if self.needs_timing(count):
            known = self._pass_times.get(count)
            patience = 2 * known.patience if known is not None and known.contradicted else CHECKED
            self._pass_times[count] = PassTimes(partial(self.timed, count), NEAR, FAR, patience)
        return self._pass_times[count]

    def needs_timing(self, threads: int) -> bool:
        """Return whether t(N) with so many threads is not known, or no longer true."""
        known = self._pass_times.get(threads)
        return known is None or known.contradicted or not known.steady

    @cached_property
    def is_sample_guided(self) -> bool:
        """Return whether passes are timed with two branches; prompts are made for that once, and not a request."""
        return guided(self.sample_prompts()[:1])

    def timed(self, threads: int, nodes: Sequence[int]) -> Timing:
        """Measure t(N) with so many threads, 0 being no choice of ours."""
        prompts = self.sample_prompts()[:1]
        clock = time.thread_time if threads == 1 else time.perf_counter  # one thread's own time no neighbour changes
        with limited(threads) if threads else nullcontext():
            return time_passes(self.target(guided(prompts)), prompts, nodes, clock)


def guided(prompts: list[Prompt]) -> bool:
    """Whether any prompt is, so that rows need two branches."""
    return any(prompt.sampling.guidance_scale != 1 for prompt in prompts)


def check_sampling(**asked: Any) -> None:
    """Raise InvalidArgument where a field of `Sampling` is out of its range; None is the model's own."""
    Sampling(**{name: value for name, value in asked.items() if value is not None})


def seeds(seed: int | Sequence[int], rows: int, what: str) -> list[int]:
    """Return one seed a row: consecutive from a number, or the given ones.

    Args:
        seed (int | Sequence[int]): A number, or as many as there are rows; of Python's, numpy's or torch's kind.
        what (str): What a row is called in an error.
    """
    given = given_seeds(seed)
    found = [given + row for row in range(rows)] if isinstance(given, int) else given
    if len(found) != rows or max(found, default=0) > LARGEST_SEED:
        raise refusal("seed", seed, f"a whole number from 0, or a list of {rows}, one a {what}")
    return found


def given_seeds(seed: int | Sequence[int]) -> int | list[int]:
    """Return a seed, or several, as Python's integers; raises InvalidArgument for what is none."""
    try:
        operator.index(seed)  # type: ignore[arg-type]  # which raises for lists and arrays
    except (TypeError, ValueError, RuntimeError):
        items = to_items("seed", seed, "a whole number from 0, or a list of such numbers")
        return [to_integer("seed", value, 0, LARGEST_SEED) for value in items]
    return to_integer("seed", seed, 0, LARGEST_SEED)
