"""The machine code of emitted kernels: what they reach before they wait for the grid in front, and
the instructions that they become."""

from functools import cache

import pytest
from reduced import only
from sass_order import before_the_wait

from meshc.backends.cuda import from_json
from meshc.backends.cuda.toolchain.locations import find_program
from meshc.backends.cuda.toolchain.toolkit import compile_cubin, disassemble, opcodes
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics

pytestmark = [
    pytest.mark.cuda_compiler,
    pytest.mark.skipif(find_program("nvdisasm") is None, reason="no nvdisasm"),
]
TEXT = """
extern "C" __global__ void __launch_bounds__(64, 1)
    NAME(const float* x, const float* __restrict__ weights, int shift, float* y) {
    const int me = mc::thread();
    BEFORE
    WAIT
    y[me + shift] = x[me] + weights[me];
}
"""
WAIT = "mc::wait_for_previous_grid();"
X, WEIGHTS, Y = 0, 1, 3
COPY = "mc::copy_in(mc::arena() + 128, x + 4 * shift, 256, (mc::Barrier*)mc::arena());"
NOTHING = ["", "if (me < 3) { if (me == shift) mc::block_sync(); }"]
SOMETHING = [
    ("if (x[me + shift] > 0.0f) y += 4;", X, "LDG"),
    ("for (int i = 0; i < shift; i++) mc::add(y + i, 1.0f);", Y, "RED"),
    ("const float* p = shift & 1 ? x + 9 : x - 7; if (p[shift] > 0.0f) shift++;", X, "LDG"),
    (COPY, X, "UBLKCP"),
    (f"if (me) {COPY}", X, "UBLKCP"),
    ("if (me == 0) mc::prefetch(x + 4 * shift, 256);", X, "UBLKPF"),
]
WAITS = ["", f"if (me) {WAIT}", f"while (shift-- > 0) {WAIT}"]
# What is in front of the wait, and the wait, of each kernel; all are compiled at once.
KERNELS = [
    *((before, WAIT) for before in NOTHING),
    *((before, WAIT) for before, *_ in SOMETHING),
    *(("", wait) for wait in WAITS),
]


@cache
def compiled():
    """The kernels with their machine code as text."""
    texts = [
        TEXT.replace("NAME", f"follows_{n}").replace("BEFORE", before).replace("WAIT", wait)
        for n, (before, wait) in enumerate(KERNELS)
    ]
    cubin = compile_cubin("\n".join(['#include "mc.cuh"', *texts]))
    return cubin.kernels, disassemble(cubin)


def early(before="", wait=WAIT):
    kernels, assembly = compiled()
    name = f"follows_{KERNELS.index((before, wait))}"
    return before_the_wait(assembly, name, kernels[name].parameters)


@pytest.mark.parametrize("before", NOTHING)
def test_what_is_behind_the_wait_is_not_early(before):
    assert set(early(before)) <= {WEIGHTS}


@pytest.mark.parametrize(("before", "parameter", "opcode"), SOMETHING)
def test_what_is_in_front_of_the_wait_is_found(before, parameter, opcode):
    assert any(one.startswith(opcode) for one in early(before)[parameter])


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_that_some_pass_by_does_not_count(wait):
    assert {X, WEIGHTS, Y} <= set(early(wait=wait))


# What reads prompts many tokens at once; CI takes one of them.
MODELS = {
    "llama-3-8b": {"page": 1},
    "smollm2-135m": {},
    "llama-2-7b": {"dtype": "bf16"},
}
IN_CI = only(MODELS, "llama-3-8b")
PRODUCTS = tuple(f"chunk_{n}" for n in ("projections", "output", "ffn_inner", "ffn_outer"))


@cache
def model(name):
    """The program of a model, the kernels of its chunks, their machine code by name."""
    report = Diagnostics()
    options = {"target": "cuda", "dtype": "f16", "seq": 4096, "chunk": 256}
    request = CompileRequest(**options | MODELS[name])
    result = compile_loaded(load_any(name, report), request, (), report)
    program = from_json(result.files["manifest.json"])
    chunk = [name for name in program.kernels if name.startswith("chunk_")]
    cubins = {name: compile_cubin(result.files[program.kernels[name].file]) for name in chunk}
    return program, cubins, {kernel: disassemble(one) for kernel, one in cubins.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_CI)
def test_only_what_never_changes_is_reached_early(name):
    program, cubins, assemblies = model(name)
    constants = {name for name, buffer in program.buffers.items() if buffer.role == "constant"}
    launches = {launch.kernel: launch for launch, _ in program.prefills[0].launches(True)}
    assert launches.keys() == cubins.keys()
    for launch in launches.values():
        sizes = cubins[launch.kernel].kernels[launch.kernel].parameters
        found = before_the_wait(assemblies[launch.kernel], launch.kernel, sizes)
        names = [str(argument).partition("[")[0] for argument in launch.arguments]
        assert {names[n] for n in found} <= {*program.weights, *constants}, launch.kernel
        if launch.kernel == "chunk_head":
            # Weights come early, and gains, which a compiler would move to where they are needed.
            assert any("UBLKCP.S.G" in codes for codes in found.values())
            assert {n for n, name in enumerate(names) if name.startswith("norm_of_")} <= set(found)


@pytest.mark.parametrize("name", IN_CI)
def test_kernels_become_the_instructions_they_stand_for(name):
    program, cubins, assemblies = model(name)
    for name in cubins:
        counts = opcodes(assemblies[name])[name]
        stems = {opcode.split(".")[0] for opcode in counts}
        assert not stems & {"LDL", "STL"}, name
        # Waits for the grid in front, and lets the next one start.
        assert {"ACQBULK", "PREEXIT"} <= stems, name
        if program.kernels[name].shared_bytes:
            assert counts["UBLKCP.S.G"] > 0 and "SYNCS" in stems, name
            assert ("HGMMA" if name in PRODUCTS else "HMMA") in stems, name
        if name in PRODUCTS:
            # Products of a tile follow each other, and their end is awaited once, for each size.
            (columns,) = (n for code, n in counts.items() if code.startswith("HGMMA.64x256x16"))
            assert columns == 2 and counts["WARPGROUP.DEPBAR.LE"] == 3, name
            # Blocks of a cluster share their columns.
            shared = program.kernels[name].cluster > 1
            assert (counts["UBLKCP.S.G.MULTICAST"] > 0) == shared, name
        # Nothing of peers is awaited between tiles, which would cost what the block has in L1.
        assert counts["CCTL.IVALL"] <= 3 * (name in PRODUCTS), name
