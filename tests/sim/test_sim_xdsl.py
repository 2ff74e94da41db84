"""Programs that xDSL prints from its dialect of CSL, which nobody here wrote, on the simulator."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

XDSL = Path(sys.executable).with_name("xdsl-opt")
pytestmark = pytest.mark.skipif(
    find_spec("xdsl") is None or not XDSL.exists(), reason="the extra mlir is not installed"
)
POINTER = "!csl.ptr<f32, #csl<ptr_kind many>, #csl<ptr_const var>>"
DSD = "!csl<dsd mem1d_dsd>"
MODULES = """builtin.module {
"csl.module"() <{kind = #csl<module_kind program>}> ({
  %memcpy_params = "csl.param"() <{param_name = "memcpy_params"}> : () -> !csl.comptime_struct
  %sys = "csl.import_module"(%memcpy_params) <{module = "<memcpy/memcpy>"}>
    : (!csl.comptime_struct) -> !csl.imported_module
  %xs = "csl.zeros"() : () -> memref<8xf32>
  %ys = "csl.zeros"() : () -> memref<8xf32>
  %xp = "csl.addressof"(%xs) : (memref<8xf32>) -> POINTER
  %yp = "csl.addressof"(%ys) : (memref<8xf32>) -> POINTER
  "csl.export"(%xp) <{var_name = "xs", type = POINTER}> : (POINTER) -> ()
  "csl.export"(%yp) <{var_name = "ys", type = POINTER}> : (POINTER) -> ()
  "csl.export"() <{var_name = @compute, type = () -> ()}> : () -> ()
FUNCTIONS
}) {sym_name = "pe"} : () -> ()
"csl.module"() <{kind = #csl<module_kind layout>}> ({
  %w = arith.constant 1 : i16
  %zero = arith.constant 0 : i16
  %sizes = "csl.const_struct"(%w, %w) <{ssa_fields = ["width", "height"]}>
    : (i16, i16) -> !csl.comptime_struct
  %memcpy = "csl.import_module"(%sizes) <{module = "<memcpy/get_params>"}>
    : (!csl.comptime_struct) -> !csl.imported_module
  csl.layout {
    "csl.set_rectangle"(%w, %w) : (i16, i16) -> ()
    %p = "csl.member_call"(%memcpy, %zero) <{field = "get_params"}>
      : (!csl.imported_module, i16) -> !csl.comptime_struct
    %tile = "csl.const_struct"(%p) <{ssa_fields = ["memcpy_params"]}>
      : (!csl.comptime_struct) -> !csl.comptime_struct
    "csl.set_tile_code"(%zero, %zero, %tile) <{file = "pe.csl"}>
      : (i16, i16, !csl.comptime_struct) -> ()
  }
}) {sym_name = "layout"} : () -> ()
}
"""
ENDING = (
    '  "csl.member_call"(%sys) <{field = "unblock_cmd_stream"}> : (!csl.imported_module) -> ()\n'
)
VECTORS = """  %n = arith.constant 8 : i16
  %xd = "csl.get_mem_dsd"(%xs, %n) : (memref<8xf32>, i16) -> DSD
  %yd = "csl.get_mem_dsd"(%ys, %n) : (memref<8xf32>, i16) -> DSD
"""
FMACS = """  %a = arith.constant 3.0 : f32
  "csl.fmacs"(%yd, %yd, %xd, %a) : (DSD, DSD, DSD, f32) -> ()
"""
COMPUTE = "csl.func @compute() {\nBODY  csl.return\n}"
PROGRAMS = {
    "fmacs": (VECTORS + FMACS, lambda x, y: y + 3 * x),
    "vectors": (
        VECTORS
        + """  "csl.fadds"(%yd, %yd, %xd) : (DSD, DSD, DSD) -> ()
  "csl.fmuls"(%yd, %yd, %xd) : (DSD, DSD, DSD) -> ()
  "csl.fsubs"(%yd, %yd, %xd) : (DSD, DSD, DSD) -> ()
""",
        lambda x, y: (y + x) * x - x,
    ),
    "loop": (
        """  %first = arith.constant 0 : index
  %end = arith.constant 8 : index
  %one = arith.constant 1 : index
  %half = arith.constant 0.5 : f32
  scf.for %i = %first to %end step %one {
    %x = memref.load %xs[%i] : memref<8xf32>
    %y = memref.load %ys[%i] : memref<8xf32>
    %product = arith.mulf %x, %half : f32
    %sum = arith.addf %product, %y : f32
    memref.store %sum, %ys[%i] : memref<8xf32>
  }
""",
        lambda x, y: x / 2 + y,
    ),
}
HOST = """
import numpy as np
from cerebras.sdk.runtime.sdkruntimepybind import MemcpyDataType, MemcpyOrder, SdkRuntime

runtime = SdkRuntime("out")
runtime.load()
runtime.run()
how = {"streaming": False, "data_type": MemcpyDataType.MEMCPY_32BIT,
       "order": MemcpyOrder.ROW_MAJOR, "nonblock": False}
for name in ("xs", "ys"):
    values = np.load(name + ".npy")
    runtime.memcpy_h2d(runtime.get_id(name), values, 0, 0, 1, 1, 8, **how)
runtime.launch("compute", nonblock=False)
result = np.zeros(8, np.float32)
runtime.memcpy_d2h(result, runtime.get_id("ys"), 0, 0, 1, 1, 8, **how)
runtime.stop()
np.save("result.npy", result)
"""


def ran(folder, *command):
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True,
                          text=True)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_xdsl_prints_runs(name, tmp_path):
    body, meaning = PROGRAMS[name]
    functions = COMPUTE.replace("BODY", body + ENDING)
    text = MODULES.replace("FUNCTIONS", functions).replace("POINTER", POINTER).replace("DSD", DSD)
    (tmp_path / "program.mlir").write_text(text)
    printed = subprocess.run([XDSL, "program.mlir", "-t", "csl"], cwd=tmp_path,
                             capture_output=True, text=True)  # fmt: skip
    assert printed.returncode == 0, printed.stderr[-2000:]
    for file in printed.stdout.split("// -----\n"):
        title, code = file.split("\n", 1)
        (tmp_path / f"{title.removeprefix('// FILE: ')}.csl").write_text(code)
    x, y = np.random.default_rng(0).integers(-8, 8, (2, 8)).astype(np.float32)
    np.save(tmp_path / "xs.npy", x)
    np.save(tmp_path / "ys.npy", y)
    (tmp_path / "run.py").write_text(HOST)
    fabric = ("--fabric-dims=8,3", "--fabric-offsets=4,1", "--memcpy", "--channels=1")
    ran(tmp_path, "meshc.sim.cslc", "layout.csl", *fabric, "-o", "out")
    ran(tmp_path, "meshc.sim.cs_python", "run.py")
    np.testing.assert_array_equal(np.load(tmp_path / "result.npy"), meaning(x, y))
