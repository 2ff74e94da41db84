"""The machine code of emitted kernels: what they reach before they wait for the grid in front, and
the instructions that they become."""

import re
from functools import cache

import pytest
from reduced import each, only
from sass_order import before_the_wait

from meshc.backends.cuda import from_json
from meshc.backends.cuda.kernels.attention_block import kernel as attention
from meshc.backends.cuda.toolchain.locations import find_program
from meshc.backends.cuda.toolchain.toolkit import compile_cubin, disassemble, opcodes
from meshc.devices import device
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics

H200 = device("h200")


pytestmark = [
    pytest.mark.cuda_compiler,
    pytest.mark.skipif(find_program("nvdisasm") is None, reason="no nvdisasm"),
]
AHEAD = "mc::prefetch_groups<"
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


def stem(opcode):
    """An opcode without its modifiers."""
    return opcode.split(".")[0]


LENGTHS = "const mc::Lengths<BATCH> lengths(cached);"


@pytest.mark.parametrize("place", each([0, 1], 2))
def test_lengths_that_are_read_early_are_found(place):
    """By the warp that copies, and by those that compute."""
    shape = attention.Attention(1, 256, 2, 1, 64, "f16", 16, 1e-5, 0.125)
    text = attention.text(attention.plan(shape, H200, 2), "block")
    parameters = re.search(r" block\((.*?)\) \{", text, re.DOTALL)[1].split(",")
    names = [re.findall(r"\w+", parameter)[-1] for parameter in parameters]
    early = text.split(WAIT)
    assert len(early) == 3 and text.count(LENGTHS) == 2
    early[place] += LENGTHS
    early[place + 1] = early[place + 1].replace(LENGTHS, "", 1)
    for one, wanted in ((text, set()), (WAIT.join(early), {"cached"})):
        cubin = compile_cubin(one)
        found = before_the_wait(disassemble(cubin), "block", cubin.kernels["block"].parameters)
        assert {names[n] for n in found} == {"norm", "qkv"} | wanted


# How models are compiled; CI takes one of them.
MODELS = {
    "llama-3-8b": {"page": 1},
    "smollm2-135m": {},
    "llama-2-7b": {"dtype": "bf16"},
    "llama-2-7b, by lanes": {"dataflow": "split_head"},
    "llama-3-8b, eight requests": {"dtype": "bf16", "batch": 8},
}
IN_CI = only(MODELS, "llama-3-8b")


@cache
def model(name):
    """The program of a model, the texts of its kernels, their cubins and machine code by name."""
    report = Diagnostics()
    options = {"target": "cuda", "dataflow": "split_token", "dtype": "f16", "seq": 4096}
    request = CompileRequest(**options | MODELS[name])
    result = compile_loaded(load_any(name.split(",")[0], report), request, (), report)
    program = from_json(result.files["manifest.json"])
    texts = {kernel: result.files[entry.file] for kernel, entry in program.kernels.items()}
    cubins = {kernel: compile_cubin(text) for kernel, text in texts.items()}
    return program, texts, cubins, {kernel: disassemble(one) for kernel, one in cubins.items()}


@pytest.mark.parametrize("name", IN_CI)
def test_only_what_never_changes_is_reached_early(name):
    program, texts, cubins, assemblies = model(name)
    constants = {name for name, buffer in program.buffers.items() if buffer.role == "constant"}
    launches = [*program.launches(), *program.prefill_launches(program.prefill.tokens, True)]
    for launch in {launch.kernel: launch for launch, _ in launches}.values():
        kernel = program.kernels[launch.kernel]
        sizes = cubins[launch.kernel].kernels[launch.kernel].parameters
        found = before_the_wait(assemblies[launch.kernel], launch.kernel, sizes)
        names = [str(argument).partition("[")[0] for argument in launch.arguments]
        # What is prefetched may be nothing.
        assert {names[n] for n in found} <= {*program.weights, *constants, ""}, launch.kernel
        # Where attention is, the warp that copies has waited by then.
        product = AHEAD in texts[launch.kernel] and "attention" not in launch.kernel
        prefetched = {n for n, codes in found.items() if "UBLKPF" in map(stem, codes)}
        assert (len(names) - 1 in prefetched) == product, launch.kernel
        # Weights come early, and gains, which a compiler would move to where they are needed.
        if kernel.shared_bytes:
            assert any("UBLKCP.S.G" in codes for codes in found.values()), launch.kernel
        assert {n for n, name in enumerate(names) if name.startswith("norm_of_")} <= set(found)


@pytest.mark.parametrize("name", IN_CI)
def test_kernels_become_the_instructions_they_stand_for(name):
    program, _, _, assemblies = model(name)
    for name, kernel in program.kernels.items():
        counts = opcodes(assemblies[name])[name]
        stems = {opcode.split(".")[0] for opcode in counts}
        assert not stems & {"LDL", "STL"}, name
        # Waits for the grid in front, and lets the next one start.
        assert {"ACQBULK", "PREEXIT"} <= stems, name
        if kernel.shared_bytes:
            assert counts["UBLKCP.S.G"] > 0, name
            assert "SYNCS" in stems, name
        if name.endswith(("ffn_inner", "ffn_outer", "head")):
            assert "HMMA" in stems, name
        if kernel.cluster > 1:
            assert {"UCGABAR_ARV", "UCGABAR_WAIT"} <= stems, name
        else:
            # Nothing of peers is awaited, which would cost what the block has in L1.
            assert "CCTL" not in stems, name
