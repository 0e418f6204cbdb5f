"""Auto drafting: who drafts, what trials cost, and drafters that sat out."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch

from polydraft.core.decode import decode_step, start_batch
from polydraft.core.drafters.auto.drafter import AutoDrafter, is_sampled
from polydraft.core.drafters.auto.memory import SpeedMemory
from polydraft.core.drafters.auto.selector import TRIAL_PASSES, WARM_UP_PASSES, PassRate, SpeedSelector
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.sampling.params import SamplingParams

from ...decoding import RecordingDrafter
from ..conftest import Turns, with_sampling


@pytest.mark.parametrize(
    "name", ["lm tree", "eagle tree", "heads tree", "hydra chain", "above tree", "kangaroo tree", "block crowded"]
)
@pytest.mark.parametrize("away", [1, 4])
def test_drafter_that_sat_out_drafts_as_new(lab, name, away):
    """Check a first draft after passes of plain decoding against one of a drafter that was begun on the longer text."""
    made = lab()
    method = made.method(lambda target: target)
    prompts = with_sampling(made.prompts[1:4], SamplingParams(temperature=0))

    def drafter(target):
        found = made.drafters([])[name]
        return RecordingDrafter(found(target) if callable(found) else found)

    returning, method = drafter(method.target), replace(method, drafter=NoDrafter())
    turns = ["late", *["ar"] * away, "late"]
    auto = AutoDrafter({"ar": NoDrafter(), "late": returning}, Turns(turns))
    batch = start_batch(replace(method, drafter=auto), prompts)
    for _ in range(away + 1):
        decode_step(replace(method, drafter=auto), batch)
    longer = [
        replace(prompt, branch_token_ids=((*prompt.branch_token_ids[0], *row.ids), prompt.branch_token_ids[1]))
        for prompt, row in zip(prompts, batch.requests_in_order(), strict=True)
    ]
    decode_step(replace(method, drafter=auto), batch)
    fresh = drafter(method.target)
    decode_step(replace(method, drafter=fresh), start_batch(replace(method, drafter=fresh), longer))
    assert torch.equal(returning.drafts[-1].tokens, fresh.drafts[0].tokens)


def test_missed_tokens_matter(lab):
    """Check that a drafter which is not told what it missed accepts less, so that the test above can fail."""
    made = lab()
    taus = {}
    for is_updated in (True, False):
        target = made.target()
        drafter = made.drafters([])["lm tree"](target)
        if not is_updated:
            drafter.catch_up = lambda state, drafter_state, missed: None
        auto = AutoDrafter({"ar": NoDrafter(), "lm": drafter}, Turns(["ar"] * 6 + ["lm"]))
        method = replace(made.method(), drafter=auto)
        batch = start_batch(method, with_sampling(made.prompts, SamplingParams(temperature=0)))
        while len(batch):
            decode_step(method, batch)
        rows = batch.stats.values()
        taus[is_updated] = sum(row.tokens for row in rows) / sum(row.target_passes for row in rows)
        assert all(sum(row.passes_by_drafter.values()) == row.target_passes for row in rows)
    assert taus[True] > taus[False] + 0.2


def simulate(
    selector: SpeedSelector, speeds: dict[str, tuple[float, float]], passes: int, seed: int = 0, key: str = "here"
) -> list[str]:
    """Return who drafted in `passes` passes, given tokens and seconds of a pass of each drafter, with noise in both."""
    random, names = Random(seed), []
    for _ in range(passes):
        names.append(selector.choose(key))
        tokens, seconds = speeds[names[-1]]
        load = 1.5 if len(names) % 400 > 200 else 1.0  # of the machine, which slows all alike
        committed = 1 + sum(random.random() < 1 - 1 / tokens for _ in range(round(2 * tokens - 1)))
        selector.record(key, names[-1], committed, seconds * load * random.uniform(0.9, 1.1))
    return names


@pytest.mark.parametrize("seed", range(3))
def test_selector_finds_fastest_and_drops_slow(seed):
    speeds = {"ar": (1.0, 1.0), "good": (3.0, 1.5), "slow": (1.2, 2.5), "fair": (2.0, 1.3)}
    selector = SpeedSelector(list(speeds))
    names = simulate(selector, speeds, 2000, seed)
    late = names[200:]
    assert late.count("good") > 0.9 * len(late)
    assert late.count("slow") < 0.02 * len(late)


def test_selector_trials_lose_little_where_nothing_pays():
    speeds = {"ar": (1.0, 1.0), "a": (1.05, 1.5), "b": (1.1, 2.0), "c": (1.0, 1.1)}
    names = simulate(SpeedSelector(list(speeds)), speeds, 3000)[300:]
    rates = {name: 1 / seconds for name, (_, seconds) in speeds.items()}
    lost = sum(1 / rates[name] - 1 for name in names) / len(names)
    assert lost < 0.03


def test_new_situation_returns_to_plain_decoding_soon():
    """With one row drafting pays, with many it does not."""
    one, many = ({"ar": (1.0, 1.0), "good": (3.0, seconds), "bad": (1.0, 4.0)} for seconds in (1.5, 4.5))
    selector = SpeedSelector(list(one))
    assert simulate(selector, one, 1000)[-1] == "good"
    names = simulate(selector, many, 300, key="many rows")
    assert names[-150:].count("ar") > 140
    assert "bad" not in names, "what was slow elsewhere is tried at once"


def test_single_lucky_trial_of_new_situation_promotes_nobody():
    selector = SpeedSelector(["ar", "good", "poor"])
    simulate(selector, {"ar": (1.0, 1.0), "good": (3.0, 1.5), "poor": (1.5, 1.5)}, 3000)
    now = selector.situation("many rows")
    now.incumbent, now.trial, now.recent = "good", "poor", PassRate()
    now.recent.add(2.0, 1.0)
    for _ in range(WARM_UP_PASSES + TRIAL_PASSES):
        selector.record("many rows", "poor", 9.0, 1.0)
    assert not now.trial and now.incumbent == "good"


def test_situations_where_drafts_rarely_pay_start_plain():
    speeds = {"good": (3.0, 1.5), "ar": (1.0, 1.0)}
    selector = SpeedSelector(list(speeds), starts_plain=is_sampled)
    assert simulate(selector, speeds, 200, key="1 rows, greedy")[0] == "good"
    sampled = simulate(selector, speeds, 300, key="1 rows, sampled")
    assert sampled[0] == "ar" and sampled[-1] == "good"
    assert selector.choose("2 rows, sampled") == "good", "what another sampled situation learned is not used"


def test_selector_returns_when_text_changes():
    speeds = {"ar": (1.0, 1.0), "copy": (1.0, 1.4)}
    selector = SpeedSelector(list(speeds))
    simulate(selector, speeds, 400)
    names = simulate(selector, speeds | {"copy": (4.0, 1.4)}, 1500)
    assert names[-200:].count("copy") > 180


def test_selector_knowledge_survives_and_junk_is_skipped():
    speeds = {"ar": (1.0, 1.0), "good": (3.0, 1.5)}
    first, second = SpeedSelector(list(speeds)), SpeedSelector(list(speeds))
    simulate(first, speeds, 300)
    second.load_json(first.to_json())
    assert second.choose("here") == "good"
    for junk in (None, [], {"here": 3}, {"here": {"good": ["x", 1]}}, {"here": {"good": [float("nan"), 5]}}):
        other = SpeedSelector(list(speeds))
        other.load_json(junk)
        assert other.choose("here") == "ar"


def test_speeds_are_kept_between_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYDRAFT_CACHE", str(tmp_path))
    speeds = {"ar": (1.0, 1.0), "good": (3.0, 1.5)}
    drafters = {name: NoDrafter() for name in speeds}
    first = AutoDrafter(drafters, SpeedSelector(list(speeds)), SpeedMemory.for_model(["a"]))
    simulate(first.selector, speeds, 200)
    first.finish([], [])
    later, other = (AutoDrafter(drafters, SpeedSelector(list(speeds)), SpeedMemory.for_model([key])) for key in "ab")
    assert later.selector.choose("here") == "good" and other.selector.choose("here") == "ar"
    file = SpeedMemory.for_model(["a"]).file
    assert list(file.parent.iterdir()) == [file], "a temporary file is left"
    file.write_text("{")
    assert SpeedMemory.for_model(["a"]).load() == {}
    monkeypatch.setenv("POLYDRAFT_CACHE", "off")
    SpeedMemory.for_model(["a"]).save({"here": {}})
    assert file.read_text() == "{"


def test_selector_starts_only_drafters_worth_trying():
    speeds = {"ar": (1.0, 1.0), "good": (3.0, 1.5), "bad": (1.0, 4.0)}
    selector = SpeedSelector(list(speeds))
    assert selector.worth_starting(100) == list(speeds)
    simulate(selector, speeds, 500)
    assert selector.worth_starting(100)[0] == "good"
    assert "bad" not in selector.worth_starting(20)
