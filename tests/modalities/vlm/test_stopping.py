"""Stop strings: finish reason, text and counts equal plain decoding for every drafter and stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from polydraft.core.decode import Method
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.sampling.sampler import TokenDistribution
from polydraft.core.stats import DecodeStats
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.vlm.conversation import build_conversations
from polydraft.modalities.vlm.pipeline import VLMPipeline
from polydraft.modalities.vlm.request import ChatGenerationRequest, ChatStream
from polydraft.modalities.vlm.result import ChatResult

from .conftest import method, oracle

LONGEST = 12


def prompts_of(pipe: VLMPipeline, min_tokens: int = 0, seed: int = 5) -> list[PromptInputs]:
    """Return the prompt of one question."""
    sampling = SamplingParams(temperature=1.0, min_tokens=min_tokens)
    return pipe.build_prompts(build_conversations(None, "What is this?", None), [seed], LONGEST, sampling)


def answered(pipe: VLMPipeline, how: Method, prompts: list[PromptInputs], stops: list[str]) -> ChatResult:
    """Decode prompts, check the steps against the result, and return it."""
    stream, pieces, counted = ChatStream(ChatGenerationRequest(pipe, how, prompts, stops)), [""] * len(prompts), 0
    for step in stream:
        pieces = [before + new for before, new in zip(pieces, step.pieces, strict=True)]
        counted += sum(step.step.num_committed)
        assert step.tokens_done == counted
    result = stream.result()
    assert pieces == result.texts == ["".join(runs) for runs in result.all_runs]
    assert counted == result.stats.tokens
    for tokens, passes, stats in zip(result.all_tokens, result.all_passes, result.row_stats, strict=True):
        assert len(tokens) == len(passes) == stats.tokens
        assert stats.accepted + stats.target_passes >= stats.tokens, "a token is accepted or sampled by the target"
        assert stats.accepted <= min(stats.tokens, stats.drafted)
        assert sum(stats.accepted_at.values()) == stats.accepted and 0 not in stats.accepted_at.values()
    return result


def comparable(result: ChatResult) -> dict[str, Any]:
    """Return the parts of a result that must not depend on drafting."""
    return {
        "texts": result.texts, "reasons": result.finish_reasons, "tokens": result.decoded,
        "counts": [row.tokens for row in result.row_stats], "total": result.stats.tokens,
    }  # fmt: skip


def always(recorded: list[list[int]], vocab: int) -> OracleDrafter:
    """Return a drafter that is always right, with drafts of six tokens."""
    return OracleDrafter(dict(enumerate(map(torch.tensor, recorded))), vocab, reach=6, acceptance=1.0)


def stops_of(pipe: VLMPipeline, ids: list[int]) -> list[tuple[int, str]]:
    """Return the text that every token adds, with the number of tokens up to it."""
    texts = [pipe.tokenizer.decode(ids[:count], skip_special_tokens=True) for count in range(len(ids) + 1)]
    return [
        (count, after[len(before) :])
        for count, (before, after) in enumerate(zip(texts, texts[1:], strict=False), 1)
        if after.startswith(before) and len(after) > len(before)
    ]


@pytest.mark.parametrize(
    ("seed", "every"), [(5, 3), *(pytest.param(seed, 1, marks=pytest.mark.thorough) for seed in range(5, 9))]
)
def test_stopped_answer_equals_plain_decoding(pipe_of: Callable[..., VLMPipeline], seed: int, every: int) -> None:
    """The stop is at, before and after the maximum length, in one batch; most drafts extend past the stop."""
    pipe = pipe_of("llava")
    (prompt,), vocab, plainly = prompts_of(pipe, seed=seed), pipe.token_mask.shape[1], method(pipe)
    free = answered(pipe, plainly, [prompt], []).decoded[0]
    assert len(free) == LONGEST
    stopped = 0
    for count, stop in stops_of(pipe, free)[::every]:
        budgets = (count, min(count + 2, LONGEST), max(1, count - 1))
        rows = [replace(prompt, max_new_tokens=budget) for budget in budgets]
        plain = comparable(answered(pipe, plainly, rows, [stop]))
        assert plain["reasons"][:2] == ["stop", "stop"] and len(plain["tokens"][0]) <= count
        stopped += len(plain["tokens"][1]) < min(count + 2, LONGEST)
        for drafter in (always([free] * 3, vocab), oracle([free] * 3, vocab, 3)):
            drafted = answered(pipe, method(pipe, drafter), rows, [stop])
            assert comparable(drafted) == plain, (count, stop)
            assert drafted.stats.target_passes <= len(rows) + sum(plain["counts"]) // 2 or drafter.width > 1
    assert stopped > 2


def test_eos_after_stop_string_in_pass_is_ignored(pipe_of: Callable[..., VLMPipeline]) -> None:
    pipe = pipe_of("llava")
    (prompt,), vocab = prompts_of(pipe), pipe.token_mask.shape[1]
    free = answered(pipe, method(pipe), [prompt], []).decoded[0]
    count, stop = stops_of(pipe, free)[1]
    assert free[count + 1] not in free[: count + 1]
    eos = frozenset({free[count + 1]})
    plain = answered(pipe, method(pipe, eos=eos), [prompt], [stop])
    drafted = answered(pipe, method(pipe, always([free], vocab), eos=eos), [prompt], [stop])
    assert comparable(drafted) == comparable(plain) and plain.finish_reasons == ["stop"]


def test_failure_after_stop_string_in_pass_is_ignored(
    pipe_of: Callable[..., VLMPipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain decoding does not reach the failure."""
    pipe = pipe_of("llava")
    (prompt,), vocab = prompts_of(pipe), pipe.token_mask.shape[1]
    free = answered(pipe, method(pipe), [prompt], []).decoded[0]
    count, stop = next((count, stop) for count, stop in stops_of(pipe, free) if count < 5)
    plain = answered(pipe, method(pipe), [prompt], [stop])
    original = TokenDistribution.is_allowed
    # The sixth token of a pass cannot be sampled.
    monkeypatch.setattr(
        TokenDistribution, "is_allowed", lambda self, columns, ids: original(self, columns, ids) & (columns < 5)
    )
    drafter = always([free], vocab)
    drafted = answered(pipe, method(pipe, drafter), [prompt], [stop])
    assert comparable(drafted) == comparable(plain) and plain.finish_reasons == ["stop"]
    with pytest.raises(InvalidArgument, match="nothing may follow"):
        answered(pipe, method(pipe, drafter), [prompt], [])


@pytest.mark.parametrize(
    ("min_tokens", "every"),
    [(4, 3), *(pytest.param(count, 1, marks=pytest.mark.thorough) for count in (1, 4, LONGEST))],
)
def test_stop_string_before_min_tokens_is_ignored(
    pipe_of: Callable[..., VLMPipeline], min_tokens: int, every: int
) -> None:
    """Within min_tokens it is text, drafted and plain."""
    pipe = pipe_of("llava")
    (prompt,), vocab = prompts_of(pipe, min_tokens), pipe.token_mask.shape[1]
    free = answered(pipe, method(pipe), [prompt], []).decoded[0]
    for count, stop in stops_of(pipe, free)[::every]:
        plain = answered(pipe, method(pipe), [prompt], [stop])
        assert comparable(answered(pipe, method(pipe, always([free], vocab)), [prompt], [stop])) == comparable(plain)
        assert len(plain.tokens) >= min_tokens
        assert count > min_tokens or stop in plain.text or plain.finish_reason == "length"
        assert count <= min_tokens or plain.finish_reason == "stop"


def test_statistics_exclude_tokens_after_stop_string() -> None:
    """τ is the number of tokens up to the end over passes: 3 of the first and 2 of the second are 2.5."""
    stats = DecodeStats("tested", "identical")
    stats.record_pass(drafted=6, accepted=2, tokens=3, drafter_passes=1)
    stats.record_pass(drafted=6, accepted=5, tokens=6, drafter_passes=1)
    stats.truncate_last_pass(accepted=5, tokens=6, kept=2)
    assert (stats.tokens, stats.target_passes, stats.accepted, stats.drafted) == (5, 2, 4, 12)
    assert stats.mean_accepted_length == 2.5 and stats.accepted_per_position == [1.0, 1.0]
    assert stats.passes_by_accepted == [0, 0, 2, 0, 0, 0, 0]
