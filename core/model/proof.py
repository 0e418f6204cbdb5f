"""What a target shows before its results carry a promise.

check(target)                          # it computes what the model's own forward computes, or UnsupportedModel
check(target, prompts)                 # of these prompts too, with whatever else they are read with
label("identical", target)             # "identical" only where this machine keeps every bit
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.draft import Draft
from polydraft.core.errors import PolydraftError, UnsupportedModel, WeightsError
from polydraft.core.model.attention import views_alike
from polydraft.core.model.threads import limited
from polydraft.core.state import State
from polydraft.core.system_errors import system_error
from polydraft.core.target import CausalTarget, Prompt
from polydraft.core.tokens import side_by_side

TIES_APART = "exact (ties apart)"  # the same law; the same tokens but where two were all but equally good
COVERED = ("llama", "mistral", "gemma3_text", "qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3", "qwen3_vl_text")
SMALLEST = 1e-30  # distance of what is not the same bits
LENGTHS = (9, 23, 5)  # of the prompts that are tried
# How far logits may be from the model's own, by bytes a number; see `distance`. Models in float64 round to float32 in
# their norms and rotary coordinates, as transformers writes these; 64 random layers make 2e-5 of that.
APART = {2: 0.1, 4: 2e-3, 8: 2e-4}

earned: dict[tuple, str] = {}  # "identical", TIES_APART or "lossy"
FAILURES = (TypeError, ValueError, AttributeError, RuntimeError, IndexError, KeyError, ZeroDivisionError, MemoryError)


def proven(model: PreTrainedModel) -> CausalTarget:
    """Return a causal model as a target, refused with UnsupportedModel unless its logits are its own forward's.

    For models that draft, too: one that computes something else would raise at its first draft, or draft nonsense.
    """
    try:
        target = CausalTarget(model)
    except UnsupportedModel:
        raise
    except FAILURES as error:
        raise no_target(model, error) from error
    if target.config.model_type not in COVERED:
        check(target)
    return target


def check(target: CausalTarget, prompts: Sequence[Prompt] = ()) -> None:
    """Refuse a target whose logits are not its model's own: of prompts, chains and trees, alone and side by side.

    prompts: are tried too, behind some that are ids alone.
    """
    name = type(target.model).__name__
    try:
        apart = distances(target, [*texts(target, range(len(LENGTHS))), *prompts])
    except UnsupportedModel:
        raise
    except WeightsError as error:  # of a family that nobody knows, and no fault of its files
        raise no_target(target.model, error.__cause__ or error) from error
    except FAILURES as error:
        raise no_target(target.model, error) from error
    for what, found in apart.items():
        if not is_rounding(target, found):
            raise UnsupportedModel(
                f"{name} computes something polydraft does not know: the logits of {what} are not those of its own "
                "forward; use a model of another family."
            )


def is_rounding(target: CausalTarget, distances: list[float]) -> bool:
    """Return whether logits of the target are no further apart than rounding makes them."""
    experts = any("expert" in key for key in target.config.to_dict())  # near ties between experts flip in 16 bits
    found = statistics.median(distances) if experts else max(distances)
    return found < APART[target.network.dtype.itemsize]


def no_target(model: PreTrainedModel, error: BaseException) -> PolydraftError:
    """Return why `model` is none."""
    name, reason = type(model).__name__, str(error).strip().partition("\n")[0].rstrip(".")[:120]
    return system_error(error, f"{name} cannot be run") or UnsupportedModel(
        f"{name} cannot run over polydraft's cache ({reason}); use another model."
    )


@torch.inference_mode()
def distances(target: CausalTarget, prompts: list[Prompt]) -> dict[str, list[float]]:
    """How far logits are from the model's own, for every column of a chain and of a tree."""
    state = target.empty()
    target.prefill(state, prompts)
    found: dict[str, list[float]] = {}
    for what, draft in zip(("a chain", "a tree"), drafts(target, len(prompts)), strict=True):
        scored, found[what] = target.score(state, draft).outputs, []
        for row, leaf in itertools.product(range(len(prompts)), leaves(draft)):
            line = draft.lineage[row, leaf + 1].nonzero()[:, 0].tolist()
            path = [int(draft.tokens[row, node - 1]) for node in line[1:]]
            own = target.own_logits(prompts[row], path)
            found[what] += [distance(scored[row, column], own[i]) for i, column in enumerate(line)]
    return found


def leaves(draft: Draft) -> list[int]:
    """Nodes of the first row without children."""
    return sorted(set(range(draft.size)) - set(draft.parents[0].tolist()))


def label(guarantee: str, target: CausalTarget) -> str:
    """Return `guarantee` as results may carry it on this machine; tried once a device, type and shape of model.

    What is identical where bits are kept is exact where only their rounding differs. Where a row's logits depend on
    the rows beside it by more, as those of int8 activations with one scale for all, nothing is either.
    """
    if guarantee == "lossy" or target.network.dtype.itemsize == 8:
        return guarantee
    config = target.config
    stored = str(getattr(target.model.config, "quantization_config", None))
    key = target.device, target.network.dtype, type(target.model), config.hidden_size, config.num_hidden_layers, stored
    if key not in earned:
        heads, on_cpu = target.network.heads, target.device.type == "cpu"
        kernel = views_alike(target.network.dtype, heads.size, kernel=heads.kernel) if on_cpu else True
        apart = distances_by_width(target)
        kept = "identical" if kernel and not any(apart) else TIES_APART
        earned[key] = kept if is_rounding(target, apart) else "lossy"
    return earned[key] if guarantee == "identical" or earned[key] == "lossy" else guarantee


@torch.inference_mode()
def distances_by_width(target: CausalTarget) -> list[float]:
    """Return how far a row's logits are apart in passes of other widths, among other rows, and behind wider views.

    0 is the same bits.
    """
    together, prompts = tried(target, range(len(LENGTHS)))
    chain, tree = drafts(target, len(prompts), 20)
    whole = target.score(together, chain).outputs
    in_place = target.score(together, tree).outputs[:, : PATH + 1]
    pairs = list(zip(in_place, whole[:, : PATH + 1], strict=True))
    for row in range(len(prompts)):
        alone, _ = tried(target, [row])
        for nodes, further in ((0, 0), (1, 150), (4, 1000), (12, 300)):
            draft = Draft.of_chain(chain.tokens[row : row + 1, :nodes])
            scored = wider(target, alone, draft, further)
            pairs.append((scored[0], whole[row, : nodes + 1]))
    return [0.0 if torch.equal(*pair) else max(distance(*pair), SMALLEST) for pair in pairs]


@torch.inference_mode()
def alike_counts(target: CausalTarget, counts: Sequence[int]) -> tuple[int, ...]:
    """Return those of `counts`, numbers of threads, with which logits keep the bits that they have with the first."""
    scored = []
    for count in counts:
        with limited(count):
            state, prompts = tried(target, range(len(LENGTHS)))
            scored.append([target.score(state, draft).outputs for draft in drafts(target, len(prompts), 20)])
    alike = [all(map(torch.equal, logits, scored[0])) for logits in scored]
    return tuple(count for count, same in zip(counts, alike, strict=True) if same)


def wider(target: CausalTarget, state: State, draft: Draft, further: int) -> Tensor:
    """Logits of a draft with so many more slots in view than the row needs."""
    state.reached = [state.reached[0] + further]
    logits = target.score(state, draft).outputs
    state.reached = [state.reached[0] - further]
    return logits


@torch.inference_mode()
def tried(target: CausalTarget, rows: range | list[int]) -> tuple[State, list[Prompt]]:
    """A state of prompts of several lengths."""
    state, prompts = target.empty(), texts(target, rows)
    target.prefill(state, prompts)
    return state, prompts


def texts(target: CausalTarget, rows: range | list[int]) -> list[Prompt]:
    """Prompts of several lengths, whatever their ids are; short enough to leave room for drafts."""
    made, most = [], max(1, target.context - 2 * PATH)
    for row in rows:
        length = min(LENGTHS[row], most)
        ids = tuple((target.words // 4 + 7 * row + 3 * place) % target.words for place in range(length))
        made.append(Prompt((ids,) * target.branches, 1, seed=row))
    return made


PATH = 3  # nodes of the trees' first path, which stand in place


def drafts(target: CausalTarget, rows: int, nodes: int = PATH) -> tuple[Draft, Draft]:
    """A chain, and a tree that begins with the chain's first nodes and has a branch under the root and one below."""
    tokens = target.some(nodes + 3)
    chain = Draft.of_chain(side_by_side(tokens[:nodes], rows))
    parents = torch.tensor([*range(-1, PATH - 1), -1, 0, PATH + 1], device=target.device).expand(rows, -1)
    tree = side_by_side(torch.cat([tokens[:PATH], tokens[-3:]]), rows)
    return chain, replace(
        chain, tokens=tree, parents=parents, valid=torch.ones_like(parents, dtype=torch.bool), deepest=PATH, chain=False
    )


def distance(ours: Tensor, own: Tensor) -> float:
    """How far logits are apart, as a share of how far they spread; a constant more or less says nothing."""
    ours, own = (logits.double() - logits.double().mean() for logits in (ours, own))
    return float((ours - own).norm() / own.norm().clamp(min=1e-9))
