"""Bugs that look plausible and must be caught: each is planted, and the checks of the other files have to fail."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.law import sampling as sampling_module
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Sampling
from polydraft.core.model import attention
from polydraft.core.model.cache import SlotCache
from polydraft.core.model.network import Network

from .conftest import VOCAB, chosen


def drafted_equals_plain(lab, run, drafter: str, sampling: Sampling | None = None, plant=lambda: None) -> bool:
    """Plain decoding first, then the bug, then the drafter on the same prompts."""
    made = lab()
    prompts = chosen(made.prompts, sampling)
    plain = run(made.method(), prompts)
    plant()
    return run(made.method(made.drafters(plain.outputs)[drafter]), prompts).same(plain)


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
    honest = Noise.tape
    monkeypatch.setattr(Noise, "tape", lambda self, t: honest(self, t // 2))
    assert repeats() > pairs / 3


@pytest.mark.parametrize("drafter", ["oracle chain", "oracle tree", "jacobi left-law"])
def test_noise_tied_to_the_window_slot(lab, run, monkeypatch, drafter):
    honest = Noise.tape

    def plant():
        monkeypatch.setattr(Noise, "tape", lambda self, t: honest(self, t - t[:, :1]))

    assert drafted_equals_plain(lab, run, drafter)
    assert not drafted_equals_plain(lab, run, drafter, plant=plant)


def exact_equals_plain(lab, run, family: str, plant=lambda: None) -> bool:
    """Of methods that keep nodes wherever they stand; at temperature 0 these too say what plain decoding says."""
    made = lab(torch.float64)
    prompts = chosen(made.prompts, Sampling(temperature=0))
    plain = run(made.method(), prompts)
    plant()
    drafter, verifier = made.judged()[family]
    return run(made.method(drafter, False, verifier), prompts).same(plain)


def test_a_sibling_seen_through_the_mask(lab, run, monkeypatch):
    """Only the pass sees siblings; the walk itself stays right. Nodes in place have none among those before them."""

    def plant():
        score = Network.tree_pass

        def tree_pass(self, cache, inputs, lineage, depth, cached):
            seen = lineage if lineage.shape[1] == 1 else torch.ones_like(lineage).tril()
            return score(self, cache, inputs, seen, depth, cached)

        monkeypatch.setattr(Network, "tree_pass", tree_pass)

    assert not exact_equals_plain(lab, run, "target only", plant)


@pytest.mark.parametrize("family", ["target only", "recursive"])
def test_keys_and_values_of_a_rejected_path_left_in_view(lab, run, monkeypatch, family):
    def plant():
        monkeypatch.setattr("polydraft.core.target.keep_path", lambda *args: None)

    assert exact_equals_plain(lab, run, family)
    assert not exact_equals_plain(lab, run, family, plant)


def test_a_row_that_moves_without_its_keys_and_values(lab, run, monkeypatch):
    """Budgets differ, so rows end one after the other and the last moves into the gap."""
    made = lab()
    alone = [run(made.method(), [prompt]).outputs[0] for prompt in made.prompts]
    assert all(map(torch.equal, run(made.method(), made.prompts).outputs, alone))

    def stay(self, leaving):
        self.live = leaving.left * self.branches

    monkeypatch.setattr(SlotCache, "leave", stay)
    assert not all(map(torch.equal, run(made.method(), made.prompts).outputs, alone))


def test_a_view_of_the_keys_one_block_short(lab, run, monkeypatch):
    made = lab()
    prompts = [replace(made.prompts[0], branches=((1, *range(2, 60)) * 9,), budget=60)]
    plain = run(made.method(), prompts)
    assert len(prompts[0].branches[0]) > attention.KEYS
    oracle = made.drafters(plain.outputs)["oracle chain"]
    assert run(made.method(oracle), prompts).same(plain)
    honest = attention.padded

    def short(mask, heads):
        cut = mask.clone()
        if cut.shape[2] > attention.KEYS:
            cut[..., -attention.KEYS :] = -torch.inf
        return honest(cut, heads)

    monkeypatch.setattr(attention, "padded", short)
    assert not run(made.method(oracle), prompts).same(plain)


@pytest.mark.parametrize("drafter", ["oracle chain", "oracle tree"])
def test_a_penalty_that_ignores_the_path(lab, run, monkeypatch, drafter):
    honest = sampling_module.penalised

    def plant():
        def blind(scores, history, penalty):
            return honest(scores, replace(history, depth=torch.full_like(history.depth, -1)), penalty)

        monkeypatch.setattr(sampling_module, "penalised", blind)

    penalised = Sampling(temperature=1.0, repetition_penalty=3.0)
    assert drafted_equals_plain(lab, run, drafter, penalised)
    assert not drafted_equals_plain(lab, run, drafter, penalised, plant)


def test_positions_off_by_one_in_the_tree(lab, run, monkeypatch):
    """As if every node stood behind the one before it."""

    def plant():
        score = Network.tree_pass

        def tree_pass(self, cache, inputs, lineage, depth, cached):
            in_order = torch.arange(depth.shape[1]).expand(len(depth), -1)
            return score(self, cache, inputs, lineage, in_order, cached)

        monkeypatch.setattr(Network, "tree_pass", tree_pass)

    assert not exact_equals_plain(lab, run, "target only", plant)


def test_an_oracle_that_is_always_right_is_not_enough(lab, run):
    """Why errors are planted: without rejections the last two bugs would pass unseen on a chain."""
    made = lab()
    plain = run(made.method(), made.prompts)
    perfect = OracleDrafter(dict(enumerate(plain.outputs)), VOCAB, reach=4, acceptance=1.0)
    drafted = run(made.method(perfect), made.prompts)
    assert drafted.same(plain) and drafted.tau > 4
