"""Latents that are not finite: a row of the target that has such ends alone, and those of a drafter do not matter."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from polydraft.core.continuous.coupled import CoupledVerifier
from polydraft.core.continuous.published import ContinuousSpeculative
from polydraft.core.decode import Method, decode, start_batch
from polydraft.core.errors import InvalidArgument
from polydraft.core.target.causal import PromptInputs
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier

from .fits import GOOD, joint_pvalue
from .lab import lab, prompts
from .maps import LinearChain, MapTarget, chain_drafter, generate_latents, standardised_residuals

DRAFTERS = [name for name in lab().drafters({}) if name != "oracle"]
VERIFIERS = {"tape": SharedNoiseVerifier(), "coupled": CoupledVerifier(), "cspd": ContinuousSpeculative(2)}
BAD = 0  # an id of no prompt, but of their padding
CASES = [("tape", name) for name in DRAFTERS] + [("coupled", "lm"), ("coupled", "eagle"), ("cspd", "lm")]


def decode_rows(method: Method, rows: list[PromptInputs]) -> tuple[list[Tensor], list[str], list]:
    """Return latents, finish reasons and errors of rows of one batch."""
    batch = start_batch(method, rows)
    for _ in decode(method, batch):
        pass
    return batch.outputs(), batch.finish_reasons(), [request.error for request in batch.requests_in_order()]


@pytest.mark.parametrize(("verifier", "name"), CASES)
def test_rows_next_to_a_broken_prompt_are_unchanged(verifier, name):
    made, rows = lab(), prompts(5)
    with torch.no_grad():
        made.model.get_input_embeddings().weight[BAD] = torch.nan
    assert not any(BAD in branch for prompt in rows for branch in prompt.branch_token_ids)
    drafter = made.drafters({})[name]
    broken = replace(
        rows[0], branch_token_ids=((1, BAD, rows[0].branch_token_ids[0][-1]), rows[0].branch_token_ids[1]), seed=3
    )
    apart, reasons, _ = decode_rows(made.method(drafter, False, VERIFIERS[verifier]), rows)
    found, why, errors = decode_rows(made.method(drafter, False, VERIFIERS[verifier]), [*rows[:2], broken, *rows[2:]])
    assert why.pop(2) == "impossible" and isinstance(errors[2], InvalidArgument) and not len(found.pop(2))
    assert why == reasons == ["length"] * 5
    assert all(torch.equal(one, other) for one, other in zip(found, apart, strict=True))


@pytest.mark.parametrize("name", ["lm", "eagle"])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_broken_drafter_changes_no_latent(name, number):
    made, rows = lab(), prompts(3)
    plain, _, _ = decode_rows(made.method(), rows)
    parts: list[nn.Module] = [made.student, made.student_head.inward, made.network]
    with torch.no_grad():
        for parameter in (parameter for part in parts for parameter in part.parameters()):
            parameter.fill_(number)
    found, reasons, _ = decode_rows(made.method(made.drafters({})[name]), rows)
    assert reasons == ["length"] * 3 and all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    for verifier in (CoupledVerifier(), ContinuousSpeculative(2)):
        found, reasons, _ = decode_rows(made.method(made.drafters({})[name], False, verifier), rows)
        assert reasons == ["length"] * 3 and all(latents.isfinite().all() for latents in found)


@dataclass(frozen=True)
class Torn(LinearChain):
    """Chain whose mean is NaN once x is far to one side."""

    def mean(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        made = super().mean(x, step, condition, scale)
        return torch.where(x[..., :1] > 0.5, torch.nan, made) if step else made


def test_coupling_with_sometimes_broken_drafter_is_exact():
    """Leaving out drafts that are not finite may not depend on the draw, or it would bias the result."""
    target = MapTarget(LinearChain())
    made = generate_latents(target, chain_drafter(target, Torn(shift=0.1)), CoupledVerifier(), 12_000)
    assert joint_pvalue(standardised_residuals(made.latents, target.chain)) > GOOD and 1.05 < made.tau < 2.4
