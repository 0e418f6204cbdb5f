"""Capacity on paper: closed forms, Little's law, monotonicity, and the numbers of accelerators that follow."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polydraft.apps.bench.plan.capacity import (
    ServiceCosts,
    StepCost,
    batch_rate,
    closed_loop_rate,
    mean_batch,
    residence_seconds,
    saturated_rate,
    simulate,
)
from polydraft.apps.bench.plan.sizing import MAX_LOAD, offered_load, replicas_needed

STEP = 0.01
ONE_ROW = ServiceCosts("ar", 1, (StepCost(1, 0, STEP, 1.0),), 0.0, 0.0, 0.0, (50,))
BATCHED = ServiceCosts(
    "eagle2", 8, (StepCost(1, 12, 0.010, 4.0), StepCost(8, 6, 0.024, 3.0)), 0.02, 0.01, 0.005, (40, 60, 110)
)


@st.composite
def service_costs(draw: st.DrawFn) -> ServiceCosts:
    """Draw costs whose steps take longer with more rows, and less long for each."""
    seconds = draw(st.floats(1e-3, 0.1))
    slope, tau, shrink = draw(st.floats(0, 1)), draw(st.floats(1, 8)), draw(st.floats(0.5, 1))
    steps = tuple(
        StepCost(rows, 0, seconds * (1 + slope * (rows - 1) / 8), max(1.0, tau * shrink ** (rows / 16)))
        for rows in (1, 2, 4, 8)
    )
    serial = draw(st.floats(0, 0.05))
    return ServiceCosts("drawn", 8, steps, serial, serial / 2, draw(st.floats(0, 0.05)), (32, 64))


@pytest.mark.parametrize("load", [0.2, 0.5, 0.7])
def test_one_row_waits_as_in_m_d_1(load: float) -> None:
    service = 50 * STEP
    simulated = simulate(ONE_ROW, 1, load / service, requests=40_000)
    assert simulated.latency.mean == pytest.approx(service * (1 + load / (2 * (1 - load))), rel=0.03)
    assert simulated.utilisation == pytest.approx(load, rel=0.02)
    assert simulated.first.mean == pytest.approx(simulated.latency.mean - 49 * STEP)


def test_m_g_1_waits_longer_with_spread_lengths() -> None:
    costs, rate = replace(ONE_ROW, tokens=(20, 80)), 1.0
    second_moment = (0.2**2 + 0.8**2) / 2
    wait = rate * second_moment / (2 * (1 - rate * 0.5))  # Pollaczek and Khinchine
    assert simulate(costs, 1, rate, requests=40_000).latency.mean == pytest.approx(0.5 + wait, rel=0.03)


def test_lone_request_takes_its_parts() -> None:
    costs = replace(BATCHED, tokens=(60,))
    alone = 60 / 4 * 0.010 + 0.02 + 0.01
    simulated = simulate(costs, 8, 1e-6, requests=50)
    assert residence_seconds(costs, 1) == pytest.approx(alone)
    assert simulated.latency.p95 == pytest.approx(alone + 0.005)
    assert simulated.first.p50 == pytest.approx(0.02 + 0.010 + 0.005)


def test_simulated_rows_are_rate_times_latency() -> None:
    rate = 0.5 * saturated_rate(BATCHED, 64)
    simulated = simulate(replace(BATCHED, outside_seconds=0.0), 64, rate, requests=20_000)
    assert simulated.rows == pytest.approx(rate * simulated.latency.mean, rel=0.05)  # nobody waits for a row


def test_saturated_simulation_reaches_the_capacity() -> None:
    capacity, requests = saturated_rate(BATCHED, 8), 4000
    flooded = simulate(BATCHED, 8, 100 * capacity, requests=requests)
    seconds = 2 * requests / capacity  # of the last request, whose latency is the whole run
    assert flooded.utilisation == pytest.approx(1, abs=1e-3)
    assert flooded.latency.p50 == pytest.approx(0.55 * requests / capacity, rel=0.03) and flooded.latency.p95 < seconds


def test_closed_loop_is_clients_over_latency() -> None:
    for clients in (1, 2, 5, 8):
        costs = replace(BATCHED, outside_seconds=0.0)
        rate = closed_loop_rate(costs, 8, clients)
        assert clients / rate == pytest.approx(residence_seconds(costs, clients))
    assert closed_loop_rate(BATCHED, 8, 40) == saturated_rate(BATCHED, 8)
    thinking = closed_loop_rate(BATCHED, 8, 4)
    inside = 4 - thinking * BATCHED.outside_seconds
    assert thinking == pytest.approx(batch_rate(BATCHED, inside))


@settings(max_examples=30, deadline=None)
@given(service_costs(), st.floats(0.05, 0.45))
def test_more_rate_means_longer_batches_and_latency(costs: ServiceCosts, load: float) -> None:
    capacity = saturated_rate(costs, 8)
    low, high = load * capacity, 2 * load * capacity
    batches = [mean_batch(costs, 8, rate) for rate in (low, high)]
    assert batches[0] is not None and batches[1] is not None and batches[0] < batches[1] <= 8
    assert batch_rate(costs, batches[1]) == pytest.approx(high, rel=1e-3)
    quiet, busy = (simulate(costs, 8, rate, requests=400) for rate in (low, high))
    assert quiet.latency.mean <= busy.latency.mean * 1.02 and quiet.utilisation < busy.utilisation * 1.02


@settings(max_examples=30, deadline=None)
@given(service_costs(), st.floats(1.0, 4.0))
def test_faster_steps_and_drafts_raise_capacity(costs: ServiceCosts, gain: float) -> None:
    drafted = replace(costs, steps=tuple(replace(step, tau=step.tau * gain) for step in costs.steps))
    assert saturated_rate(drafted, 8) >= saturated_rate(costs, 8)
    assert saturated_rate(drafted, 8) <= gain * saturated_rate(costs, 8) * (1 + 1e-9)  # prefill gains nothing


def test_rate_beyond_capacity_has_no_latency() -> None:
    offered = offered_load(BATCHED, 8, 10 * saturated_rate(BATCHED, 8), 4, price=3.6)
    assert offered.load == pytest.approx(2.5) and offered.batch is None and offered.simulated is None
    assert offered.cost == pytest.approx(1000 * 4 * 0.001 / offered.capacity)  # of those that are served


def test_thousand_replicas_equal_one_of_a_thousandth() -> None:
    rate = 0.6 * saturated_rate(BATCHED, 8)
    one, thousand = offered_load(BATCHED, 8, rate, 1, 2.0), offered_load(BATCHED, 8, 1000 * rate, 1000, 2.0)
    assert thousand.simulated is not None and one.simulated is not None
    assert thousand.simulated.latency.p95 == pytest.approx(one.simulated.latency.p95)
    assert thousand.cost == pytest.approx(one.cost) and thousand.capacity == pytest.approx(1000 * one.capacity)


def test_needed_replicas_are_the_fewest() -> None:
    rate = 40 * saturated_rate(BATCHED, 8)
    assert replicas_needed(BATCHED, 8, rate) == math.ceil(40 / MAX_LOAD)
    target = 1.15 * simulate(BATCHED, 8, rate / 1000).latency.p95
    needed = replicas_needed(BATCHED, 8, rate, target)
    assert needed is not None and needed > 50
    quantiles = [simulate(BATCHED, 8, rate / count).latency.p95 for count in (needed, needed - 1)]
    assert quantiles[0] <= target < quantiles[1]
    assert replicas_needed(BATCHED, 8, rate, 0.5 * target) is None
