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
from typing import Any

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

# guarantee: the target's distribution, and the same tokens except where two logits were equal up to rounding
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

measured_guarantees: dict[tuple[Any, ...], str] = {}  # "identical", EXACT_UP_TO_TIES or "lossy"
MODEL_ERRORS = (
    TypeError, ValueError, AttributeError, RuntimeError, IndexError, KeyError, ZeroDivisionError, MemoryError,
)  # fmt: skip


def build_checked_target(model: PreTrainedModel) -> CausalTarget:
    """Return a causal model as a target, after checking that its logits equal those of the model's own forward.

    Architectures that the tests of this package cover are not checked again. It serves draft models as well: an
    unsupported one would raise at its first draft, or draft nonsense.

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
    """Check that a target's logits equal those of its model's own forward, for draft chains and draft trees.

    Args:
        target (CausalTarget): The target to check.
        prompts (Sequence[PromptInputs]): Prompts to check after the built-in ones, which consist of ids only.

    Raises:
        UnsupportedModel: The logits differ by more than rounding, or the model cannot be run.
    """
    name = type(target.model).__name__
    try:
        distances = distances_to_model(target, [*probe_prompts(target, range(len(PROBE_LENGTHS))), *prompts])
    except UnsupportedModel:
        raise
    except WeightsError as error:  # the architecture is not supported; its files are not at fault
        raise unsupported_model_error(target.model, error.__cause__ or error) from error
    except MODEL_ERRORS as error:
        raise unsupported_model_error(target.model, error) from error
    for draft_name, errors in distances.items():
        if not is_rounding_error(target, errors):
            raise UnsupportedModel(
                f"{name} computes something polydraft does not know: the logits of {draft_name} are not those of its "
                "own forward; use a model of another family."
            )


def is_rounding_error(target: CausalTarget, errors: list[float]) -> bool:
    """Return whether `errors`, results of `relative_distance`, are as small as rounding makes them."""
    # rounding may route a token to other experts at a near tie, so single large distances do not count there
    has_experts = any("expert" in key for key in target.config.to_dict())
    error = statistics.median(errors) if has_experts else max(errors)
    return error < MAX_DISTANCE[target.network.dtype.itemsize]  # by bytes per number


def unsupported_model_error(model: PreTrainedModel, error: BaseException) -> PolydraftError:
    """Return the error to raise because running `model` raised `error`: it lacks a resource, or is unsupported."""
    name, reason = type(model).__name__, str(error).strip().partition("\n")[0].rstrip(".")[:120]
    return system_error(error, f"{name} cannot be run") or UnsupportedModel(
        f"{name} cannot run over polydraft's cache ({reason}); use another model."
    )


@torch.inference_mode()
def distances_to_model(target: CausalTarget, prompts: list[PromptInputs]) -> dict[str, list[float]]:
    """Return how far the target's logits are from those of the model's own forward.

    The target scores a whole draft in one pass over its KV cache; the model's own forward then runs, for each leaf, the
    prompt and the path to the leaf as a plain sequence.

    Returns:
        dict[str, list[float]]: By "a chain" and "a tree", the relative distances at the root and the nodes of that
            draft, for all prompts.
    """
    state = target.empty_state()
    target.prefill(state, prompts)
    distances: dict[str, list[float]] = {}
    for draft_name, draft in zip(("a chain", "a tree"), probe_drafts(target, len(prompts)), strict=True):
        logits, distances[draft_name] = target.score(state, draft).outputs, []  # [B, N+1, V]
        for row, leaf in itertools.product(range(len(prompts)), leaf_nodes(draft)):
            # tree indices from the root (0) to the leaf; node i has tree index i + 1
            tree_indices = draft.ancestor_mask[row, leaf + 1].nonzero()[:, 0].tolist()
            path = [int(draft.tokens[row, index - 1]) for index in tree_indices[1:]]
            reference = target.reference_logits(prompts[row], path)
            distances[draft_name] += [
                relative_distance(logits[row, index], reference[i]) for i, index in enumerate(tree_indices)
            ]
    return distances


def leaf_nodes(draft: Draft) -> list[int]:
    """Return the indices of the nodes without children in the tree of the first batch row."""
    return sorted(set(range(draft.size)) - set(draft.parents[0].tolist()))


def effective_guarantee(guarantee: str, target: CausalTarget) -> str:
    """Return the guarantee that results of a method may carry with this target on this machine.

    "identical" becomes "exact (ties apart)" if a row's logits depend on the rest of the batch by rounding. Any
    guarantee becomes "lossy" if they depend on it by more, as with int8 activations that share one scale. It is
    measured once per device, dtype and model shape.

    Args:
        guarantee (str): Guarantee of the method in exact arithmetic.
        target (CausalTarget): The target.
    """
    # nothing is weaker than "lossy", and rounding in float64 is practically too small to change a token
    if guarantee == "lossy" or target.network.dtype.itemsize == 8:
        return guarantee
    config = target.config
    quantization = str(getattr(target.model.config, "quantization_config", None))
    key = (
        target.device, target.network.dtype, type(target.model), config.hidden_size, config.num_hidden_layers,
        quantization, target.network.is_native,
    )  # fmt: skip
    if key not in measured_guarantees:
        # torch's attention on CPUs is also tested alone, with more numbers of queries than `distances_across_widths`
        heads, is_by_torch = target.network.heads, target.device.type == "cpu" and not target.network.is_native
        is_invariant = not is_by_torch or is_view_invariant(target.network.dtype, heads.head_dim, kernel=heads.kernel)
        distances = distances_across_widths(target)
        best_guarantee = "identical" if is_invariant and not any(distances) else EXACT_UP_TO_TIES
        measured_guarantees[key] = best_guarantee if is_rounding_error(target, distances) else "lossy"
    measured = measured_guarantees[key]
    return measured if guarantee == "identical" or measured == "lossy" else guarantee


@torch.inference_mode()
def distances_across_widths(target: CausalTarget) -> list[float]:
    """Return how far a row's logits change with the rest of the pass, as distances; 0 means bitwise equal.

    Logits of a chain of 20 nodes in a batch are compared with those of the same tokens in a tree, whose first
    NUM_PATH_NODES nodes are the chain's. They are also compared with those of the row alone, with shorter drafts and
    with more KV slots read by attention.
    """
    batch_state, prompts = prefilled_probe_state(target, range(len(PROBE_LENGTHS)))
    chain, tree = probe_drafts(target, len(prompts), 20)
    chain_logits = target.score(batch_state, chain).outputs  # [B, N+1, V]
    tree_logits = target.score(batch_state, tree).outputs[:, : NUM_PATH_NODES + 1]
    pairs = list(zip(tree_logits, chain_logits[:, : NUM_PATH_NODES + 1], strict=True))
    for row in range(len(prompts)):
        row_state, _ = prefilled_probe_state(target, [row])
        # samples of draft lengths (0: the root alone, as plain decoding) and of how many more slots attention reads
        for num_nodes, extra_slots in ((0, 0), (1, 150), (4, 1000), (12, 300)):
            draft = Draft.from_chain(chain.tokens[row : row + 1, :num_nodes])
            row_logits = score_with_wider_view(target, row_state, draft, extra_slots)
            pairs.append((row_logits[0], chain_logits[row, : num_nodes + 1]))
    # logits that differ by a constant have relative distance 0, but are not bitwise equal
    return [0.0 if torch.equal(*pair) else max(relative_distance(*pair), MIN_DISTANCE) for pair in pairs]


@torch.inference_mode()
def bitwise_equal_thread_counts(target: CausalTarget, counts: Sequence[int]) -> tuple[int, ...]:
    """Return those of the thread counts whose logits are bitwise equal to those of the first count.

    For each count, probe prompts are prefilled, and a chain of 20 nodes and a tree are scored.
    """
    logits_by_count = []
    for count in counts:
        with limit_threads(count):
            state, prompts = prefilled_probe_state(target, range(len(PROBE_LENGTHS)))
            drafts = probe_drafts(target, len(prompts), 20)
            logits_by_count.append([target.score(state, draft).outputs for draft in drafts])
    is_equal = [all(map(torch.equal, logits, logits_by_count[0])) for logits in logits_by_count]
    return tuple(count for count, equal in zip(counts, is_equal, strict=True) if equal)


def score_with_wider_view(target: CausalTarget, state: BatchState, draft: Draft, extra_slots: int) -> Tensor:
    """Return the logits `[1, N+1, V]` of a draft when attention reads `extra_slots` more (masked) KV slots.

    `state` must have one batch row.
    """
    # the attention view follows from the length that the host knows
    state.seq_lens = [state.seq_lens[0] + extra_slots]
    logits = target.score(state, draft).outputs
    state.seq_lens = [state.seq_lens[0] - extra_slots]
    return logits


@torch.inference_mode()
def prefilled_probe_state(target: CausalTarget, rows: range | list[int]) -> tuple[BatchState, list[PromptInputs]]:
    """Return a state prefilled with probe prompts, and these; `rows` are indices into PROBE_LENGTHS."""
    state, prompts = target.empty_state(), probe_prompts(target, rows)
    target.prefill(state, prompts)
    return state, prompts


def probe_prompts(target: CausalTarget, rows: range | list[int]) -> list[PromptInputs]:
    """Return probe prompts of varied ids; `rows` are indices into PROBE_LENGTHS.

    They are short enough to leave room for drafts in the target's context.
    """
    # room for the probe tree, which has 2 * NUM_PATH_NODES nodes
    prompts, max_len = [], max(1, target.context_len - 2 * NUM_PATH_NODES)
    vocab_size = target.prompt_vocab_size
    for row in rows:
        length = min(PROBE_LENGTHS[row], max_len)
        # arbitrary ids that differ between rows and positions; all guidance branches get the same
        ids = tuple((vocab_size // 4 + 7 * row + 3 * position) % vocab_size for position in range(length))
        prompts.append(PromptInputs((ids,) * target.num_branches, max_new_tokens=1, seed=row))
    return prompts


def probe_drafts(target: CausalTarget, num_rows: int, num_nodes: int = NUM_PATH_NODES) -> tuple[Draft, Draft]:
    """Return a draft chain of `num_nodes` nodes and a draft tree, the same for each of `num_rows` batch rows.

    The tree has three branches: the first NUM_PATH_NODES nodes of the chain, one more child of the root, and a path of
    two nodes below the chain's first node.
    """
    tokens = target.dummy_tokens(num_nodes + 3)
    chain = Draft.from_chain(expand_batch(tokens[:num_nodes], num_rows))
    # index of every node's parent, -1 for the root: the path -1, 0, 1, …; the root again; node 0; and the node before
    parents = torch.tensor([*range(-1, NUM_PATH_NODES - 1), -1, 0, NUM_PATH_NODES + 1], device=target.device)
    parents = parents.expand(num_rows, -1)
    tree_tokens = expand_batch(torch.cat([tokens[:NUM_PATH_NODES], tokens[-3:]]), num_rows)
    return chain, replace(
        chain, tokens=tree_tokens, parents=parents, valid=torch.ones_like(parents, dtype=torch.bool),
        max_depth=NUM_PATH_NODES, is_chain=False,
    )  # fmt: skip


def relative_distance(logits: Tensor, reference: Tensor) -> float:
    """Return the relative distance ‖logits - reference‖ / ‖reference‖ of two `[V]` tensors, after both are centred.

    They are centred because a constant added to all logits changes no probability.
    """
    logits, reference = (values.double() - values.double().mean() for values in (logits, reference))
    # the clamp avoids a division by 0 if all reference logits are equal
    return float((logits - reference).norm() / reference.norm().clamp(min=1e-9))
