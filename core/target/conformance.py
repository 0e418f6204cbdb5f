"""Conformance tests of a target, run before its results carry a guarantee.

check_logits_match_model(target)             # raises UnsupportedModel unless logits equal the model's own forward
check_logits_match_model(target, prompts)    # for these prompts too, with whatever else they are read with
effective_guarantee("identical", target)     # "identical" only if this machine computes bitwise reproducible logits
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.checks.system_errors import system_error
from polydraft.core.draft import Draft
from polydraft.core.errors import PolydraftError, UnsupportedModel, WeightsError
from polydraft.core.model.attention import is_view_invariant
from polydraft.core.model.threads import limit_threads
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.core.target.state import BatchState
from polydraft.core.tokens import expand_batch

# the same distribution, and the same tokens except where two were equally good up to rounding
EXACT_UP_TO_TIES = "exact (ties apart)"
TESTED_ARCHITECTURES = (
    "llama", "mistral", "gemma3_text", "qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3", "qwen3_vl_text",
)  # fmt: skip
MIN_DISTANCE = 1e-30  # distance of logits that are not bitwise equal
PROBE_LENGTHS = (9, 23, 5)  # of the probe prompts
NUM_PATH_NODES = 3  # nodes of the probe tree's first path, whose KV entries are contiguous
# Largest `relative_distance` from the model's own logits, by bytes per number. Models in float64 round to float32 in
# their norms and rotary positions, as transformers implements these; 64 random layers make 2e-5 of that.
MAX_DISTANCE = {2: 0.1, 4: 2e-3, 8: 2e-4}

measured_guarantees: dict[tuple, str] = {}  # "identical", EXACT_UP_TO_TIES or "lossy"
MODEL_ERRORS = (
    TypeError, ValueError, AttributeError, RuntimeError, IndexError, KeyError, ZeroDivisionError, MemoryError,
)  # fmt: skip


def build_checked_target(model: PreTrainedModel) -> CausalTarget:
    """Return a causal model as a target, once its logits are known to equal those of its own forward.

    Draft models are checked as well: an unsupported one would raise at its first draft, or draft nonsense.

    Raises:
        UnsupportedModel: The model cannot be run, or its logits differ.
    """
    try:
        target = CausalTarget(model)
    except UnsupportedModel:
        raise
    except MODEL_ERRORS as error:
        raise unsupported_model_error(model, error) from error
    if target.config.model_type not in TESTED_ARCHITECTURES:
        check_logits_match_model(target)
    return target


def check_logits_match_model(target: CausalTarget, prompts: Sequence[PromptInputs] = ()) -> None:
    """Check that a target's logits equal those of its model's own forward, for chains and trees in one batch.

    Args:
        target (CausalTarget): The target to check.
        prompts (Sequence[PromptInputs]): Extra prompts, after the built-in ones of ids alone.

    Raises:
        UnsupportedModel: The logits differ by more than rounding, or the model cannot be run.
    """
    name = type(target.model).__name__
    try:
        distances = distances_to_model(target, [*probe_prompts(target, range(len(PROBE_LENGTHS))), *prompts])
    except UnsupportedModel:
        raise
    except WeightsError as error:  # of an architecture that is not known here, and no fault of its files
        raise unsupported_model_error(target.model, error.__cause__ or error) from error
    except MODEL_ERRORS as error:
        raise unsupported_model_error(target.model, error) from error
    for kind, errors in distances.items():
        if not is_rounding_error(target, errors):
            raise UnsupportedModel(
                f"{name} computes something polydraft does not know: the logits of {kind} are not those of its own "
                "forward; use a model of another family."
            )


def is_rounding_error(target: CausalTarget, errors: list[float]) -> bool:
    """Return whether logits of the target are no further apart than rounding makes them."""
    experts = any("expert" in key for key in target.config.to_dict())  # near ties between experts flip in 16 bits
    error = statistics.median(errors) if experts else max(errors)
    return error < MAX_DISTANCE[target.network.dtype.itemsize]


def unsupported_model_error(model: PreTrainedModel, error: BaseException) -> PolydraftError:
    """Return the error that says why `model` cannot be a target."""
    name, reason = type(model).__name__, str(error).strip().partition("\n")[0].rstrip(".")[:120]
    return system_error(error, f"{name} cannot be run") or UnsupportedModel(
        f"{name} cannot run over polydraft's cache ({reason}); use another model."
    )


@torch.inference_mode()
def distances_to_model(target: CausalTarget, prompts: list[PromptInputs]) -> dict[str, list[float]]:
    """Return the distance from the model's own logits for every position of a chain and of a tree."""
    state = target.empty_state()
    target.prefill(state, prompts)
    distances: dict[str, list[float]] = {}
    for kind, draft in zip(("a chain", "a tree"), probe_drafts(target, len(prompts)), strict=True):
        scored, distances[kind] = target.score(state, draft).outputs, []
        for row, leaf in itertools.product(range(len(prompts)), leaf_nodes(draft)):
            columns = draft.ancestor_mask[row, leaf + 1].nonzero()[:, 0].tolist()
            path = [int(draft.tokens[row, column - 1]) for column in columns[1:]]
            reference = target.reference_logits(prompts[row], path)
            distances[kind] += [
                relative_distance(scored[row, column], reference[i]) for i, column in enumerate(columns)
            ]
    return distances


def leaf_nodes(draft: Draft) -> list[int]:
    """Return the nodes of the first row that have no children."""
    return sorted(set(range(draft.size)) - set(draft.parents[0].tolist()))


def effective_guarantee(guarantee: str, target: CausalTarget) -> str:
    """Return the guarantee that results may carry on this machine; measured once per device, dtype and model shape.

    "identical" becomes "exact (ties apart)" where logits depend on the batch by rounding, and anything becomes "lossy"
    where they depend on it by more, as with int8 activations that share one scale.
    """
    if guarantee == "lossy" or target.network.dtype.itemsize == 8:
        return guarantee
    config = target.config
    quantization = str(getattr(target.model.config, "quantization_config", None))
    key = (
        target.device, target.network.dtype, type(target.model), config.hidden_size, config.num_hidden_layers,
        quantization,
    )  # fmt: skip
    if key not in measured_guarantees:
        heads, is_on_cpu = target.network.heads, target.device.type == "cpu"
        is_invariant = not is_on_cpu or is_view_invariant(target.network.dtype, heads.head_dim, kernel=heads.kernel)
        distances = distances_across_widths(target)
        kept = "identical" if is_invariant and not any(distances) else EXACT_UP_TO_TIES
        measured_guarantees[key] = kept if is_rounding_error(target, distances) else "lossy"
    measured = measured_guarantees[key]
    return measured if guarantee == "identical" or measured == "lossy" else guarantee


@torch.inference_mode()
def distances_across_widths(target: CausalTarget) -> list[float]:
    """Return how far a row's logits differ between pass widths, batches and view lengths; 0 is bitwise equal."""
    batch, prompts = prefilled_probe_state(target, range(len(PROBE_LENGTHS)))
    chain, tree = probe_drafts(target, len(prompts), 20)
    chain_logits = target.score(batch, chain).outputs
    tree_logits = target.score(batch, tree).outputs[:, : NUM_PATH_NODES + 1]
    pairs = list(zip(tree_logits, chain_logits[:, : NUM_PATH_NODES + 1], strict=True))
    for row in range(len(prompts)):
        single, _ = prefilled_probe_state(target, [row])
        for nodes, extra_slots in ((0, 0), (1, 150), (4, 1000), (12, 300)):
            draft = Draft.from_chain(chain.tokens[row : row + 1, :nodes])
            scored = score_with_wider_view(target, single, draft, extra_slots)
            pairs.append((scored[0], chain_logits[row, : nodes + 1]))
    return [0.0 if torch.equal(*pair) else max(relative_distance(*pair), MIN_DISTANCE) for pair in pairs]


@torch.inference_mode()
def bitwise_equal_thread_counts(target: CausalTarget, counts: Sequence[int]) -> tuple[int, ...]:
    """Return those thread counts whose logits are bitwise equal to those of the first one."""
    scored = []
    for count in counts:
        with limit_threads(count):
            state, prompts = prefilled_probe_state(target, range(len(PROBE_LENGTHS)))
            scored.append([target.score(state, draft).outputs for draft in probe_drafts(target, len(prompts), 20)])
    is_equal = [all(map(torch.equal, logits, scored[0])) for logits in scored]
    return tuple(count for count, equal in zip(counts, is_equal, strict=True) if equal)


def score_with_wider_view(target: CausalTarget, state: BatchState, draft: Draft, extra_slots: int) -> Tensor:
    """Return logits of a draft with `extra_slots` unused KV slots in the attention view."""
    state.seq_lens = [state.seq_lens[0] + extra_slots]
    logits = target.score(state, draft).outputs
    state.seq_lens = [state.seq_lens[0] - extra_slots]
    return logits


@torch.inference_mode()
def prefilled_probe_state(target: CausalTarget, rows: range | list[int]) -> tuple[BatchState, list[PromptInputs]]:
    """Return a state prefilled with probe prompts, and the prompts."""
    state, prompts = target.empty_state(), probe_prompts(target, rows)
    target.prefill(state, prompts)
    return state, prompts


def probe_prompts(target: CausalTarget, rows: range | list[int]) -> list[PromptInputs]:
    """Return prompts of several lengths and varied ids, short enough to leave room for drafts."""
    prompts, longest = [], max(1, target.context_len - 2 * NUM_PATH_NODES)
    vocab_size = target.prompt_vocab_size
    for row in rows:
        length = min(PROBE_LENGTHS[row], longest)
        ids = tuple((vocab_size // 4 + 7 * row + 3 * position) % vocab_size for position in range(length))
        prompts.append(PromptInputs((ids,) * target.num_branches, 1, seed=row))
    return prompts


def probe_drafts(target: CausalTarget, rows: int, nodes: int = NUM_PATH_NODES) -> tuple[Draft, Draft]:
    """Return a chain, and a tree whose first path is the chain's, with one branch at the root and one below it."""
    tokens = target.dummy_tokens(nodes + 3)
    chain = Draft.from_chain(expand_batch(tokens[:nodes], rows))
    parents = torch.tensor([*range(-1, NUM_PATH_NODES - 1), -1, 0, NUM_PATH_NODES + 1], device=target.device)
    parents = parents.expand(rows, -1)
    tree = expand_batch(torch.cat([tokens[:NUM_PATH_NODES], tokens[-3:]]), rows)
    return chain, replace(
        chain, tokens=tree, parents=parents, valid=torch.ones_like(parents, dtype=torch.bool), max_depth=NUM_PATH_NODES,
        is_chain=False,
    )  # fmt: skip


def relative_distance(logits: Tensor, reference: Tensor) -> float:
    """Return the distance of logits relative to the spread of the reference; additive constants do not count."""
    logits, reference = (values.double() - values.double().mean() for values in (logits, reference))
    return float((logits - reference).norm() / reference.norm().clamp(min=1e-9))
