"""Bugs that look plausible and must be caught: each is planted, and the checks of the other files have to fail."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polydraft.core import sampling as sampling_module
from polydraft.core.draft import Draft
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.network import Network
from polydraft.core.sampling import Sampling
from polydraft.core.tape import NoiseTape

VOCAB = 61


def drafted_equals_plain(lab, run, drafter: str, sampling: Sampling | None = None, plant=lambda: None) -> bool:
    """Plain decoding first, then the bug, then the drafter on the same prompts."""
    made = lab()
    plain = run(made.method(None, sampling), made.prompts)
    plant()
    return run(made.method(made.drafters(plain.outputs)[drafter], sampling), made.prompts).same(plain)


def test_noise_reused_at_two_positions(lab, run, monkeypatch):
    """Plain and drafted agree with each other even so; the law does not survive: pairs of tokens repeat too often."""

    def repeats() -> int:
        made = lab()
        model = made.model
        with torch.no_grad():
            for parameter in model.lm_head.parameters():
                parameter.zero_()  # a uniform law: equal neighbours have probability 1 / VOCAB
        outputs = run(made.method(), [prompt for prompt in made.prompts for _ in range(4)]).outputs
        return sum(int((row[1:] == row[:-1]).sum()) for row in outputs)

    pairs = 4 * sum(prompt.budget - 1 for prompt in lab().prompts)
    assert repeats() < 3 * pairs / VOCAB + 10
    honest = NoiseTape.window

    def reused(self, starts, width):
        wide = honest(self, [start // 2 for start in starts], width)
        places = torch.tensor(starts)[:, None] + torch.arange(width)
        return wide.gather(1, (places // 2 - torch.tensor(starts)[:, None] // 2)[..., None].expand_as(wide))

    monkeypatch.setattr(NoiseTape, "window", reused)
    assert repeats() > pairs / 3


@pytest.mark.parametrize("drafter", ["oracle chain", "oracle tree", "jacobi left-law"])
def test_noise_tied_to_the_window_slot(lab, run, monkeypatch, drafter):
    honest = NoiseTape.window

    def plant():
        monkeypatch.setattr(NoiseTape, "window", lambda self, starts, width: honest(self, [0] * len(starts), width))

    assert drafted_equals_plain(lab, run, drafter)
    assert not drafted_equals_plain(lab, run, drafter, plant=plant)


def test_a_sibling_seen_through_the_mask(lab, run, monkeypatch):
    """Only the pass sees siblings; the walk itself stays right."""

    def plant():
        score = Network.tree_pass

        def tree_pass(self, cache, inputs, lineage, depth, cached):
            seen = lineage if lineage.shape[1] == 1 else torch.ones_like(lineage).tril()
            return score(self, cache, inputs, seen, depth, cached)

        monkeypatch.setattr(Network, "tree_pass", tree_pass)

    assert not drafted_equals_plain(lab, run, "oracle tree", plant=plant)


@pytest.mark.parametrize("drafter", ["oracle tree", "lm tree"])
def test_keys_and_values_of_a_rejected_path_left_in_view(lab, run, monkeypatch, drafter):
    def plant():
        monkeypatch.setattr("polydraft.core.target.keep_path", lambda *args: None)

    assert not drafted_equals_plain(lab, run, drafter, plant=plant)


@pytest.mark.parametrize("drafter", ["oracle chain", "oracle tree"])
def test_a_penalty_that_ignores_the_path(lab, run, monkeypatch, drafter):
    honest = sampling_module.penalise

    def plant():
        def blind(scores, history, penalty):
            return honest(scores, replace(history, lineage=torch.zeros_like(history.lineage)), penalty)

        monkeypatch.setattr(sampling_module, "penalise", blind)

    penalised = Sampling(temperature=1.0, repetition_penalty=1.8)
    assert drafted_equals_plain(lab, run, drafter, penalised)
    assert not drafted_equals_plain(lab, run, drafter, penalised, plant)


def test_positions_off_by_one_in_the_tree(lab, run, monkeypatch):
    def plant():
        in_order = property(lambda draft: torch.arange(draft.size + 1).expand(len(draft.tokens), -1))
        monkeypatch.setattr(Draft, "depth", in_order)

    assert not drafted_equals_plain(lab, run, "oracle tree", plant=plant)


def test_an_oracle_that_is_always_right_is_not_enough(lab, run):
    """Why errors are planted: without rejections the last two bugs would pass unseen on a chain."""
    made = lab()
    plain = run(made.method(), made.prompts)
    perfect = OracleDrafter(dict(enumerate(plain.outputs)), VOCAB, reach=4, acceptance=1.0)
    drafted = run(made.method(perfect), made.prompts)
    assert drafted.same(plain) and drafted.tau > 4
