"""Windows that follow their neighbours: the network reads the right ones, learns what they tell, and mends guesses."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from polydraft.core.decode import start
from polydraft.core.drafters.jacobi.local import GRID, LINE, LocalDrafter, LocalNetwork
from polydraft.core.drafters.jacobi.window import Initial, JacobiDrafter
from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.core.law.sampling import Sampling
from polydraft.core.training.examples import Examples
from polydraft.core.training.local import surprise

from ..conftest import VOCAB, chosen

ROW, PREVIEW = 5, 3
EVERY = torch.ones(VOCAB, dtype=torch.bool)


def network(made, std: float = 0.3, row: int = ROW, preview: int = PREVIEW) -> LocalNetwork:
    """Whatever it says, it says much of it."""
    torch.manual_seed(3)
    found = LocalNetwork(made.model.config, row=row, preview=preview, hidden=16)
    for parameter in found.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return found


def around(drafter: LocalDrafter, ids: torch.Tensor, begins: int) -> torch.Tensor:
    """What is read around places of what is generated, from `begins` on: `[B, W + 1, H]`."""
    back, t = drafter.network.back, begins + torch.arange(drafter.window + 1).expand(len(ids), -1)
    line = torch.nn.functional.pad(ids, (back, 0))[:, begins : begins + back]
    return drafter.read(line, ids[:, begins : begins + drafter.window], drafter.network.there(t))


@torch.inference_mode()
def reached(drafter: LocalDrafter, begins: int) -> list[list[list[bool]]]:
    """Of every place, in both rows: where something else is read once another id stands in it, from `begins` on."""
    ids, found = torch.randint(VOCAB, (2, begins + drafter.window)), []
    read = around(drafter, ids, begins)
    for place in range(begins + drafter.window):
        other = ids.clone()
        other[:, place] = (other[:, place] + 1) % VOCAB
        found.append((around(drafter, other, begins) != read).any(-1).tolist())
    return found


def test_neighbours_are_those_of_the_grid(lab):
    """Another id changes what is read at its own neighbours' places and nowhere else."""
    made, window, begins = lab(), 12, 4
    drafter = LocalDrafter(network(made), made.target(), EVERY, window, 0.7, 2)
    for place, changed in enumerate(reached(drafter, begins)):
        at = divmod(place - PREVIEW, ROW)
        wanted = [
            place >= PREVIEW
            and (t - PREVIEW) // ROW - at[0] in (0, 1)
            and ((t - PREVIEW) // ROW - at[0], (t - PREVIEW) % ROW - at[1]) in GRID
            for t in range(begins, begins + window + 1)
        ]
        assert changed == [wanted, wanted], place


def test_neighbours_without_rows_are_those_before(lab):
    """Six of them, or as many as there are."""
    made, window, begins = lab(), 9, 2
    drafter = LocalDrafter(network(made, row=0, preview=1), made.target(), EVERY, window, 0.7, 2)
    for place, changed in enumerate(reached(drafter, begins)):
        wanted = [place >= 1 and (0, t - place) in LINE for t in range(begins, begins + window + 1)]
        assert changed == [wanted, wanted], place


@pytest.mark.parametrize("row", [ROW, 0])
def test_it_drafts_with_what_it_learns_with(lab, monkeypatch, row):
    """The loss of a sequence is that of the laws that a draft fills new places from, where both are as precise."""
    monkeypatch.setattr("polydraft.core.training.local.mixed", lambda device: nullcontext())
    made, window = lab(), 14
    student, target = network(made, row=row), made.target()
    drafter = LocalDrafter(student, target, EVERY, window, 0.7, 1)
    said = torch.randint(VOCAB, (2, PREVIEW + window))
    examples = Examples.join([(1, 2), (3, 4, 5, 6)], list(said))
    with torch.inference_mode():
        logits = drafter.says(around(drafter, said, PREVIEW)[:, :-1])
        nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), said[:, PREVIEW:].flatten())
    assert surprise(target, student, examples).item() == pytest.approx(nats.item(), abs=1e-4)


def test_a_law_whose_neighbours_stay_says_what_it_said(lab, run):
    """What was chosen behind a filter is chosen again: nothing is lost to moving laws."""
    made = lab()
    blind = network(made, std=0.0)  # a network that tells nothing moves nothing
    prompts = chosen(made.prompts, Sampling(top_k=7))
    local = LocalDrafter(blind, made.target(), EVERY, 4, 1.0, 3)
    still = JacobiDrafter(4, Initial("random", EVERY), restart=False)
    moved, unmoved = run(made.method(local), prompts), run(made.method(still), prompts)
    assert moved.same(unmoved) and moved.tau == pytest.approx(unmoved.tau, abs=0.15)


@pytest.mark.parametrize(("temperature", "row"), [(0.0, ROW), (0.5, ROW), (1.5, 0), (1.0, 0)])
def test_guesses_of_another_temperature_change_no_token(lab, run, temperature, row):
    made = lab()
    prompts = chosen(made.prompts, Sampling(temperature=0.9))
    plain = run(made.method(), prompts)
    drafter = LocalDrafter(network(made, row=row), made.target(), EVERY, 6, 0.7, 2, temperature)
    assert run(made.method(drafter), prompts).same(plain)


def test_cold_guesses_are_the_likeliest(lab):
    """At 0 the tape has no say, at 1 it has its own; where the law itself is cold, guesses are too."""
    made = lab()

    def guesses(temperature: float, seed: int, heat: float = 1.0) -> torch.Tensor:
        drafter = LocalDrafter(network(made), made.target(), EVERY, 6, 0.7, 2, temperature)
        prompts = [replace(prompt, seed=seed) for prompt in chosen(made.prompts, Sampling(temperature=heat))]
        batch = start(made.method(drafter), prompts)
        with torch.inference_mode():
            drawn = drafter.draft(batch.state, batch.drafts, made.method().sampler, batch.noise)
        return drawn.tokens[:, PREVIEW:]

    likeliest = guesses(0.0, 1)
    assert torch.equal(likeliest, guesses(0.0, 2)) and not torch.equal(guesses(1.0, 1), guesses(1.0, 2))
    assert torch.equal(likeliest, guesses(1.0, 1, heat=1e-4)) and not torch.equal(likeliest, guesses(1.0, 1))


@pytest.mark.parametrize("row", [ROW, 0])
def test_it_learns_and_mends(lab, run, row):
    """On sequences learnt by heart, more guesses are right than a target alone gets right."""
    made = lab()
    prompts = chosen([p for p in made.prompts for _ in range(4)], Sampling(temperature=0))
    prompts = [type(p)(p.branches, 40, seed, sampling=p.sampling) for seed, p in enumerate(prompts)]
    plain = run(made.method(), prompts)
    torch.manual_seed(0)
    student = LocalNetwork(made.model.config, row=row, hidden=32)
    optimiser = torch.optim.AdamW(student.parameters(), lr=1e-2)
    examples = Examples.join([p.branches[0] for p in prompts], plain.outputs)
    for _ in range(150):
        optimiser.zero_grad()
        loss = surprise(made.target(), student, examples)
        loss.backward()
        optimiser.step()
    jacobi = run(made.method(JacobiDrafter(6, Initial("left-law", EVERY))), prompts)
    local = run(made.method(LocalDrafter(student, made.target(), EVERY, 6, 0.7, 3)), prompts)
    assert local.same(plain) and jacobi.same(plain)
    assert local.tau > 1.15 * jacobi.tau


def test_networks_of_other_targets_and_grids_are_refused(lab, tmp_path):
    made = lab()
    network(made).save_pretrained(tmp_path)
    found = LocalNetwork.from_folder(tmp_path, made.model)
    assert (found.row, found.preview, found.hidden, found.seen) == (ROW, PREVIEW, 16, GRID)
    with pytest.raises(UnsupportedMethod, match="--kind local"):
        LocalNetwork.from_folder(tmp_path, lab(family="mistral").model)
    with pytest.raises(InvalidArgument, match="row=1"):
        LocalNetwork(made.model.config, row=1)
