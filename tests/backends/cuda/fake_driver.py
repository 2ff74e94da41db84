"""A driver in C that tests command, compiled once; and a real GPU, where there is one."""

import ctypes as ct
from functools import cache
from pathlib import Path

import pytest

from meshc.backends.cuda.driver import product_check
from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.executor import QUICK, Library
from meshc.backends.cuda.toolchain.cubin import KernelResources
from meshc.backends.cuda.toolchain.toolkit import Cubin, compile_cubin
from meshc.support.diagnostics import MeshcError
from meshc.support.native import Toolchain

C = Toolchain("C", "CC", ("cc", "gcc", "clang"), ("-std=c11", "-O1", "-fPIC", "-w"))

POINTER, INT = 8, 4


def needs(*parameters, registers=32, shared=0, threads=256, cluster=None):
    """What a kernel needs."""
    return KernelResources(registers, 0, 0, shared, threads, cluster, parameters)


CUBIN = Cubin(
    b"\x7fELF\x02\x01",
    "sm_90a",
    "nvcc 13.0",
    {
        "block": needs(POINTER, INT),
        "four": needs(POINTER, cluster=4),
        "free": needs(threads=None),
        "static": needs(shared=40000),
    },
    (),
)


def told(caught):
    """The one diagnostic of an error."""
    (found,) = caught.value.diagnostics
    return found


@cache
def built_driver():
    """The path of the library; skips the test where there is no C compiler."""
    if C.path() is None:
        pytest.skip("there is no C compiler")
    texts = {p.name: p.read_text(encoding="utf-8") for p in Path(__file__).parent.glob("driver/*")}
    headers = {name: texts.pop(name) for name in list(texts) if name.endswith(".h")}
    return C.build(texts, headers, "fake-driver")


def gpu():
    """A GPU; skips the test where there is no driver or no device of Hopper."""
    try:
        return Device()
    except MeshcError as problem:
        if problem.diagnostics[0].code in ("cuda-driver", "cuda-device"):
            pytest.skip(problem.diagnostics[0].message)
        raise


class FakeDriver:
    """The fake driver, as new: what a test says to it and asks of it."""

    def __init__(self, path):
        self.path = str(path)
        self._library = ct.CDLL(self.path)
        self._library.fake_log.restype = ct.c_char_p
        self._library.fake_set.argtypes = (ct.c_char_p, ct.c_longlong)
        self._library.fake_kernel.argtypes = (ct.c_char_p, ct.c_int, ct.c_void_p, ct.c_void_p)
        self._library.fake_reset()

    def set(self, name, value):
        """Change a property of the machine."""
        self._library.fake_set(name.encode(), value)

    def fail(self, name, code, after=0):
        """Let one call of ``name`` fail, behind ``after`` others of that name."""
        self._library.fake_fail(name.encode(), after, code)

    def fault(self, code):
        """Let the next launch be the device's last."""
        self._library.fake_fault(code)

    def know(self, cubin, entry=lambda kernel: None):
        """Log the arguments of a cubin's kernels, which run at ``entry(name)`` of the executor."""
        for name, kernel in cubin.kernels.items():
            sizes = (ct.c_int * len(kernel.parameters))(*kernel.parameters)
            place = entry(name)
            address = ct.cast(place, ct.c_void_p) if place is not None else None
            self._library.fake_kernel(name.encode(), len(sizes), sizes, address)

    @property
    def live(self):
        """How many things of the driver are not given back."""
        return self._library.fake_live()

    @property
    def log(self):
        """The calls so far, a line each."""
        return self._library.fake_log().decode().splitlines()

    def calls(self, *names):
        """Lines of the log that are calls of ``names``."""
        return [line for line in self.log if line.split(" ")[0] in names]


def know_products(driver):
    """Let the kernel that checks products of warpgroups run in the executor."""
    library = Library(product_check.TEXT, toolchain=QUICK)._library
    driver.know(compile_cubin(product_check.TEXT), lambda name: getattr(library, f"run_{name}"))
