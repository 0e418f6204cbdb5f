"""Results in the form of `generate`: padded sequences, and on request scores and logits of every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from polydraft.core.draft import Draft
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler, TokenDistribution
from polydraft.core.stats import DecodeStats
from polydraft.core.verification import VerificationResult
from polydraft.core.verifiers.base import Verifier


class ScoreRecorder:
    """Verifier that keeps the logits from which tokens were sampled.

    Args:
        verifier (Verifier): Verifies.
        num_rows (int): Rows of the call.
    """

    def __init__(self, verifier: Verifier, num_rows: int) -> None:
        self.verifier = verifier
        self.guarantee: str = verifier.guarantee
        self.uses_shared_noise: bool = verifier.uses_shared_noise
        self.scores: list[list[Tensor]] = [[] for _ in range(num_rows)]  # [V] of every token, after all processors
        self.logits: list[list[Tensor]] = [[] for _ in range(num_rows)]  # before them
        self.last_logits: Tensor | None = None  # [B, T, V] of the present pass, before processors
        self.last_pass: tuple[Tensor, Tensor] | None = None  # scores and logits `[B, K, V]` of its K tokens

    def record(self, sampler: Sampler) -> RecordedSampler:
        """Return a sampler that shows this recorder the target's logits."""
        return RecordedSampler(sampler.allowed_tokens, sampler.stop_token_mask, sampler.constraints, recorder=self)

    def verify(self, draft: Draft, distribution: Any, noise: Noise, num_generated: Tensor) -> VerificationResult:
        result = self.verifier.verify(draft, distribution, noise, num_generated)
        rows = torch.arange(len(result.tokens), device=result.tokens.device)[:, None]
        assert self.last_logits is not None
        self.last_pass = distribution.logits[rows, result.token_indices], self.last_logits[rows, result.token_indices]
        return result

    def keep(self, rows: Sequence[int], num_committed: Sequence[int]) -> None:
        """Keep what the last pass has committed to the rows of the call with these indices."""
        assert self.last_pass is not None
        scores, logits = self.last_pass
        for position, (row, count) in enumerate(zip(rows, num_committed, strict=True)):
            self.scores[row] += scores[position, :count]
            self.logits[row] += logits[position, :count]


@dataclass(frozen=True)
class RecordedSampler(Sampler):
    """Sampler that shows a recorder the target's logits."""

    recorder: ScoreRecorder | None = None

    def __call__(self, logits: Tensor, *arguments: Any, **options: Any) -> TokenDistribution:
        """Return what the sampler returns."""
        assert self.recorder is not None
        self.recorder.last_logits = logits
        return super().__call__(logits, *arguments, **options)


def pad_sequences(prompts: Tensor, generated: Sequence[Sequence[int]], pad_token_id: int) -> Tensor:
    """Return prompts `[B, L]` with the generated ids of every row behind them, `[B, L']`, padded on the right."""
    longest = max(map(len, generated), default=0)
    rows = [[*ids, *[pad_token_id] * (longest - len(ids))] for ids in generated]
    return torch.cat([prompts, torch.tensor(rows, dtype=torch.long, device=prompts.device).view(len(rows), longest)], 1)


def steps_of(rows: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
    """Return tensors `[V]` of every token of B rows by token, `[B, V]` each; zeros where a row has ended."""
    longest = max(map(len, rows), default=0)
    empty = torch.zeros_like(next(row[0] for row in rows if row)) if longest else torch.empty(0)
    return tuple(torch.stack([row[step] if step < len(row) else empty for row in rows]) for step in range(longest))


def build_output(
    sequences: Tensor, recorder: ScoreRecorder | None, generation_config: Any, is_encoder_decoder: bool,
    stats: DecodeStats,
) -> Any:  # fmt: skip
    """Return the result as `generate` does: sequences `[B, L]`, or an object that has them with statistics.

    Args:
        sequences (Tensor): `[B, L]` prompts and generated ids.
        recorder (ScoreRecorder | None): Scores and logits, if they are asked for.
        generation_config (GenerationConfig): Says what is asked for.
        is_encoder_decoder (bool): Whether the model has an encoder.
        stats (DecodeStats): Becomes the attribute `speculative` of an object.
    """
    if not generation_config.return_dict_in_generate:
        return sequences
    fields: dict[str, Any] = {"sequences": sequences}
    if recorder is not None:
        fields |= {"scores": steps_of(recorder.scores)} if generation_config.output_scores else {}
        fields |= {"logits": steps_of(recorder.logits)} if generation_config.output_logits else {}
    output = GenerateEncoderDecoderOutput(**fields) if is_encoder_decoder else GenerateDecoderOnlyOutput(**fields)
    output.speculative = stats  # an attribute, since callers of a dictionary divide its values by rows
    return output
