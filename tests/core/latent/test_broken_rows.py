"""Latents that are not numbers: a row of the target that says such ends alone, and a drafter's do not matter."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from polydraft.core.decode import Method, decode, start
from polydraft.core.errors import InvalidArgument
from polydraft.core.latent.coupled import CoupledVerifier
from polydraft.core.latent.published import ContinuousSpeculative
from polydraft.core.target import Prompt
from polydraft.core.verify.tape import TapeVerifier

from .fits import GOOD, joint
from .lab import lab, prompts
from .maps import Line, MapTarget, drawn, reader, residuals

DRAFTERS = [name for name in lab().drafters({}) if name != "oracle"]
VERIFIERS = {"tape": TapeVerifier(), "coupled": CoupledVerifier(), "cspd": ContinuousSpeculative(2)}
BAD = 0  # an id of no prompt, but of their padding
CASES = [("tape", name) for name in DRAFTERS] + [("coupled", "lm"), ("coupled", "eagle"), ("cspd", "lm")]


def ended(method: Method, rows: list[Prompt]) -> tuple[list[Tensor], list[str], list]:
    """Latents, reasons and errors of rows side by side."""
    batch = start(method, rows)
    for _ in decode(method, batch):
        pass
    return batch.outputs(), batch.finish_reasons(), [request.error for request in batch.in_order()]


@pytest.mark.parametrize(("verifier", "name"), CASES)
def test_rows_beside_a_broken_prompt_keep_their_latents(verifier, name):
    made, rows = lab(), prompts(5)
    with torch.no_grad():
        made.model.get_input_embeddings().weight[BAD] = torch.nan
    assert not any(BAD in branch for prompt in rows for branch in prompt.branches)
    drafter = made.drafters({})[name]
    broken = replace(rows[0], branches=((1, BAD, rows[0].branches[0][-1]), rows[0].branches[1]), seed=3)
    apart, reasons, _ = ended(made.method(drafter, False, VERIFIERS[verifier]), rows)
    found, why, errors = ended(made.method(drafter, False, VERIFIERS[verifier]), [*rows[:2], broken, *rows[2:]])
    assert why.pop(2) == "impossible" and isinstance(errors[2], InvalidArgument) and not len(found.pop(2))
    assert why == reasons == ["length"] * 5
    assert all(torch.equal(one, other) for one, other in zip(found, apart, strict=True))


@pytest.mark.parametrize("name", ["lm", "eagle"])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_broken_drafter_changes_no_latent(name, number):
    made, rows = lab(), prompts(3)
    plain, _, _ = ended(made.method(), rows)
    parts: list[nn.Module] = [made.student, made.student_head.inward, made.network]
    with torch.no_grad():
        for parameter in (parameter for part in parts for parameter in part.parameters()):
            parameter.fill_(number)
    found, reasons, _ = ended(made.method(made.drafters({})[name]), rows)
    assert reasons == ["length"] * 3 and all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    for verifier in (CoupledVerifier(), ContinuousSpeculative(2)):
        found, reasons, _ = ended(made.method(made.drafters({})[name], False, verifier), rows)
        assert reasons == ["length"] * 3 and all(latents.isfinite().all() for latents in found)


@dataclass(frozen=True)
class Torn(Line):
    """A chain that says nothing of where it has come far to one side."""

    def mean(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        made = super().mean(x, step, condition, scale)
        return torch.where(x[..., :1] > 0.5, torch.nan, made) if step else made


def test_coupled_latents_keep_their_law_with_a_drafter_that_breaks_at_times():
    """Whether a draft is whole depends on what it drew: to leave out those that are not would bias the rest."""
    target = MapTarget(Line())
    made = drawn(target, reader(target, Torn(shift=0.1)), CoupledVerifier(), 12_000)
    assert joint(residuals(made.latents, target.chain)) > GOOD and 1.05 < made.tau < 2.4
