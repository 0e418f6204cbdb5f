"""Fit how much to draft to the machine: what a pass of N positions costs against what it commits."""

from __future__ import annotations

import statistics
import time

import torch

from polydraft.core.draft import Draft
from polydraft.core.target import CausalTarget, Prompt


def pass_seconds(target: CausalTarget, prompts: list[Prompt], nodes: list[int], repeats: int = 5) -> dict[int, float]:
    """t(N): median wall time of a target pass over root and N drafted nodes, by N."""
    state, _ = target.prefill(prompts, nodes=max(nodes))
    seconds: dict[int, list[float]] = {count: [] for count in nodes}
    for repeat in range(repeats + 1):
        for count in nodes:
            draft = Draft.of_chain(torch.zeros(len(prompts), count, dtype=torch.long, device=target.device))
            start = time.perf_counter()
            target.score(state, draft).logits.sum().item()  # waits for the device
            if repeat:  # the first round warms up
                seconds[count].append(time.perf_counter() - start)
    return {count: statistics.median(times) for count, times in seconds.items()}


def best_window(committed: dict[int, float], seconds: dict[int, float]) -> int:
    """The window that commits most tokens a second: `committed[N]` is τ measured with N drafted tokens."""
    return max(committed, key=lambda count: committed[count] / seconds[count])
