"""Bugs that look plausible and must be caught: each is planted, and the checks of the other files have to fail."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.model import attention
from polydraft.core.model.cache import KVCache
from polydraft.core.model.decoder import TreeDecoder
from polydraft.core.sampling import sampler
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.params import SamplingParams

from .conftest import VOCAB, with_sampling


def drafted_equals_plain(lab, run, drafter: str, sampling: SamplingParams | None = None, plant=lambda: None) -> bool:
    """Run plain decoding, plant the bug, run the drafter on the same prompts; return True if they are equal."""
    made = lab()
    prompts = with_sampling(made.prompts, sampling)
    plain = run(made.method(), prompts)
    plant()
    return run(made.method(made.drafters(plain.outputs)[drafter]), prompts).same(plain)


def test_noise_reused_at_two_positions_is_detected(lab, run, monkeypatch):
    """Check that the distribution changes although plain and drafted decoding agree: tokens repeat too often."""

    def repeats() -> int:
        made = lab()
        model = made.model
        with torch.no_grad():
            for parameter in model.lm_head.parameters():
                parameter.zero_()  # a uniform distribution: equal neighbours have probability 1 / VOCAB
        outputs = run(made.method(), [prompt for prompt in made.prompts for _ in range(4)]).outputs
        return sum(int((row[1:] == row[:-1]).sum()) for row in outputs)

    pairs = 4 * sum(prompt.max_new_tokens - 1 for prompt in lab().prompts)
    assert repeats() < 3 * pairs / VOCAB + 10
    honest = Noise.gumbel_at
    monkeypatch.setattr(Noise, "gumbel_at", lambda self, t: honest(self, t // 2))
    assert repeats() > pairs / 3


@pytest.mark.parametrize("drafter", ["oracle chain", "oracle tree", "jacobi left-law"])
def test_noise_tied_to_window_slot_is_detected(lab, run, monkeypatch, drafter):
    honest = Noise.gumbel_at

    def plant():
        monkeypatch.setattr(Noise, "gumbel_at", lambda self, t: honest(self, t - t[:, :1]))

    assert drafted_equals_plain(lab, run, drafter)
    assert not drafted_equals_plain(lab, run, drafter, plant=plant)


def exact_equals_plain(lab, run, family: str, plant=lambda: None) -> bool:
    """Return True if a method that moves KV entries equals plain decoding, as it does at temperature 0."""
    made = lab(torch.float64)
    prompts = with_sampling(made.prompts, SamplingParams(temperature=0))
    plain = run(made.method(), prompts)
    plant()
    drafter, verifier = made.verified_drafters()[family]
    return run(made.method(drafter, False, verifier), prompts).same(plain)


def test_sibling_visible_in_mask_is_detected(lab, run, monkeypatch):
    """Plant siblings in the attention mask only; verification itself stays right."""

    def plant():
        score = TreeDecoder.forward_tree

        def forward_tree(self, cache, inputs, lineage, depth, cached):
            seen = lineage if lineage.shape[1] == 1 else torch.ones_like(lineage).tril()
            return score(self, cache, inputs, seen, depth, cached)

        monkeypatch.setattr(TreeDecoder, "forward_tree", forward_tree)

    assert not exact_equals_plain(lab, run, "target only", plant)


@pytest.mark.parametrize("family", ["target only", "recursive"])
def test_rejected_kv_entries_left_in_view_are_detected(lab, run, monkeypatch, family):
    def plant():
        monkeypatch.setattr("polydraft.core.target.causal.compact_accepted_path", lambda *args: None)

    assert exact_equals_plain(lab, run, family)
    assert not exact_equals_plain(lab, run, family, plant)


def test_row_moved_without_kv_entries_is_detected(lab, run, monkeypatch):
    """Let rows end one after the other, so that the last moves into the gap."""
    made = lab()
    alone = [run(made.method(), [prompt]).outputs[0] for prompt in made.prompts]
    assert all(map(torch.equal, run(made.method(), made.prompts).outputs, alone))

    def stay(self, removal):
        self.num_live_rows = removal.num_kept * self.num_branches

    monkeypatch.setattr(KVCache, "remove_rows", stay)
    assert not all(map(torch.equal, run(made.method(), made.prompts).outputs, alone))


def test_kv_view_one_block_short_is_detected(lab, run, monkeypatch):
    made = lab()
    prompts = [replace(made.prompts[0], branch_token_ids=((1, *range(2, 60)) * 9,), max_new_tokens=60)]
    plain = run(made.method(), prompts)
    assert len(prompts[0].branch_token_ids[0]) > attention.KEY_BLOCK
    oracle = made.drafters(plain.outputs)["oracle chain"]
    assert run(made.method(oracle), prompts).same(plain)
    honest = attention.fold_additive_mask

    def short(mask, heads):
        cut = mask.clone()
        if cut.shape[2] > attention.KEY_BLOCK:
            cut[..., -attention.KEY_BLOCK :] = -torch.inf
        return honest(cut, heads)

    monkeypatch.setattr(attention, "fold_additive_mask", short)
    assert not run(made.method(oracle), prompts).same(plain)


@pytest.mark.parametrize("drafter", ["oracle chain", "oracle tree"])
def test_penalty_ignoring_the_path_is_detected(lab, run, monkeypatch, drafter):
    honest = sampler.apply_repetition_penalty

    def plant():
        def blind(scores, history, penalty):
            return honest(scores, replace(history, depth=torch.full_like(history.depth, -1)), penalty)

        monkeypatch.setattr(sampler, "apply_repetition_penalty", blind)

    penalised = SamplingParams(temperature=1.0, repetition_penalty=3.0)
    assert drafted_equals_plain(lab, run, drafter, penalised)
    assert not drafted_equals_plain(lab, run, drafter, penalised, plant)


def test_tree_positions_off_by_one_are_detected(lab, run, monkeypatch):
    """Plant positions as if every node followed the one before it."""

    def plant():
        score = TreeDecoder.forward_tree

        def forward_tree(self, cache, inputs, lineage, depth, cached):
            in_order = torch.arange(depth.shape[1]).expand(len(depth), -1)
            return score(self, cache, inputs, lineage, in_order, cached)

        monkeypatch.setattr(TreeDecoder, "forward_tree", forward_tree)

    assert not exact_equals_plain(lab, run, "target only", plant)


def test_perfect_oracle_hides_planted_bugs(lab, run):
    """Check why the oracle plants errors: without rejections the last two bugs stay unnoticed on a chain."""
    made = lab()
    plain = run(made.method(), made.prompts)
    perfect = OracleDrafter(dict(enumerate(plain.outputs)), VOCAB, reach=4, acceptance=1.0)
    drafted = run(made.method(perfect), made.prompts)
    assert drafted.same(plain) and drafted.tau > 4
