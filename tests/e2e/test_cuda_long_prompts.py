"""Prompts of a program that reads many tokens of them by kernels and what is left by tasks."""

import numpy as np
import pytest
from layer_kinds import BOUND, Kind, compiled, expected, weights_of
from reduced import only
from test_cuda_persistent import KeptKeys

from meshc.backends import cuda
from meshc.backends.cuda import CpuMachine, LanguageModel, from_json, gpu_steps
from meshc.backends.cuda.executor import CXX, QUICK
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

KINDS = (Kind(2, 4, 2, 96, 10000.0),)
CAPACITY, AT_ONCE = 160, 64


class Watched(CpuMachine):
    """Remembers the first kernel of every run."""

    ran: list[str]

    def run(self, launches):
        self.ran.append(launches[0][0].kernel)
        super().run(launches)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Kernels of 64 tokens, two of whose chunks and a half fit the caches."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gpu_steps, "MOST_CHUNK", AT_ONCE)
        patched.setattr(gpu_steps, "most_chunk", lambda _: AT_ONCE)
        return compiled(tmp_path_factory.mktemp("long"), KINDS, seq=CAPACITY, batch=2)


def model_of(result):
    program = from_json(result.files["manifest.json"])
    machine = Watched(program.kernels, result.files, toolchain=QUICK)
    model = LanguageModel(program, machine, weights_of(KINDS))
    machine.ran = []
    return model, machine


def tokens_of(count, seed=0):
    return [int(n) for n in np.random.default_rng(seed).integers(0, 40, count)]


RUNS = {
    150: ["chunk_embed", "chunk_embed", "prompt", "prompt", "step"],
    128: ["chunk_embed", "chunk_embed"],
    129: ["chunk_embed", "chunk_embed", "step"],
    63: ["prompt", "prompt", "prompt", "prompt", "step"],
    64: ["chunk_embed"],
}


@pytest.mark.parametrize("count", only(RUNS, 150))
def test_who_reads_what_is_left_of_a_prompt(result, count):
    model, machine = model_of(result)
    ids = tokens_of(count)
    wanted = expected(KINDS, weights_of(KINDS), ids)[-1]
    found = model.prefill(ids, 1)
    assert machine.ran == RUNS[count]
    assert np.abs(found - wanted).max() <= BOUND * np.abs(wanted).max()


def test_the_caches_behind_kernels_and_tasks_are_those_of_steps(result):
    """A step behind both, of two requests at once."""
    model, _ = model_of(result)
    prompts = [tokens_of(100, 1), tokens_of(70, 2)]
    for request, ids in enumerate(prompts):
        model.prefill(ids, request, [100, 0])
    found = model.step([3, 17], [100, 70])
    for row, ids, token in zip(found, prompts, (3, 17), strict=True):
        wanted = expected(KINDS, weights_of(KINDS), [*ids, token])[-1]
        assert np.abs(row - wanted).max() <= BOUND * np.abs(wanted).max()


def test_what_the_program_chooses_behind_long_prompts_is_what_the_host_does(result):
    prompts = [tokens_of(100, 3), tokens_of(20, 4)]
    model, _ = model_of(result)
    wanted = model.generate_all(prompts, 5, lambda *_: None)
    model, machine = model_of(result)
    assert model.generate_chosen(prompts, 5, lambda *_: None, steps=4) == wanted
    assert "chunk_embed" in machine.ran and "prompt" in machine.ran


def test_all_weights_are_there_once(result, tmp_path):
    program = from_json(result.files["manifest.json"])
    short = from_json(compiled(tmp_path, KINDS, seq=100, batch=2).files["manifest.json"])
    assert [reader.inputs for reader in program.prefills] == ["chunk", "prompt"]
    assert [reader.inputs for reader in short.prefills] == ["prompt"]
    assert cuda.memory_of(program).weights == cuda.memory_of(short).weights


def test_a_model_of_no_such_kernel_has_its_prompts_read_by_tasks(tmp_path):
    result = compiled(tmp_path, (KeptKeys(1, 2, 2, 96, 100.0),), seq=CAPACITY)
    (remark,) = (m for m in result.report.messages if m.code == "prompt-of-kernels")
    assert "tasks read prompts" in remark.message
    long, short = from_json(result.files["manifest.json"]).prefills
    assert (long.inputs, long.tokens, long.least) == ("long_prompt", 64, 17)
    assert (short.inputs, short.tokens, short.least) == ("prompt", 16, 1)


def test_a_manifest_whose_readers_ask_for_what_they_do_not_read_is_refused(result):
    text = result.files["manifest.json"].replace('"least": 64', '"least": 65')
    with pytest.raises(MeshcError, match="no-program"):
        from_json(text)
