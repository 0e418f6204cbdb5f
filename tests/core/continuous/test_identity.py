"""Same seed, same latents: every drafter against plain decoding of every row alone, bit for bit."""

from __future__ import annotations

from functools import lru_cache

import pytest
from torch import Tensor

from polydraft.core.decode import add_requests, decode, decode_step, remove_requests, start_batch
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs

from ...covering import every_pair
from ...decoding import all_equal, run
from ..conftest import DTYPES
from .lab import COUPLED, LatentOracle, lab, longer, prompts

SPREADS = (3.0, 0.3)  # hardly anything drafted is right, and most of it
DRAFTERS = tuple(lab().drafters({}))
CHAINED = tuple(lab().chained())


@lru_cache
def plain_rows(dtype: str, spread: float, guided: bool) -> tuple[Tensor, ...]:
    """Return the outputs of plain decoding, one row at a time."""
    plain = lab(DTYPES[dtype], spread).method(None, guided)
    return tuple(run(plain, [prompt])[0][0] for prompt in prompts(5, guided))


@pytest.mark.parametrize(
    ("name", "dtype", "spread", "guided", "rows"), every_pair(DRAFTERS, DTYPES, SPREADS, (False, True), (1, 2, 5))
)
def test_every_drafter_matches_plain_decoding(name, dtype, spread, guided, rows):
    made, wanted = lab(DTYPES[dtype], spread), plain_rows(dtype, spread, guided)[:rows]
    drafter = made.drafters(dict(enumerate(wanted)))[name]
    found, tau = run(made.method(drafter, guided), prompts(rows, guided))
    assert all_equal(found, wanted)
    if name == "oracle" or (spread < 1 and name in ("lm", "jacobi")):
        # guidance enlarges the change from one distribution to the next, and so the error of Jacobi's guesses
        assert tau > (1.2 if guided and name == "jacobi" else 1.5), "too little was accepted for equality to mean much"


@pytest.mark.parametrize(("dtype", "guided"), every_pair(DTYPES, (False, True)))
def test_plain_rows_are_independent_of_batch_neighbours(dtype, guided):
    found, tau = run(lab(DTYPES[dtype]).method(None, guided), prompts(5, guided))
    assert all_equal(found, plain_rows(dtype, 3.0, guided)) and tau == 1


@pytest.mark.parametrize(("name", "dtype", "guided"), every_pair(DRAFTERS, DTYPES, (False, True)))
def test_joining_and_leaving_rows_change_nothing(name, dtype, guided):
    """Two rows start, two join after two passes, one leaves, the last joins two passes later."""
    made, wanted = lab(DTYPES[dtype], 0.3), list(plain_rows(dtype, 0.3, guided))
    method = made.method(made.drafters(dict(enumerate(wanted)))[name], guided)
    rows = prompts(5, guided)
    batch = start_batch(method, rows[:2], ids=[0, 1])
    for joining in (rows[2:4], rows[4:]):
        for _ in range(2):
            decode_step(method, batch)
        if joining[0] is rows[2]:
            remove_requests(batch, {1: "loop"})
        first = rows.index(joining[0])
        add_requests(method, batch, joining, list(range(first, first + len(joining))))
    for _ in decode(method, batch):
        pass
    outputs = batch.outputs()
    assert batch.finish_reasons() == ["length", "loop", "length", "length", "length"]
    assert 2 <= len(outputs[1]) < len(wanted[1])
    wanted[1] = wanted[1][: len(outputs[1])]
    assert all_equal(outputs, wanted)


@pytest.mark.parametrize("name", CHAINED)
def test_rows_with_fresh_noise_are_batch_independent(name):
    made = lab(spread=0.3)
    method = made.method(made.chained()[name], False, COUPLED)
    separate = [run(method, [prompt])[0][0] for prompt in prompts(5)]
    batch = start_batch(method, prompts(5)[:2], ids=[0, 1])
    for _ in range(2):
        decode_step(method, batch)
    add_requests(method, batch, prompts(5)[2:], ids=[2, 3, 4])
    for _ in decode(method, batch):
        pass
    assert all_equal(batch.outputs(), separate)
    assert not all_equal(separate, list(plain_rows("fp32", 0.3, False)))


@pytest.mark.parametrize(("dtype", "words", "budget"), [("bf16", 0, 90), ("fp32", 470, 70)])
def test_long_rows(dtype, words, budget):
    """Beyond 64 latents, and beyond 512 positions, where a block of keys is added while others are short."""
    made = lab(DTYPES[dtype], positions=600)
    rows = [longer(prompts(2)[0], budget, words), prompts(2)[1]]
    plain = made.method()
    wanted = [run(plain, [prompt])[0][0] for prompt in rows]
    assert len(wanted[0]) == budget and (not words or budget + words > 512)
    for name, drafter in made.drafters(dict(enumerate(wanted))).items():
        if name in ("oracle", "jacobi", "eagle"):
            found, tau = run(made.method(drafter), rows)
            assert all_equal(found, wanted), name
            assert tau > 1.5 or name != "oracle"


def test_oracle_plants_every_kind_of_error():
    """Drafts are right and wrong at every depth: by a bit, grossly, or no latents."""
    made, rows = lab(), prompts(5)
    wanted, _ = run(made.method(), rows)
    kept, apart = set(), set()

    class RecordingOracle(LatentOracle):
        def observe(self, state, drafter_state, outcome):
            choices, draft, accepted = (
                outcome.verification.target_tokens,
                outcome.draft.tokens,
                outcome.verification.num_accepted,
            )
            for row in range(len(draft)):
                depth = int(accepted[row])
                kept.add(depth)
                if depth < draft.shape[1]:
                    away = (draft - choices[:, :-1])[row, depth].abs().max()
                    apart.add("none" if not away.isfinite() else "ulp" if away < 1e-5 else "gross")

    found, tau = run(made.method(lambda _: RecordingOracle(dict(enumerate(wanted)), 0, reach=4, acceptance=0.75)), rows)
    assert all_equal(found, wanted) and tau > 1.5
    assert kept == {0, 1, 2, 3, 4} and apart == {"none", "ulp", "gross"}


def test_latents_depend_on_all_earlier_inputs():
    """Otherwise a draft after wrong latents would be right. Whatever changes, later latents change with it."""

    def generate(prompt: PromptInputs) -> Tensor:
        return run(made.method(None, True), [prompt])[0][0]

    made = lab()
    (one,) = prompts(1, True)
    whole, unconditional = generate(one), (1, 9, *one.branch_token_ids[1][1:])
    for changed in (
        PromptInputs(
            ((1, 9, *one.branch_token_ids[0][2:]), one.branch_token_ids[1]),
            one.max_new_tokens,
            one.seed,
            sampling_params=one.sampling_params,
        ),
        PromptInputs(
            (one.branch_token_ids[0], unconditional), one.max_new_tokens, one.seed, sampling_params=one.sampling_params
        ),
        PromptInputs(one.branch_token_ids, one.max_new_tokens, one.seed + 1, sampling_params=one.sampling_params),
        PromptInputs(
            one.branch_token_ids, one.max_new_tokens, one.seed, segment=7, sampling_params=one.sampling_params
        ),
        PromptInputs(
            one.branch_token_ids, one.max_new_tokens, one.seed, sampling_params=SamplingParams(0.9, guidance_scale=2.0)
        ),
        PromptInputs(
            one.branch_token_ids, one.max_new_tokens, one.seed, sampling_params=SamplingParams(1.0, guidance_scale=4.0)
        ),
    ):
        other = generate(changed)
        assert (whole != other)[1:].any(-1).all(), changed
