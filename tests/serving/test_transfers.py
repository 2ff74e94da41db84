"""Keys and values on their way from the GPUs that read prompts to those that continue them."""

import json

import pytest

from meshc.cli import main
from meshc.cost.nodes.iterations import NodeIterations
from meshc.cost.serving_iterations import IterationCost
from meshc.devices import device
from meshc.driver.served_shapes import served_model
from meshc.serving.metrics import Objective, measured
from meshc.serving.policies import policy
from meshc.serving.requests import Request
from meshc.serving.scheduler import Scheduler
from meshc.serving.simulator import Arrival, Simulator

QWEN = served_model("qwen3-30b-a3b")
NODE = device("h100x2")
ONE = IterationCost(QWEN, NODE, 1)
TOKEN = 2 * 4 * 128 * 2 * 48
"""Bytes of a token: keys and values of four heads of 128 lanes, two bytes each, in 48 layers."""


def link_seconds(size, gpus=1):
    """Arithmetic of its own: a message's start, and a share of the bytes for each link."""
    rate = NODE.real("words_per_cycle") * NODE.whole("word_bytes") * NODE.clock_hz
    return NODE.real("hop_cycles") / NODE.clock_hz + size / gpus / rate


def run(arrivals, streamed=False, chunk=8192, room=100_000, reading=None):
    chosen = policy("disaggregated", chunk)
    scheduler = Scheduler(chosen, ONE.layer_costs(), room, reading_tokens=reading)
    return Simulator(scheduler, {"prefill": ONE, "decode": ONE}, arrivals, streamed).run()


def test_prompts_go_one_behind_the_other():
    """Two prompts that are read together end at once; the second waits for the link."""
    found = run([Arrival(0.0, Request(n, 3000, 5)) for n in range(2)])
    first, second = found.trips
    each = link_seconds(3000 * TOKEN)
    assert first.first == second.first
    assert first.moved - first.first == pytest.approx(each)
    assert second.moved - second.first == pytest.approx(2 * each)
    values = measured(found, Objective(10, 125))
    assert values["kv_transfer_mean_s"] == pytest.approx(1.5 * each)
    assert values["kv_transfer_bytes"] == 6000 * TOKEN == found.moved_bytes


def test_chunks_that_leave_at_once_are_there_sooner():
    """All but the last chunk travel while the next ones are read."""
    arrivals = [Arrival(0.0, Request(0, 4096 + 100, 5))]
    whole, streamed = (run(arrivals, s, 1024).trips[0] for s in (False, True))
    assert whole.first == streamed.first
    assert whole.moved - whole.first == pytest.approx(link_seconds(4196 * TOKEN))
    assert streamed.moved - streamed.first == pytest.approx(link_seconds(100 * TOKEN))


def test_as_many_bytes_travel_either_way():
    arrivals = [Arrival(0.01 * n, Request(n, 700 + n, 2 + n % 2)) for n in range(12)]
    arrivals.append(Arrival(0.2, Request(12, 900, 1)))  # nobody continues it, so it stays
    whole, streamed = (run(arrivals, s, 512) for s in (False, True))
    sent = sum(a.request.prompt_tokens for a in arrivals[:-1]) * TOKEN
    assert whole.moved_bytes == streamed.moved_bytes == sent
    assert whole.trips[-1].moved is None


def test_energy_of_reading_and_writing():
    """Beside that of the same run whose links take nothing of it."""
    found = run([Arrival(0.0, Request(0, 3000, 2))])
    prompt = ONE.iteration(0, 0, [(0, 3000)], range(48), 1)
    step = ONE.iteration(1, 3000)
    waiting = 2 * found.seconds - prompt.seconds - step.seconds
    moved = 2 * 3000 * TOKEN * NODE.real("joules_per_byte")
    assert found.joules == pytest.approx(
        prompt.joules + step.joules + ONE.idle_joules(waiting) + moved
    )


def test_a_prompt_keeps_its_room_until_it_has_been_sent():
    """Of room for one prompt, the second is read when the first one's keys have left."""
    arrivals = [Arrival(0.0, Request(n, 3000, 5)) for n in range(2)]
    found = run(arrivals, reading=3500)
    first, second = found.trips
    read = ONE.iteration(0, 0, [(0, 3000)], range(48), 1).seconds
    assert second.first == pytest.approx(first.moved + read)


@pytest.mark.parametrize("gpus", [2, 4])
def test_each_gpu_sends_its_share(gpus):
    node = device("h100x8")
    costs = NodeIterations(served_model("llama-3.3-70b"), node, gpus, "baseline")
    size = costs.cache_bytes(1000, 80)
    assert size == 1000 * 80 * 2 * 8 * 128 * 2
    rate = node.real("link_bytes_per_second")
    assert costs.transfer_seconds(size) == pytest.approx(
        node.real("collective_seconds") + size / gpus / rate
    )


def schedule(capsys, *words, code=0):
    assert main(["schedule", *words]) == code
    return capsys.readouterr()


QUICK = ("--rate", "2", "--requests", "30", "--seeds", "1", "--policy", "disaggregated")


def test_pools_of_the_command(capsys):
    words = ("llama-3-8b", "--device", "h100x8", *QUICK, "--json")
    half, more, streamed = (
        json.loads(schedule(capsys, *words, *given).out)
        for given in ((), ("--prefill-gpus", "6"), ("--kv-transfer", "streamed", "--chunk", "512"))
    )
    assert (half["prefill_gpus"], half["kv_transfer"]) == (4, "whole")
    assert (more["prefill_gpus"], streamed["kv_transfer"]) == (6, "streamed")
    assert more["ttft_mean_s"]["mean"] < half["ttft_mean_s"]["mean"]
    assert more["tbt_mean_ms"]["mean"] > half["tbt_mean_ms"]["mean"]
    waits = [found["kv_transfer_mean_s"]["mean"] for found in (half, streamed)]
    assert 0 < waits[1] < waits[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--policy", "chunked", "--kv-transfer", "whole"), "two pools"),
        (("--policy", "chunked", "--prefill-gpus", "1"), "two pools"),
        (("--auto", "--prefill-gpus", "1"), "two pools"),
        (("--policy", "disaggregated", "--prefill-gpus", "0"), "--prefill-gpus is 0"),
        (("--policy", "disaggregated", "--prefill-gpus", "2"), "not 1 to 1"),
        (("--policy", "disaggregated", "--gpus", "1"), "no two pools"),
    ],
)
def test_pools_that_are_none_are_refused(capsys, words, said):
    assert said in schedule(capsys, "qwen3-30b-a3b", "--rate", "1", *words, code=1).err


def test_two_pools_have_flags_of_their_own_beside_others(capsys):
    words = ("--policy", "chunked", "--policy", "disaggregated", "--kv-transfer", "streamed")
    text = schedule(
        capsys, "qwen3-30b-a3b", "--rate", "1", "--requests", "5", "--seeds", "1", *words
    )
    assert "chunked" in text.out and "disaggregated" in text.out
