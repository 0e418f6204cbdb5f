"""Learning rates: every parameter has its own factor of the scheduled rate."""

from __future__ import annotations

import torch
from torch import nn

from polydraft.apps.lab.training.optimizer import apply_gradients, muon_and_adamw, set_rate


def test_muon_and_adamw_apply_rate_factors() -> None:
    """With equal weights and gradients a layer with factor 4 moves four times as far, matrix and bias."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"slow": nn.Linear(4, 4), "quick": nn.Linear(4, 4)})
    model["quick"].load_state_dict(model["slow"].state_dict())
    before = {name: weight.clone() for name, weight in model["slow"].named_parameters()}
    optimisers = muon_and_adamw(model, decay=0.0, factor=lambda name: 4.0 if name.startswith("quick") else 1.0)
    set_rate(optimisers, 1e-3)
    x = torch.randn(8, 4)
    (model["slow"](x).square().sum() + model["quick"](x).square().sum()).backward()
    apply_gradients(optimisers, model)
    moved = {part: {n: w - before[n] for n, w in model[part].named_parameters()} for part in model}
    for name in before:
        assert moved["slow"][name].abs().sum() > 0
        torch.testing.assert_close(moved["quick"][name], 4 * moved["slow"][name], rtol=1e-3, atol=1e-6)
    weights = {id(weight) for optimiser in optimisers for group in optimiser.param_groups for weight in group["params"]}
    assert weights == {id(weight) for weight in model.parameters()}
