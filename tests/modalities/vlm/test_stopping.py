"""Why an answer ended, its text and its counts are those of plain decoding, whatever drafts and wherever it stops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from polydraft.core.decode import Method
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.errors import InvalidArgument
from polydraft.core.law.sampling import Law, Sampling
from polydraft.core.stats import DecodeStats
from polydraft.core.target import Prompt
from polydraft.modalities.vlm.conversation import conversations
from polydraft.modalities.vlm.pipeline import VLMPipeline
from polydraft.modalities.vlm.result import ChatResult
from polydraft.modalities.vlm.run import ChatRun, ChatStream

from .conftest import method, oracle

LONGEST = 12


def prompts_of(pipe: VLMPipeline, least: int = 0, seed: int = 5) -> list[Prompt]:
    """Return one question, which may be answered at length."""
    sampling = Sampling(temperature=1.0, min_tokens=least)
    return pipe.prompts(conversations(None, "What is this?", None), [seed], LONGEST, sampling)


def answered(pipe: VLMPipeline, how: Method, prompts: list[Prompt], stops: list[str]) -> ChatResult:
    """Return the result of a run whose steps have been checked against it."""
    stream, pieces, counted = ChatStream(ChatRun(pipe, how, prompts, stops)), [""] * len(prompts), 0
    for step in stream:
        pieces = [before + new for before, new in zip(pieces, step.pieces, strict=True)]
        counted += sum(step.step.counts)
        assert step.tokens_done == counted
    result = stream.result()
    assert pieces == result.texts == ["".join(runs) for runs in result.all_runs]
    assert counted == result.stats.tokens
    for tokens, passes, stats in zip(result.all_tokens, result.all_passes, result.row_stats, strict=True):
        assert len(tokens) == len(passes) == stats.tokens
        assert stats.accepted + stats.target_passes >= stats.tokens, "a token is accepted or the target's own"
        assert stats.accepted <= min(stats.tokens, stats.drafted)
        assert sum(stats.accepted_at.values()) == stats.accepted and 0 not in stats.accepted_at.values()
    return result


def told(result: ChatResult) -> dict[str, Any]:
    """Return what must not depend on drafting."""
    return {
        "texts": result.texts, "reasons": result.finish_reasons, "tokens": result.decoded,
        "counts": [row.tokens for row in result.row_stats], "total": result.stats.tokens,
    }  # fmt: skip


def always(recorded: list[list[int]], vocab: int) -> OracleDrafter:
    """Return a drafter that is always right, six tokens ahead."""
    return OracleDrafter(dict(enumerate(map(torch.tensor, recorded))), vocab, reach=6, acceptance=1.0)


def stops_of(pipe: VLMPipeline, ids: list[int]) -> list[tuple[int, str]]:
    """Return what every token adds to the text, and how many tokens there are then."""
    texts = [pipe.words.decode(ids[:count], skip_special_tokens=True) for count in range(len(ids) + 1)]
    return [
        (count, after[len(before) :])
        for count, (before, after) in enumerate(zip(texts, texts[1:], strict=False), 1)
        if after.startswith(before) and len(after) > len(before)
    ]


@pytest.mark.parametrize(
    ("seed", "every"), [(5, 3), *(pytest.param(seed, 1, marks=pytest.mark.thorough) for seed in range(5, 9))]
)
def test_answer_that_stops_anywhere_is_that_of_plain_decoding(
    pipe_of: Callable[..., VLMPipeline], seed: int, every: int
) -> None:
    """At the cap, before and behind it, which are rows of one batch; most drafts reach past the stop."""
    pipe = pipe_of("llava")
    (prompt,), vocab, plainly = prompts_of(pipe, seed=seed), pipe.mask.shape[1], method(pipe)
    free = answered(pipe, plainly, [prompt], []).decoded[0]
    assert len(free) == LONGEST
    stopped = 0
    for count, stop in stops_of(pipe, free)[::every]:
        rows = [replace(prompt, budget=budget) for budget in (count, min(count + 2, LONGEST), max(1, count - 1))]
        plain = told(answered(pipe, plainly, rows, [stop]))
        assert plain["reasons"][:2] == ["stop", "stop"] and len(plain["tokens"][0]) <= count
        stopped += len(plain["tokens"][1]) < min(count + 2, LONGEST)
        for drafter in (always([free] * 3, vocab), oracle([free] * 3, vocab, 3)):
            drafted = answered(pipe, method(pipe, drafter), rows, [stop])
            assert told(drafted) == plain, (count, stop)
            assert drafted.stats.target_passes <= len(rows) + sum(plain["counts"]) // 2 or drafter.width > 1
    assert stopped > 2


def test_end_behind_a_stop_string_in_one_pass_does_not_count(pipe_of: Callable[..., VLMPipeline]) -> None:
    pipe = pipe_of("llava")
    (prompt,), vocab = prompts_of(pipe), pipe.mask.shape[1]
    free = answered(pipe, method(pipe), [prompt], []).decoded[0]
    count, stop = stops_of(pipe, free)[1]
    assert free[count + 1] not in free[: count + 1]
    eos = frozenset({free[count + 1]})
    plain = answered(pipe, method(pipe, eos=eos), [prompt], [stop])
    drafted = answered(pipe, method(pipe, always([free], vocab), eos=eos), [prompt], [stop])
    assert told(drafted) == told(plain) and plain.finish_reasons == ["stop"]


def test_failure_behind_a_stop_string_in_one_pass_does_not_count(
    pipe_of: Callable[..., VLMPipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain decoding never gets there."""
    pipe = pipe_of("llava")
    (prompt,), vocab = prompts_of(pipe), pipe.mask.shape[1]
    free = answered(pipe, method(pipe), [prompt], []).decoded[0]
    count, stop = next((count, stop) for count, stop in stops_of(pipe, free) if count < 5)
    plain = answered(pipe, method(pipe), [prompt], [stop])
    honest = Law.possible
    # the pass's sixth token could not be drawn
    monkeypatch.setattr(Law, "possible", lambda law, columns, ids: honest(law, columns, ids) & (columns < 5))
    drafter = always([free], vocab)
    drafted = answered(pipe, method(pipe, drafter), [prompt], [stop])
    assert told(drafted) == told(plain) and plain.finish_reasons == ["stop"]
    with pytest.raises(InvalidArgument, match="nothing may follow"):
        answered(pipe, method(pipe, drafter), [prompt], [])


@pytest.mark.parametrize(
    ("least", "every"), [(4, 3), *(pytest.param(least, 1, marks=pytest.mark.thorough) for least in (1, 4, LONGEST))]
)
def test_stop_string_does_not_end_what_must_be_longer(
    pipe_of: Callable[..., VLMPipeline], least: int, every: int
) -> None:
    """Within the least tokens it is text like any other; drafted as plain."""
    pipe = pipe_of("llava")
    (prompt,), vocab = prompts_of(pipe, least), pipe.mask.shape[1]
    free = answered(pipe, method(pipe), [prompt], []).decoded[0]
    for count, stop in stops_of(pipe, free)[::every]:
        plain = answered(pipe, method(pipe), [prompt], [stop])
        assert told(answered(pipe, method(pipe, always([free], vocab)), [prompt], [stop])) == told(plain)
        assert len(plain.tokens) >= least
        assert count > least or stop in plain.text or plain.finish_reason == "length"
        assert count <= least or plain.finish_reason == "stop"


def test_statistics_keep_what_was_drafted_and_drop_what_is_behind() -> None:
    """τ is tokens up to the end over passes: 3 of the first and 2 of the second are 2.5."""
    stats = DecodeStats("tested", "identical")
    stats.count(drafted=6, accepted=2, tokens=3, drafter_passes=1)
    stats.count(drafted=6, accepted=5, tokens=6, drafter_passes=1)
    stats.uncount(accepted=5, tokens=6, kept=2)
    assert (stats.tokens, stats.target_passes, stats.accepted, stats.drafted) == (5, 2, 4, 12)
    assert stats.mean_accepted_length == 2.5 and stats.accepted_per_position == [1.0, 1.0]
    assert stats.passes_by_accepted == [0, 0, 2, 0, 0, 0, 0]
