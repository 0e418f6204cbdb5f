"""transformers' logits processors at the nodes of draft trees.

    split = split_processors(processors, do_sample=True)        # (those to run, sampling parameters of the others)
    sampler = Sampler(constraints=NodeProcessors(processors, padded_ids))

A processor that is a function of the ids before a token gives at a node what it would give there without drafts, so it
is called at every node, with the node's own path. One that keeps state between calls would see rejected drafts.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.generation import logits_process as library

from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.params import SamplingParams


class SuppressedTokens:
    """Whisper's suppression of ids, at every token or at the first alone.

    transformers' processors look for the ids in the whole vocabulary at every call, which takes longer than a layer.

    Args:
        processor (Any): The one of transformers.
    """

    def __init__(self, processor: Any) -> None:
        at_begin = isinstance(processor, library.SuppressTokensAtBeginLogitsProcessor)
        self.ids: Tensor = processor.begin_suppress_tokens if at_begin else processor.suppress_tokens
        self.begin_index: int | None = processor.begin_index if at_begin else None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores `[G, V]` of sequences `[G, L]` without those ids."""
        if self.begin_index not in (None, input_ids.shape[-1]):
            return scores
        ids = self.ids.to(scores.device)
        return scores.index_fill(1, ids[(ids >= 0) & (ids < scores.shape[-1])], -torch.inf)


# Functions of each row's own ids: rows may be given together, whichever they are. Those that read the encoder's input,
# or are not transformers' own, may go by the index of a row in the batch.
ROWWISE = (
    library.MinLengthLogitsProcessor, library.MinNewTokensLengthLogitsProcessor, library.TemperatureLogitsWarper,
    library.TopPLogitsWarper, library.TopKLogitsWarper,
    library.TopHLogitsWarper, library.MinPLogitsWarper, library.TypicalLogitsWarper, library.EpsilonLogitsWarper,
    library.EtaLogitsWarper, library.NoRepeatNGramLogitsProcessor, library.SequenceBiasLogitsProcessor,
    library.NoBadWordsLogitsProcessor, library.ForcedBOSTokenLogitsProcessor, library.ForcedEOSTokenLogitsProcessor,
    library.InfNanRemoveLogitsProcessor, library.ExponentialDecayLengthPenalty, library.LogitNormalization,
    SuppressedTokens, library.WhisperTimeStampLogitsProcessor, library.WhisperNoSpeechDetection,
    library.WatermarkLogitsProcessor,
)  # fmt: skip
INDEXED = (
    library.RepetitionPenaltyLogitsProcessor, library.EncoderRepetitionPenaltyLogitsProcessor,
    library.EncoderNoRepeatNGramLogitsProcessor, library.PrefixConstrainedLogitsProcessor,
)  # fmt: skip
REFUSED = (  # they keep state, run the model themselves, or are for rows that hold guidance branches
    library.SynthIDTextWatermarkLogitsProcessor, library.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    library.ClassifierFreeGuidanceLogitsProcessor, library.AlternatingCodebooksLogitsProcessor,
    library.BarkEosPrioritizerLogitsProcessor, library.DiaClassifierFreeGuidanceLogitsProcessor,
    library.DiaEOSChannelFilterLogitsProcessor, library.DiaEOSDelayPatternLogitsProcessor,
)  # fmt: skip
SUPPRESSING = (library.SuppressTokensAtBeginLogitsProcessor, library.SuppressTokensLogitsProcessor)


def split_processors(processors: Sequence[Any], do_sample: bool) -> tuple[list[Any], SamplingParams]:
    """Divide processors into those that are called and those at their end that the sampler has itself.

    Args:
        processors (Sequence): As `generate` prepares them.
        do_sample (bool): Whether tokens are sampled; else the likeliest are taken.

    Raises:
        InvalidArgument: One of them cannot be used with drafts.
    """
    for processor in processors:
        if isinstance(processor, REFUSED):
            raise InvalidArgument(
                f"{type(processor).__name__} keeps state between tokens or runs the model itself, which drafts do not "
                "allow; leave it out."
            )
    kept = [SuppressedTokens(each) if type(each) in SUPPRESSING else each for each in processors]
    if not do_sample:
        return kept, SamplingParams(temperature=0.0)
    values = dict[str, Any]()
    if kept and type(kept[-1]) is library.LogitNormalization:  # which changes no probability
        kept.pop()
    for kind, name, attribute in (
        (library.MinPLogitsWarper, "min_p", "min_p"), (library.TopPLogitsWarper, "top_p", "top_p"),
        (library.TopKLogitsWarper, "top_k", "top_k"), (library.TemperatureLogitsWarper, "temperature", "temperature"),
    ):  # fmt: skip
        if kept and type(kept[-1]) is kind and getattr(kept[-1], "min_tokens_to_keep", 1) == 1:
            values[name] = getattr(kept.pop(), attribute)
    return kept, SamplingParams(**values)


def needs_plain_decoding(processor: Any, input_ids: Tensor, vocab_size: int) -> bool:
    """Return whether a processor cannot be called at nodes: a call changes later ones, or rows change each other.

    transformers' own are known. A copy of any other is called twice, and with each row alone; a plain function cannot
    be copied, and what it keeps would change. What a processor keeps outside of itself is not seen.

    Args:
        processor (Any): The processor.
        input_ids (Tensor): `[B, L]` prompts.
        vocab_size (int): V.
    """
    if isinstance(processor, (*ROWWISE, *INDEXED)):
        return False
    try:
        trial = copy.deepcopy(processor)
    except Exception:  # noqa: BLE001 - whatever it is that cannot be copied
        return True
    if trial is processor:
        return True
    scores = torch.linspace(-1, 1, vocab_size, device=input_ids.device).repeat(len(input_ids), 1)
    before = described_state(trial)
    first, second = (call_processor(trial, input_ids, scores.clone()) for _ in range(2))
    if described_state(trial) != before or not torch.equal(first, second):
        return True
    alone = [call_row(trial, ids, scores[0], row, len(input_ids)) for row, ids in enumerate(input_ids)]
    return not torch.equal(torch.stack(alone), first)


def call_processor(processor: Any, input_ids: Tensor, scores: Tensor) -> Tensor:
    """Call a processor on sequences `[G, L]` with scores `[G, V]`.

    Raises:
        InvalidArgument: It returns no tensor of the shape of the scores.
    """
    processed: Any = processor(input_ids, scores)
    if not isinstance(processed, Tensor) or processed.shape != scores.shape:
        found = f"shape {tuple(processed.shape)}" if isinstance(processed, Tensor) else type(processed).__name__
        raise InvalidArgument(
            f"{getattr(processor, '__name__', type(processor).__name__)} returns {found}; a logits processor has to "
            f"return scores of shape {tuple(scores.shape)}."
        )
    return processed


def call_row(processor: Any, ids: Tensor, scores: Tensor, row: int, num_rows: int) -> Tensor:
    """Return what a processor that may go by the index of a row makes of one row, `[V]` of ids `[L]`."""
    return call_processor(processor, ids.repeat(num_rows, 1), scores.repeat(num_rows, 1))[row]


def described_state(processor: Any) -> dict[str, Any]:
    """Return the values of an object's attributes as far as they can be compared."""
    return {
        name: value.tolist() if isinstance(value, Tensor) else repr(value)
        for name, value in getattr(processor, "__dict__", {}).items()
    }


@dataclass
class NodeProcessors:
    """Processors as constraints of a sampler: called with the ids before every scored position, padding included."""

    processors: Sequence[Any]
    padded_ids: Tensor  # [B, L] prompts of all rows of the call
    pad_token_id: int = 0
    row_indices: list[int] = field(default_factory=list)  # of the rows that are decoded now, among those of the call
    # [V] which ids may follow a path, by row and path, in the present pass; None where the path itself is excluded
    allowed: dict[tuple[int, tuple[int, ...]], Tensor | None] = field(default_factory=dict)

    @property
    def depends_on_history(self) -> bool:
        """Return True: processors are given all ids."""
        return True

    def __call__(self, logits: Tensor, grammar_bias: Tensor | None, context: GenerationContext | None) -> Tensor:
        """Return the processed logits `[B, T, V]` of T scored positions; arguments as of `Constraints`."""
        assert context is not None
        processed = logits.float().clone()
        for group in self.nodes_by_length(context).values():
            nodes = [node for node in group if self.is_possible(node)]
            if not nodes:
                continue
            rows, positions = [node.row for node in nodes], [node.position for node in nodes]
            input_ids = torch.tensor([node.ids for node in nodes], device=self.padded_ids.device)
            scores = processed[rows, positions]
            for processor in self.processors:
                scores = self.call(processor, input_ids, scores, [self.row_indices[row] for row in rows])
            processed[rows, positions] = scores.to(processed)
            self.allowed |= {(node.row, node.path): row.isfinite() for node, row in zip(nodes, scores, strict=True)}
        return processed

    def is_possible(self, node: ProcessedNode) -> bool:
        """Return whether no processor excludes an id of a node's path.

        A draft may hold ids that its own ancestors exclude. Nothing is committed behind them, and processors need not
        understand them.
        """
        if not node.path:
            return True
        before = node.row, node.path[:-1]
        if before not in self.allowed:  # drafters ask for one level of their tree at a time, from another root
            return True
        allowed = self.allowed[before]
        is_possible = allowed is not None and bool(allowed[node.path[-1]])
        if not is_possible:
            self.allowed[node.row, node.path] = None
        return is_possible

    def begin_pass(self, row_indices: list[int]) -> None:
        """Note which rows of the call the next pass decodes."""
        self.row_indices, self.allowed = row_indices, {}

    def nodes_by_length(self, context: GenerationContext) -> dict[int, list[ProcessedNode]]:
        """Return the scored positions by the number of ids before them, the smallest first."""
        groups: dict[int, list[ProcessedNode]] = defaultdict(list)
        committed, lengths = context.committed_ids.tolist(), context.committed_lens.tolist()
        paths, depths = context.path_ids.tolist(), context.depth.tolist()
        prompt_lengths = (context.committed_lens - context.num_generated).tolist()
        for row, row_index in enumerate(self.row_indices):
            padding = self.padded_ids.shape[1] - prompt_lengths[row]
            prefix = self.padded_ids[row_index, :padding].tolist() + committed[row][: lengths[row]]
            for position, depth in enumerate(depths[row]):
                path = tuple(paths[row][position][1 : depth + 1])
                groups[len(prefix) + depth].append(ProcessedNode(row, position, path, prefix + list(path)))
        return {length: groups[length] for length in sorted(groups)}

    def call(self, processor: Any, input_ids: Tensor, scores: Tensor, row_indices: list[int]) -> Tensor:
        """Call a processor on G sequences of the same length.

        Args:
            processor (Any): The processor.
            input_ids (Tensor): `[G, L]`.
            scores (Tensor): `[G, V]`.
            row_indices (list[int]): G indices of their rows in the batch of the call.

        Returns:
            Tensor: `[G, V]`.
        """
        if isinstance(processor, ROWWISE):
            return call_processor(processor, input_ids, scores)
        rows = zip(input_ids, scores, row_indices, strict=True)
        return torch.stack([call_row(processor, ids, values, row, len(self.padded_ids)) for ids, values, row in rows])


@dataclass
class LockstepProcessors(NodeProcessors):
    """Processors of plain decoding, called once a token with all rows of the call, as without drafts."""

    sequences: list[list[int]] = field(default_factory=list)  # ids of all rows of the call, with padding

    def __call__(self, logits: Tensor, grammar_bias: Tensor | None, context: GenerationContext | None) -> Tensor:
        assert context is not None
        (nodes,) = self.nodes_by_length(context).values()  # plain decoding makes all rows longer by one
        rows = [self.row_indices[node.row] for node in nodes]
        self.sequences = self.sequences or self.padded_ids.tolist()
        self.sequences = [[*ids, self.pad_token_id] for ids in self.sequences]  # which follows where a row has ended
        for row, node in zip(rows, nodes, strict=True):
            self.sequences[row] = node.ids
        length = len(nodes[0].ids)
        input_ids = torch.tensor([ids[:length] for ids in self.sequences], device=self.padded_ids.device)
        scores = torch.zeros(len(input_ids), logits.shape[-1], device=logits.device)
        scores[rows] = logits[:, 0].float()
        for processor in self.processors:
            scores = call_processor(processor, input_ids, scores)
        return scores[rows][:, None].to(torch.float32)


@dataclass(frozen=True)
class ProcessedNode:
    """Scored position with the ids before it."""

    row: int  # of the batch
    position: int  # among the scored ones of its row
    path: tuple[int, ...]  # ids after the last committed one
    ids: list[int]  # all, with padding
