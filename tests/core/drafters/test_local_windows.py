"""Windows that follow their neighbours: the right ones are inputs, and training improves guesses."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from polydraft.core.decode import start_batch
from polydraft.core.distillation.examples import Examples
from polydraft.core.distillation.local_refinement import neighbour_cross_entropy
from polydraft.core.drafters.jacobi.local_refinement import (
    GRID_NEIGHBOURS,
    LINE_NEIGHBOURS,
    LocalRefinementDrafter,
    LocalRefinementModel,
)
from polydraft.core.drafters.jacobi.window import JacobiDrafter, WindowInitializer
from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.core.sampling.params import SamplingParams

from ..conftest import VOCAB, with_sampling

ROW, PREVIEW = 5, 3
ALL_IDS = torch.ones(VOCAB, dtype=torch.bool)


def untrained_model(made, std: float = 0.3, row: int = ROW, preview: int = PREVIEW) -> LocalRefinementModel:
    """Return a model with large random weights, whose predictions matter."""
    torch.manual_seed(3)
    found = LocalRefinementModel(made.model.config, row=row, preview=preview, hidden=16)
    for parameter in found.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return found


def features_around(drafter: LocalRefinementDrafter, ids: torch.Tensor, begins: int) -> torch.Tensor:
    """Return the features at generated positions from `begins` on, `[B, W + 1, H]`."""
    back, t = drafter.model.max_offset, begins + torch.arange(drafter.window + 1).expand(len(ids), -1)
    line = torch.nn.functional.pad(ids, (back, 0))[:, begins : begins + back]
    return drafter.neighbour_features(line, ids[:, begins : begins + drafter.window], drafter.model.neighbour_mask(t))


@torch.inference_mode()
def affected_positions(drafter: LocalRefinementDrafter, begins: int) -> list[list[list[bool]]]:
    """Return for every position, in both rows, where features change if another id stands there, from `begins` on."""
    ids, affected = torch.randint(VOCAB, (2, begins + drafter.window)), []
    features = features_around(drafter, ids, begins)
    for position in range(begins + drafter.window):
        changed = ids.clone()
        changed[:, position] = (changed[:, position] + 1) % VOCAB
        affected.append((features_around(drafter, changed, begins) != features).any(-1).tolist())
    return affected


def test_neighbours_in_a_grid_affect_features(lab):
    """Another id changes the features at its own neighbours' positions and nowhere else."""
    made, window, begins = lab(), 12, 4
    drafter = LocalRefinementDrafter(untrained_model(made), made.target(), ALL_IDS, window, 0.7, 2)
    for place, changed in enumerate(affected_positions(drafter, begins)):
        at = divmod(place - PREVIEW, ROW)
        wanted = [
            place >= PREVIEW
            and (t - PREVIEW) // ROW - at[0] in (0, 1)
            and ((t - PREVIEW) // ROW - at[0], (t - PREVIEW) % ROW - at[1]) in GRID_NEIGHBOURS
            for t in range(begins, begins + window + 1)
        ]
        assert changed == [wanted, wanted], place


def test_neighbours_without_rows_are_preceding_tokens(lab):
    """Six of them, or as many as there are."""
    made, window, begins = lab(), 9, 2
    drafter = LocalRefinementDrafter(untrained_model(made, row=0, preview=1), made.target(), ALL_IDS, window, 0.7, 2)
    for place, changed in enumerate(affected_positions(drafter, begins)):
        wanted = [place >= 1 and (0, t - place) in LINE_NEIGHBOURS for t in range(begins, begins + window + 1)]
        assert changed == [wanted, wanted], place


@pytest.mark.parametrize("row", [ROW, 0])
def test_draft_distribution_matches_training_loss(lab, monkeypatch, row):
    """The loss of a sequence is that of the distributions that a draft fills new positions from."""
    monkeypatch.setattr("polydraft.core.distillation.local_refinement.mixed_precision", lambda device: nullcontext())
    made, window = lab(), 14
    student, target = untrained_model(made, row=row), made.target()
    drafter = LocalRefinementDrafter(student, target, ALL_IDS, window, 0.7, 1)
    tokens = torch.randint(VOCAB, (2, PREVIEW + window))
    examples = Examples.from_outputs([(1, 2), (3, 4, 5, 6)], list(tokens))
    with torch.inference_mode():
        logits = drafter.lm_head(features_around(drafter, tokens, PREVIEW)[:, :-1])
        nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, PREVIEW:].flatten())
    assert neighbour_cross_entropy(target, student, examples).item() == pytest.approx(nats.item(), abs=1e-4)


def test_unchanged_neighbours_keep_the_filtered_choice(lab, run):
    """A choice under a filter is repeated: nothing is lost to moved distributions."""
    made = lab()
    blind = untrained_model(made, std=0.0)  # zero weights move no distribution
    prompts = with_sampling(made.prompts, SamplingParams(top_k=7))
    local = LocalRefinementDrafter(blind, made.target(), ALL_IDS, 4, 1.0, 3)
    still = JacobiDrafter(4, WindowInitializer("random", ALL_IDS), restart=False)
    moved, unmoved = run(made.method(local), prompts), run(made.method(still), prompts)
    assert moved.same(unmoved) and moved.tau == pytest.approx(unmoved.tau, abs=0.15)


@pytest.mark.parametrize(("temperature", "row"), [(0.0, ROW), (0.5, ROW), (1.5, 0), (1.0, 0)])
def test_draft_temperature_changes_no_token(lab, run, temperature, row):
    made = lab()
    prompts = with_sampling(made.prompts, SamplingParams(temperature=0.9))
    plain = run(made.method(), prompts)
    drafter = LocalRefinementDrafter(untrained_model(made, row=row), made.target(), ALL_IDS, 6, 0.7, 2, temperature)
    assert run(made.method(drafter), prompts).same(plain)


def test_draft_temperature_zero_gives_argmax(lab):
    """At 0 the shared noise has no effect, at 1 its own; if the target is cold, guesses are too."""
    made = lab()

    def guesses(temperature: float, seed: int, heat: float = 1.0) -> torch.Tensor:
        drafter = LocalRefinementDrafter(untrained_model(made), made.target(), ALL_IDS, 6, 0.7, 2, temperature)
        prompts = [
            replace(prompt, seed=seed) for prompt in with_sampling(made.prompts, SamplingParams(temperature=heat))
        ]
        batch = start_batch(made.method(drafter), prompts)
        with torch.inference_mode():
            drawn = drafter.draft(batch.state, batch.drafter_state, made.method().sampler, batch.noise)
        return drawn.tokens[:, PREVIEW:]

    likeliest = guesses(0.0, 1)
    assert torch.equal(likeliest, guesses(0.0, 2)) and not torch.equal(guesses(1.0, 1), guesses(1.0, 2))
    assert torch.equal(likeliest, guesses(1.0, 1, heat=1e-4)) and not torch.equal(likeliest, guesses(1.0, 1))


@pytest.mark.parametrize("row", [ROW, 0])
def test_trained_refinement_accepts_more_than_jacobi(lab, run, row):
    """On memorised sequences, more guesses are right than a target alone gets right."""
    made = lab()
    prompts = with_sampling([p for p in made.prompts for _ in range(4)], SamplingParams(temperature=0))
    prompts = [
        type(p)(p.branch_token_ids, 40, seed, sampling_params=p.sampling_params) for seed, p in enumerate(prompts)
    ]
    plain = run(made.method(), prompts)
    torch.manual_seed(0)
    student = LocalRefinementModel(made.model.config, row=row, hidden=32)
    optimiser = torch.optim.AdamW(student.parameters(), lr=1e-2)
    examples = Examples.from_outputs([p.branch_token_ids[0] for p in prompts], plain.outputs)
    for _ in range(150):
        optimiser.zero_grad()
        loss = neighbour_cross_entropy(made.target(), student, examples)
        loss.backward()
        optimiser.step()
    jacobi = run(made.method(JacobiDrafter(6, WindowInitializer("left-law", ALL_IDS))), prompts)
    local = run(made.method(LocalRefinementDrafter(student, made.target(), ALL_IDS, 6, 0.7, 3)), prompts)
    assert local.same(plain) and jacobi.same(plain)
    assert local.tau > 1.15 * jacobi.tau


def test_models_of_other_targets_are_refused(lab, tmp_path):
    made = lab()
    untrained_model(made).save_pretrained(tmp_path)
    found = LocalRefinementModel.from_folder(tmp_path, made.model)
    assert (found.row_length, found.num_preview_tokens, found.inner_size, found.neighbours) == (
        ROW,
        PREVIEW,
        16,
        GRID_NEIGHBOURS,
    )
    with pytest.raises(UnsupportedMethod, match="--kind local"):
        LocalRefinementModel.from_folder(tmp_path, lab(family="mistral").model)
    with pytest.raises(InvalidArgument, match="row=1"):
        LocalRefinementModel(made.model.config, row=1)
