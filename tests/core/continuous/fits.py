"""Goodness of fit of draws: p-values, of which the smallest counts, times how many there are."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from scipy import stats
from torch import Tensor

GOOD = 1e-4  # above it draws are taken to fit
BAD = 1e-12  # below it they plainly do not


def bonferroni(found: Iterable[float]) -> float:
    """Return the smallest of several p-values, corrected as if it had been the only one; NaN is no fit."""
    values = [0.0 if np.isnan(value) else float(value) for value in found]
    return min(1.0, min(values) * len(values))


def normal_pvalue(draws: Tensor) -> float:
    """Return the p-value of independent standard normals: Kolmogorov-Smirnov and the first four moments."""
    x, count = draws.double().flatten().numpy(), draws.numel()
    # deviations of the means of x, x², x³ and x⁴
    wanted = ((x, 0, 1), (x**2, 1, 2), (x**3, 0, 15), (x**4, 3, 96))
    away = [(values.mean() - mean) / (variance / count) ** 0.5 for values, mean, variance in wanted]
    return bonferroni([stats.kstest(x, "norm").pvalue, *(2 * stats.norm.sf(abs(score)) for score in away)])


def same_distribution_pvalue(these: Tensor, those: Tensor) -> float:
    """Return the p-value of two samples `[S, K]` of one distribution: every coordinate and every product of two."""

    def statistics(sample: Tensor) -> Tensor:
        first, second = torch.triu_indices(sample.shape[1], sample.shape[1])
        return torch.cat([sample, sample[:, first] * sample[:, second]], 1).double()

    pairs = zip(statistics(these).T.numpy(), statistics(those).T.numpy(), strict=True)
    return bonferroni(stats.ks_2samp(one, other, method="asymp").pvalue for one, other in pairs)


def counts_pvalue(counts: Tensor, probs: Tensor) -> float:
    """Return the p-value of counts over bins of known probabilities (χ²)."""
    expected = probs.double().flatten() / probs.sum() * counts.sum()
    return float(stats.chisquare(counts.double().flatten().numpy(), expected.numpy()).pvalue)


def independence_pvalue(first: Tensor, second: Tensor, bins: int = 8) -> float:
    """Return the p-value of independent standard normals: correlation, and counts over equally likely cells (χ²)."""
    x, y = first.double().flatten(), second.double().flatten()
    correlation = float((x * y).mean() * len(x) ** 0.5)
    at = [(bins * torch.special.ndtr(value)).long().clamp(0, bins - 1) for value in (x, y)]
    cells = torch.bincount(at[0] * bins + at[1], minlength=bins**2)
    return bonferroni([2 * stats.norm.sf(abs(correlation)), counts_pvalue(cells, torch.ones(bins**2))])


def joint_pvalue(residuals: Tensor) -> float:
    """Return the p-value of independent standard normals `[S, T, C]`: each alone, and neighbouring pairs."""
    _, length, size = residuals.shape
    pvalues = [normal_pvalue(residuals[:, t, c]) for t in range(length) for c in range(size)]
    pvalues += [
        independence_pvalue(residuals[:, t, c], residuals[:, t + 1, d])
        for t in range(length - 1) for c in range(size) for d in range(size)
    ]  # fmt: skip
    pvalues += [
        independence_pvalue(residuals[:, t, c], residuals[:, t, d])
        for t in range(length) for d in range(size) for c in range(d)
    ]  # fmt: skip
    return bonferroni(pvalues)
