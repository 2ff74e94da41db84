"""Compiling without a GPU: both compilers, what cubins say, the cache, and what can be missing."""

import re
import stat
import subprocess
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reduced import only

from meshc.backends.cuda.toolchain import locations, nvcc, nvrtc, toolkit
from meshc.backends.cuda.toolchain.cubin import CubinError, kernel_resources
from meshc.backends.cuda.toolchain.locations import find_program
from meshc.support import cache as user_cache
from meshc.support.diagnostics import MeshcError
from meshc.support.native import BuildError

HERE = Path(__file__).parent
FOUND = {"nvcc": nvcc.find_nvcc(), "nvrtc": nvrtc.find_nvrtc()}
SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
# Arrival at and waiting for the barrier of a cluster.
CLUSTER = {"UCGABAR_ARV", "UCGABAR_WAIT"}

DEMANDING = """
#include "mc.cuh"
struct Table { float v[24]; };
extern "C" __global__ void __launch_bounds__(1024, 2)
    demanding(const float* x, float* y, int n, Table table, short s, double d) {
    __shared__ float t[64];
    float a[64];
#pragma unroll
    for (int i = 0; i < 64; i++) a[i] = x[i * n + threadIdx.x];
    t[threadIdx.x % 64] = a[0];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 3; k++)
#pragma unroll
        for (int i = 0; i < 64; i++) a[i] = a[i] * a[(i * 7 + k) % 64] + t[i] + table.v[i % 24];
#pragma unroll
    for (int i = 0; i < 64; i++) y[i * n + threadIdx.x] = a[i] + s + d;
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) nothing() {}
"""
SMALL = (
    '#include "mc.cuh"\nextern "C" __global__ void small(float* y) { y[mc::thread()] = 1.0f; }\n'
)
# Without the library, which takes most of the time; it belongs to what is kept all the same.
PLAIN = 'extern "C" __global__ void plain(float* y) { y[threadIdx.x] = 1.0f; }\n'

each_compiler = pytest.mark.parametrize(
    "compiler",
    [
        pytest.param(name, marks=[] if found else pytest.mark.skip(reason=f"there is no {name}"))
        for name, found in FOUND.items()
    ],
)
needs_compiler = pytest.mark.skipif(not any(FOUND.values()), reason="there is no CUDA compiler")
needs_nvdisasm = pytest.mark.skipif(find_program("nvdisasm") is None, reason="no nvdisasm")
needs_cuobjdump = pytest.mark.skipif(find_program("cuobjdump") is None, reason="no cuobjdump")


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "meshc"


@pytest.fixture
def bare(monkeypatch):
    """A machine on which no part of a toolkit is found."""
    for name in ("NVCC", "NVCC_CCBIN", "CUDA_HOME", "CUDA_PATH", "MESHC_CUDA_COMPILER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(locations, "_wheel_folders", list)
    monkeypatch.setattr(locations, "_USUAL", Path("/nonexistent"))
    monkeypatch.setattr(nvrtc, "_LOADER_NAMES", ())
    return monkeypatch


@cache
def compiled(name, compiler):
    text = DEMANDING if name == "demanding" else (HERE / f"{name}.cu").read_text(encoding="utf-8")
    return toolkit.compile_cubin(text, compiler=compiler)


@cache
def code(name, compiler):
    return toolkit.opcodes(toolkit.disassemble(compiled(name, compiler)))


def stems(counts):
    """Opcodes without their modifiers."""
    return {opcode.split(".")[0] for opcode in counts}


@each_compiler
def test_primitives_neither_spill_nor_use_a_stack(compiler):
    cubin = compiled("primitives", compiler)
    sized = {f"{kind}_{n}" for kind in ("sum", "max", "gather") for n in SIZES}
    assert sized | {"ring_sum", "fragment_f16", "fragment_bf16"} <= set(cubin.kernels)
    for name, needs in cubin.kernels.items():
        assert (needs.spill_bytes, needs.stack_bytes, needs.shared_bytes) == (0, 0, 0), name
        assert 0 < needs.registers <= 40, name
        assert needs.max_threads is not None, name
    assert cubin.warnings == ()


@each_compiler
def test_cubins_state_bounds_clusters_and_parameters(compiler):
    kernels = compiled("faults", compiler).kernels
    assert kernels["reduce_in_place"].cluster == 4
    assert kernels["reduce_in_place"].max_threads == 64
    assert kernels["short_copy"].cluster is None
    assert kernels["odd_copy"].parameters == (8, 8, 4, 4)
    assert kernels["deep_stack"].stack_bytes == 40000
    assert {n for n, k in kernels.items() if k.stack_bytes or k.spill_bytes} == {"deep_stack"}
    demanding = compiled("demanding", compiler).kernels
    assert demanding["demanding"].parameters == (8, 8, 4, 96, 2, 8)
    assert demanding["demanding"].shared_bytes == 256
    assert demanding["demanding"].registers == 32
    assert demanding["demanding"].spill_bytes > 0
    assert demanding["nothing"].cluster == 2
    assert demanding["nothing"].parameters == ()
    assert demanding["nothing"].max_threads is None


@each_compiler
@needs_cuobjdump
@pytest.mark.parametrize("name", ["primitives", "faults", "demanding"])
def test_cubins_are_read_as_cuobjdump_reads_them(name, compiler, tmp_path):
    cubin = compiled(name, compiler)
    path = tmp_path / "kernels.cubin"
    path.write_bytes(cubin.data)
    command = [find_program("cuobjdump"), "-res-usage", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = re.findall(
        r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) .*CONSTANT\[0\]:(\d+)", text
    )
    assert {row[0] for row in rows} == set(cubin.kernels)
    for kernel, registers, stack, shared, constants in rows:
        needs = cubin.kernels[kernel]
        assert needs.registers == int(registers)
        assert needs.stack_bytes == int(stack)
        # 1 KB of every block that has shared memory is the system's.
        assert int(shared) in (needs.shared_bytes, needs.shared_bytes + 1024)
        end = 0
        for size in needs.parameters:
            alignment = 4 if size == 96 else size
            end = -(-end // alignment) * alignment + size
        assert int(constants) == 0x210 + end


@each_compiler
def test_registers_are_those_that_the_assembler_reports(compiler):
    found = toolkit.find_compiler(compiler)
    parts = toolkit.headers()
    built = found.build(DEMANDING, parts, "sm_90a")
    told = re.findall(r"entry function '(\w+)'.*?Used (\d+) registers", built.report, re.DOTALL)
    kernels = kernel_resources(built.data, built.report)
    assert {name: kernels[name].registers for name, _ in told} == {n: int(r) for n, r in told}
    after = built.report.split("entry function 'demanding'")[1]
    stored, loaded = re.search(r"(\d+) bytes spill stores, (\d+)", after).groups()
    assert kernels["demanding"].spill_bytes == int(stored) + int(loaded)


@each_compiler
@needs_nvdisasm
def test_primitives_become_the_instructions_they_stand_for(compiler):
    found = code("primitives", compiler)
    for size in SIZES:
        for kind in ("sum", "max"):
            assert stems(found[f"{kind}_{size}"]) >= CLUSTER
        assert stems(found[f"gather_{size}"]) >= CLUSTER | {"SYNCS"}
        assert found[f"gather_{size}"]["UBLKCP.S.S"] > 0
    assert found["ring_sum"]["UBLKCP.S.G"] > 0
    assert "REDG" in stems(found["grid_total"])
    assert found["fragment_f16"]["HMMA.16816.F32"] == 1
    assert found["fragment_bf16"]["HMMA.16816.F32.BF16"] == 1
    for name, counts in found.items():
        assert not stems(counts) & {"LDL", "STL"}, name
        # Products and sums of floats are not contracted.
        assert "FFMA" not in stems(counts), name


@each_compiler
@needs_nvdisasm
def test_a_stack_shows_in_the_instructions(compiler):
    assert {"LDL", "STL"} <= stems(code("faults", compiler)["deep_stack"])
    assert {"LDL", "STL"} <= stems(code("demanding", compiler)["demanding"])
    clean = [c for name, c in code("faults", compiler).items() if name != "deep_stack"]
    assert not stems(sum(clean, Counter())) & {"LDL", "STL"}


@each_compiler
def test_the_same_text_gives_the_same_bytes(compiler):
    found = toolkit.find_compiler(compiler)
    parts = toolkit.headers()
    first, second = (found.build(SMALL, parts, "sm_90a") for _ in range(2))
    assert first.data == second.data


@each_compiler
def test_a_refusal_holds_the_first_lines(compiler, own_cache):
    text = '#include "mc.cuh"\n__global__ void f() { unknown(); }\n'
    with pytest.raises(BuildError, match=r'kernels\.cu\(2\): error: .* "unknown"') as caught:
        toolkit.compile_cubin(text, compiler=compiler)
    assert len(str(caught.value).splitlines()) <= 8
    assert not own_cache.exists()


@each_compiler
def test_a_text_without_kernels_is_refused(compiler, own_cache):
    with pytest.raises(BuildError, match="there is no kernel"):
        toolkit.compile_cubin('#include "mc.cuh"\n', "sm_90a", compiler)


@each_compiler
def test_an_architecture_without_clusters_is_refused(compiler, own_cache):
    text = (HERE / "primitives.cu").read_text(encoding="utf-8")
    with pytest.raises(BuildError, match="__cluster_dims__ is not supported"):
        toolkit.compile_cubin(text, "sm_80", compiler)


@each_compiler
def test_what_was_compiled_is_kept(compiler, own_cache, monkeypatch):
    first = toolkit.compile_cubin(PLAIN, compiler=compiler)
    assert len(list(own_cache.iterdir())) == 1
    kind = type(FOUND[compiler])
    with monkeypatch.context() as m:
        m.setattr(kind, "build", lambda *_: pytest.fail("compiled twice"))
        assert toolkit.compile_cubin(PLAIN, compiler=compiler) == first
    toolkit.compile_cubin(PLAIN.replace("1.0f", "2.0f"), compiler=compiler)
    assert len(list(own_cache.iterdir())) == 2


@each_compiler
def test_a_report_that_was_lost_is_asked_for_once_more(compiler, own_cache, monkeypatch):
    """As by threads that compile at once; a compiler that never gives one is refused."""
    kind, logs = type(FOUND[compiler]), []
    build = kind.build

    def losing(self, *arguments):
        logs.append(build(self, *arguments))
        return replace(logs[-1], report="") if len(logs) == 1 or lost else logs[-1]

    monkeypatch.setattr(kind, "build", losing)
    lost = False
    assert set(toolkit.compile_cubin(PLAIN, compiler=compiler).kernels) == {"plain"}
    assert len(logs) == 2
    lost = True
    with pytest.raises(BuildError, match="report does not name kernel 'plain'"):
        toolkit.compile_cubin(PLAIN.replace("1.0f", "3.0f"), compiler=compiler)
    assert len(logs) == 4


@pytest.mark.parametrize(
    ("harm", "compiler"),
    only(
        product(["cut", "empty", "one bit"], FOUND),
        ("cut", "nvcc"),
        ("empty", "nvrtc"),
        ("one bit", "nvrtc"),
    ),
)
def test_a_damaged_cache_is_compiled_again(harm, compiler, own_cache, monkeypatch):
    if FOUND[compiler] is None:
        pytest.skip(f"there is no {compiler}")
    first = toolkit.compile_cubin(PLAIN, compiler=compiler)
    (kept,) = own_cache.glob("*/*")
    data = bytearray(kept.read_bytes())
    data[len(data) // 2] ^= 1
    kept.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "one bit": data}[harm])
    assert toolkit.compile_cubin(PLAIN, compiler=compiler) == first
    with monkeypatch.context() as m:
        m.setattr(type(FOUND[compiler]), "build", lambda *_: pytest.fail("compiled again"))
        assert toolkit.compile_cubin(PLAIN, compiler=compiler) == first


@needs_compiler
def test_a_cache_that_cannot_be_written_is_no_fault(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    # What this test keeps in place of the cache other tests do not find.
    monkeypatch.setattr(user_cache, "_private", user_cache._Private())
    assert set(toolkit.compile_cubin(PLAIN).kernels) == {"plain"}


@pytest.mark.skipif(not all(FOUND.values()), reason="needs both compilers")
def test_nvcc_is_taken_where_both_are_there_unless_a_name_is_given(monkeypatch):
    monkeypatch.delenv("MESHC_CUDA_COMPILER", raising=False)
    assert toolkit.find_compiler().name.startswith("nvcc")
    monkeypatch.setenv("MESHC_CUDA_COMPILER", "nvrtc")
    assert toolkit.find_compiler().name.startswith("NVRTC")
    assert toolkit.find_compiler("nvcc").name.startswith("nvcc")


@pytest.mark.skipif(not all(FOUND.values()), reason="needs both compilers")
def test_compilers_do_not_share_what_is_kept(own_cache):
    for compiler in FOUND:
        toolkit.compile_cubin(PLAIN, compiler=compiler)
    assert len(list(own_cache.glob("*/*"))) == 2


@pytest.mark.parametrize("compiler", [None, "nvcc", "nvrtc"])
def test_a_missing_compiler_is_said_in_words(compiler, bare):
    with pytest.raises(MeshcError) as caught:
        toolkit.compile_cubin(SMALL, compiler=compiler)
    (told,) = caught.value.diagnostics
    assert told.code == "cuda-toolkit"
    assert "pip install meshc[cuda]" in told.help


def test_a_wrong_nvcc_variable_is_said_in_words(bare):
    bare.setenv("NVCC", "/nonexistent/nvcc")
    with pytest.raises(MeshcError, match=r"\[cuda-toolkit\]: \$NVCC names no program"):
        toolkit.compile_cubin(SMALL)


def test_a_wrong_name_of_a_compiler_is_said_in_words(monkeypatch):
    monkeypatch.setenv("MESHC_CUDA_COMPILER", "clang")
    with pytest.raises(
        MeshcError, match=r"\[cuda-toolkit\]: \$MESHC_CUDA_COMPILER names no compiler: clang"
    ):
        toolkit.compile_cubin(SMALL)


def test_a_missing_disassembler_is_said_in_words(bare):
    with pytest.raises(MeshcError, match=r"\[cuda-toolkit\]: no nvdisasm"):
        toolkit.disassemble(toolkit.Cubin(b"", "sm_90a", "nvcc", {}, ()))


@needs_nvdisasm
def test_a_disassembler_that_refuses_is_said_in_words():
    with pytest.raises(BuildError):
        toolkit.disassemble(toolkit.Cubin(b"no cubin", "sm_90a", "nvcc", {}, ()))


def program(folder, name, text):
    """An executable script."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_nvcc_is_passed_over_without_its_host_compiler(bare, tmp_path):
    bare.setenv("NVCC", program(tmp_path, "nvcc", "exit 0"))
    assert nvcc.find_nvcc() is None
    bare.setenv("NVCC_CCBIN", program(tmp_path, "g++", "exit 0"))
    assert nvcc.find_nvcc() == nvcc.Nvcc(str(tmp_path / "nvcc"))


def test_an_old_nvcc_is_said_in_words(tmp_path):
    old = program(
        tmp_path, "nvcc",
        "[ $1 = --version ] && echo 'Cuda compilation tools, release 11.8, V11.8.89' && exit\n"
        "echo \"nvcc fatal   : Unsupported gpu architecture 'compute_90a'\" >&2; exit 1",
    )  # fmt: skip
    with pytest.raises(MeshcError, match=r"\[cuda-toolkit\]: nvcc 11\.8 does not know sm_90a"):
        nvcc.Nvcc(old).build(SMALL, {}, "sm_90a")


@pytest.mark.skipif(FOUND["nvrtc"] is None, reason="there is no NVRTC")
def test_an_old_nvrtc_is_said_in_words(monkeypatch):
    monkeypatch.setattr(nvrtc.Nvrtc, "version", (11, 8))
    with pytest.raises(MeshcError, match=r"\[cuda-toolkit\]: NVRTC 11\.8 does not know sm_90a"):
        FOUND["nvrtc"].build(SMALL, {}, "sm_90a")


def test_a_library_that_is_not_nvrtc_is_passed_over(bare, tmp_path):
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda_fp16.h").write_text("")
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libnvrtc.so.13").write_bytes(b"not a library")
    bare.setenv("CUDA_HOME", str(tmp_path))
    assert nvrtc.find_nvrtc() is None


def test_toolkits_of_wheels_are_found_newest_first(bare, tmp_path):
    wheels = [tmp_path / name for name in ("cu13", "cuda_nvrtc", "cuda_runtime")]
    for folder in wheels:
        (folder / "include").mkdir(parents=True)
    (tmp_path / "cuda_runtime" / "include" / "cuda_fp16.h").write_text("")
    bare.setattr(locations, "_wheel_folders", lambda: wheels)
    assert list(locations.toolkit_folders()) == wheels
    expected = tmp_path / "cuda_runtime" / "include"
    assert locations.find_headers(tmp_path / "cuda_nvrtc") == expected
    assert locations.find_headers(None) == expected


def read_or_refuse(data, report):
    try:
        kernel_resources(data, report)
    except CubinError:
        return


@cache
def small():
    found = toolkit.find_compiler()
    parts = toolkit.headers()
    return found.build(SMALL, parts, "sm_90a")


@needs_compiler
@settings(deadline=None)
@given(st.data())
def test_damaged_cubins_are_read_or_refused(data):
    built = small()
    cut = data.draw(st.integers(0, len(built.data)))
    harmed = bytearray(built.data[:cut] if data.draw(st.booleans()) else built.data)
    for _ in range(data.draw(st.integers(0, 8))):
        if harmed:
            harmed[data.draw(st.integers(0, len(harmed) - 1))] = data.draw(st.integers(0, 255))
    read_or_refuse(bytes(harmed), built.report)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(tail):
    read_or_refuse(b"\x7fELF\x02\x01" + tail, "")


@needs_compiler
def test_a_report_of_another_cubin_is_refused():
    built = small()
    with pytest.raises(CubinError, match="does not name kernel 'small'"):
        kernel_resources(built.data, built.report.replace("'small'", "'other'"))
