"""Products of warpgroups are held against NumPy before a GPU runs kernels that have them."""

import pytest
from fake_driver import FakeDriver, built_driver
from reduced import only

from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.driver.gpu_machine import GpuMachine
from meshc.backends.cuda.driver.product_check import NAME, TEXT
from meshc.backends.cuda.executor import CXX, QUICK, WATCHED, Library, headers
from meshc.backends.cuda.program import Kernel, Target
from meshc.backends.cuda.toolchain.toolkit import compile_cubin
from meshc.support.diagnostics import MeshcError

pytestmark = [
    pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler"),
    pytest.mark.cuda_compiler,
]
FAULTS = {
    "halves that are not exchanged": ("mc_columns.cuh", "const int half = (k / 2 ^ token / 4) & 1;",
                                      "const int half = k / 2 & 1;"),
    "fragments in another order": ("mc_fragments.cuh", "row % 16 / 8 * 2 + k % 2;",
                                   "k % 2 * 2 + row % 16 / 8;"),
}  # fmt: skip


def loaded(toolchain=QUICK, edit=None):
    """A machine of one kernel that has such products, whose launches run in the executor."""
    library = headers()
    if edit is not None:
        file, old, new = edit
        assert library[file].count(old) == 1
        library = library | {file: library[file].replace(old, new)}
    driver, target = FakeDriver(built_driver()), Target("h200", "sm_90a", 132, 232448)
    at = Library(TEXT, library, toolchain)._library
    driver.know(compile_cubin(TEXT), lambda name: getattr(at, f"run_{name}"))
    kernels = {NAME: Kernel("one.cu", 1, 128, 1, 20480, {})}
    with Device(library=driver.path) as device:
        GpuMachine(device, target, kernels, {"one.cu": TEXT})
    return len(driver.calls("cuLaunchKernelEx"))


@pytest.mark.parametrize("toolchain", [QUICK, WATCHED])
def test_products_of_the_executor_pass(toolchain):
    assert loaded(toolchain) == 1


@pytest.mark.parametrize("name", only(FAULTS, "halves that are not exchanged"))
def test_other_products_are_refused(name):
    with pytest.raises(MeshcError, match="other products of warpgroups") as caught:
        loaded(edit=FAULTS[name])
    assert caught.value.diagnostics[0].code == "cuda-products"
