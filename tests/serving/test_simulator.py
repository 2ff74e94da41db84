"""The simulator: small runs by hand, the same bytes by seed, and what metrics mean."""

import time

import numpy as np
import pytest

from meshc.cost.serving_iterations import IterationCost
from meshc.devices import device
from meshc.driver.served_shapes import served_model
from meshc.serving.comparing import Load, Setting, band, compared, simulated
from meshc.serving.group_counts import ByDoubling
from meshc.serving.lengths import Trace, arrival_seconds, drawn_lengths, requests_of
from meshc.serving.metrics import METRICS, Objective, measured
from meshc.serving.policies import policy
from meshc.serving.requests import Request
from meshc.serving.scheduler import Scheduler
from meshc.serving.simulator import Arrival, Simulator
from meshc.support.diagnostics import MeshcError
from meshc.support.workers import Processes

QWEN = served_model("qwen3-30b-a3b")
H100X2 = device("h100x2")
COST = IterationCost(QWEN, H100X2, 2)


def run(arrivals, chosen=None):
    chosen = chosen or policy("chunked")
    half = IterationCost(QWEN, H100X2, 1)
    costs = {"prefill": half, "decode": half} if chosen.disaggregated else {"all": COST}
    scheduler = Scheduler(chosen, COST.layer_costs(), 100_000)
    return Simulator(scheduler, costs, arrivals).run()


def setting(chosen, rate=1.3, requests=60, workload="arxiv", cv=1.0):
    load = Load(workload, rate, requests, cv)
    reading = 1 if chosen.disaggregated else 0
    return Setting(QWEN, H100X2, 2, chosen, load, Objective(10, 125), reading_gpus=reading)


def test_one_request_takes_the_time_of_its_iterations():
    found = run([Arrival(2.0, Request(0, 700, 3))])
    layers = range(48)
    first = COST.iteration(0, 0, [(0, 512)], layers).seconds
    first += COST.iteration(0, 0, [(512, 700)], layers, heads=1).seconds
    steps = [COST.iteration(1, n).seconds for n in (700, 701)]
    (trip,) = found.trips
    assert trip.first == pytest.approx(2.0 + first)
    assert trip.last == pytest.approx(2.0 + first + sum(steps))
    assert found.step_seconds == pytest.approx(steps)
    assert found.prefill_tokens == [512, 188]


def test_layered_prefill_takes_an_iteration_for_each_group():
    found = run([Arrival(0.0, Request(0, 2048, 1))], policy("layered"))
    groups = [range(a, a + 12) for a in range(0, 48, 12)]
    costs = [COST.iteration(0, 0, [(0, 2048)], g, heads=g.stop == 48) for g in groups]
    assert found.trips[0].first == pytest.approx(sum(c.seconds for c in costs))
    assert found.expert_bytes == pytest.approx(sum(c.expert_bytes for c in costs))
    assert found.joules == pytest.approx(sum(c.joules for c in costs))


def test_a_request_beside_another_decodes_without_a_stall():
    found = run([Arrival(0.0, Request(0, 100, 30)), Arrival(0.05, Request(1, 3000, 2))])
    assert sum(found.step_requests) == 29 + 1
    assert max(found.step_seconds) < 0.06


def test_two_pools_keep_clocks_of_their_own():
    """A long prompt is read while another request decodes, and joins it in the middle."""
    arrivals = [Arrival(0.0, Request(0, 600, 400)), Arrival(0.1, Request(1, 20_000, 3))]
    found = run(arrivals, policy("disaggregated"))
    half = IterationCost(QWEN, H100X2, 1)
    assert max(found.step_seconds) < 1.5 * half.iteration(2, 21_000).seconds
    early, late = found.trips
    moved = half.transfer_seconds(half.cache_bytes(600, 48))
    assert early.first_gap == pytest.approx(moved + half.iteration(1, 600).seconds)
    assert early.last > late.last > late.first and (early.steps, late.steps) == (399, 2)
    ends = found.step_ends[late.first_step]
    begun = ends - found.step_seconds[late.first_step]
    assert begun >= late.first + half.transfer_seconds(half.cache_bytes(20_000, 48)) - 1e-9
    assert found.step_requests[late.first_step] == 2 and sum(found.step_requests) == 401
    gaps = [early.first_gap, *found.step_seconds[1:]]
    gaps += [ends - late.first, found.step_seconds[late.first_step + 1]]
    values = measured(found, Objective(10, 125))
    assert values["tbt_mean_ms"] == pytest.approx(1e3 * np.mean(gaps))
    assert values["tbt_std_ms"] == pytest.approx(1e3 * np.std(gaps))


def test_metrics_of_a_run_by_hand():
    found = run([Arrival(0.0, Request(0, 10, 4)), Arrival(100.0, Request(1, 10, 4))])
    values = measured(found, Objective(1.0, 50.0))
    assert set(values) == set(METRICS)
    gaps = [
        s for s, n in zip(found.step_seconds, found.step_requests, strict=True) for _ in range(n)
    ]
    assert values["tbt_mean_ms"] == pytest.approx(1e3 * np.mean(gaps))
    assert values["tbt_std_ms"] == pytest.approx(1e3 * np.std(gaps))
    assert values["tbt_p99_ms"] == pytest.approx(1e3 * max(gaps))
    assert values["slo_attainment"] == 1 and values["jain"] == pytest.approx(1, abs=1e-6)
    assert values["decode_batch_mean"] == 1
    tokens = 2 * 14
    assert values["energy_mj_per_token"] == pytest.approx(1e3 * found.joules / tokens)
    idle = COST.idle_joules(found.seconds)
    assert found.joules > idle > 0.9 * found.joules  # nearly all of the time nothing happened


@pytest.mark.parametrize(("ttft", "tbt", "kept"), [(10, 125, 1.0), (1e-3, 125, 0.0), (10, 1, 0.0)])
def test_a_request_keeps_its_objective_only_with_every_token(ttft, tbt, kept):
    found = run([Arrival(0.0, Request(0, 900, 5)), Arrival(9.0, Request(1, 900, 5))])
    assert measured(found, Objective(ttft, tbt))["slo_attainment"] == kept


def test_one_long_gap_spoils_only_those_who_waited():
    """A whole prompt in one iteration makes the one who decodes wait, not itself."""
    arrivals = [Arrival(0.0, Request(0, 10, 40)), Arrival(0.05, Request(1, 8000, 2))]
    found = run(arrivals, policy("combined", 8192, ByDoubling(1)))
    assert measured(found, Objective(10, 100))["slo_attainment"] == 0.5


@pytest.mark.parametrize("name", ["chunked", "layered", "combined", "disaggregated"])
def test_the_same_seed_gives_the_same_run(name):
    mine = setting(policy(name))
    assert simulated(mine, 7) == simulated(mine, 7)
    assert simulated(mine, 7) != simulated(mine, 8)


def test_processes_do_not_change_results():
    plan = [setting(policy("chunked"), requests=20), setting(policy("layered"), requests=20)]
    assert compared(plan, range(3)) == compared(plan, range(3), Processes(2))


def test_the_order_of_equal_arrivals_is_that_of_names():
    arrivals = [Arrival(1.0, Request(n, 400, 2)) for n in range(4)]
    forward, backward = run(arrivals), run(arrivals[::-1])
    assert forward.trips == backward.trips[::-1]


def test_a_band_is_of_quantiles():
    found = band([float(n) for n in range(101)])
    assert (found.mean, found.low, found.high) == (50, 5, 95)


def test_a_thousand_requests_in_five_seconds():
    """Processor time, so that others on the machine do not count; the load is that of the paper."""
    begun = time.process_time()
    simulated(setting(policy("combined", groups=ByDoubling(16)), 1.3, 1000), 1)
    assert time.process_time() - begun < 5


# --- what comes


def test_drawn_lengths_have_the_published_moments():
    random = np.random.default_rng(3)
    prompts, answers = np.array(drawn_lengths("arxiv", 40_000, random)).T
    assert prompts.mean() == pytest.approx(9194, rel=0.01)
    assert prompts.std() == pytest.approx(5754, rel=0.02)
    assert np.quantile(prompts, 0.9) == pytest.approx(17152, rel=0.02)
    assert answers.mean() == pytest.approx(231, rel=0.01)
    assert answers.std() == pytest.approx(104, rel=0.03)
    prompts, answers = np.array(drawn_lengths("sharegpt", 40_000, random)).T
    assert prompts.mean() == pytest.approx(2340, rel=0.02)
    assert prompts.std() == pytest.approx(2088, rel=0.02)
    assert np.quantile(prompts, 0.9) == pytest.approx(5696, rel=0.03)
    assert answers.mean() == pytest.approx(438, rel=0.02)
    assert answers.std() == pytest.approx(265, rel=0.02)


@pytest.mark.parametrize("cv", [0.3, 1.0, 1.83])
def test_gaps_of_arrivals(cv):
    gaps = np.diff(arrival_seconds(50_000, 2.5, cv, np.random.default_rng(1)))
    assert gaps.mean() == pytest.approx(0.4, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_a_timed_trace_comes_when_it_says():
    trace = Trace(((5, 2), (6, 3), (7, 1)), (10.0, 10.5, 30.0))
    found = requests_of(trace, 2, None, 1.0, np.random.default_rng(0))
    assert found == [Arrival(0.0, Request(0, 5, 2)), Arrival(0.5, Request(1, 6, 3))]
    drawn = requests_of(trace, 9, 4.0, 1.0, np.random.default_rng(0))
    assert {(a.request.prompt_tokens, a.request.output_tokens) for a in drawn} <= set(trace.pairs)


def test_a_load_without_times_is_refused():
    for workload in ("arxiv", Trace(((5, 2),))):
        with pytest.raises(MeshcError, match="when requests come"):
            requests_of(workload, 2, None, 1.0, np.random.default_rng(0))
