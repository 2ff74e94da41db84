"""A device's context: what is alive on it, and what it can do."""

from __future__ import annotations

import contextlib
import ctypes as ct
from collections.abc import Iterator
from dataclasses import dataclass

from meshc.backends.cuda.driver.driver_api import Driver
from meshc.backends.cuda.toolchain.cubin import KernelResources
from meshc.support.diagnostics import MeshcError, fail

FIRST_CAPABILITY = (9, 0)
"""The first GPUs that have thread-block clusters."""
_NAME_BYTES = 256
# CUdevice_attribute
_MULTIPROCESSORS, _L2_BYTES, _MAJOR, _MINOR = 16, 38, 75, 76
_CORE_BYTES, _SHARED_BYTES, _RESERVED_BYTES = 81, 97, 111


@dataclass(frozen=True)
class DeviceFacts:
    """A device as its driver describes it; ``shared_bytes`` is what one block can have at most of
    the ``core_bytes`` of a multiprocessor, of which each block takes ``reserved_bytes`` beside."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    core_bytes: int
    reserved_bytes: int
    l2_bytes: int
    memory_bytes: int
    driver: tuple[int, int]

    def words(self) -> str:
        """``NVIDIA H200 (compute capability 9.0)``"""
        return f"{self.name} (compute capability {self.capability[0]}.{self.capability[1]})"


@dataclass(eq=False)
class Owned:
    """Something of the driver that ``destroy`` ends."""

    destroy: str
    handle: int | None


class Context:
    """The primary context of a device, which libraries of the process share, while it is open.

    It ends what it owns in reverse order. One thread uses it at a time.
    """

    def __init__(self, driver: Driver, index: int | None) -> None:
        """Open device ``index``, or the first that has thread-block clusters.

        Raises MeshcError ``cuda-device`` when there is no such device.
        """
        self.driver = driver
        self.index, self.facts = _choose(driver, index)
        self._live: dict[Owned, None] = {}
        self._handle: ct.c_void_p | None = None
        handle = ct.c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", ct.byref(handle), self.index)
        try:
            driver.call("cuCtxPushCurrent_v2", handle)
        except MeshcError:
            driver.result("cuDevicePrimaryCtxRelease_v2", self.index)
            raise
        self._handle = handle

    def use_here(self) -> None:
        """Let the calling thread use it too, which has ended before it is closed. Raises
        MeshcError."""
        self.driver.call("cuCtxPushCurrent_v2", self._handle)

    def own(self, destroy: str, handle: int | None) -> Owned:
        """Keep ``handle`` until it is released."""
        owned = Owned(destroy, handle)
        self._live[owned] = None
        return owned

    def release(self, owned: Owned) -> None:
        """End ``owned``, once. Raises MeshcError."""
        if owned in self._live:
            del self._live[owned]
            self.driver.call(owned.destroy, owned.handle)

    def close(self) -> None:
        """End all that is owned, then leave the context. Raises the first error of these calls,
        after all were made; after a kernel's fault they fail without being of interest."""
        if self._handle is None:
            return
        self._handle = None
        known = self.driver.lost
        problems: list[MeshcError] = []
        for owned in reversed(list(self._live)):
            with _collected(problems):
                self.release(owned)
        with _collected(problems):
            self.driver.call("cuCtxPopCurrent_v2", ct.byref(ct.c_void_p()))
        with _collected(problems):
            self.driver.call("cuDevicePrimaryCtxRelease_v2", self.index)
        if problems and not known:
            raise problems[0]

    def check_block(self, kernel: str, needs: KernelResources, shared_bytes: int) -> None:
        """Raise MeshcError ``cuda-launch`` for more shared memory than a block can have."""
        wanted = needs.shared_bytes + shared_bytes
        if wanted > self.facts.shared_bytes:
            fail(
                "cuda-launch",
                f"kernel '{kernel}' needs {wanted} bytes of shared memory in a block; "
                f"{self.facts.words()} has {self.facts.shared_bytes}",
            )


@contextlib.contextmanager
def _collected(problems: list[MeshcError]) -> Iterator[None]:
    try:
        yield
    except MeshcError as problem:
        problems.append(problem)


def _choose(driver: Driver, index: int | None) -> tuple[int, DeviceFacts]:
    count = ct.c_int()
    driver.call("cuDeviceGetCount", ct.byref(count))
    if not count.value:
        fail("cuda-device", "the driver finds no GPU", help="`nvidia-smi` lists the devices")
    if index is not None and not 0 <= index < count.value:
        fail("cuda-device", f"there is no device {index}: the driver finds {count.value}")
    wanted = range(count.value) if index is None else (index,)
    found = [(n, _facts(driver, n)) for n in wanted]
    for n, facts in found:
        if facts.capability >= FIRST_CAPABILITY:
            return n, facts
    listed = "; ".join(f"{n}: {facts.words()}" for n, facts in found)
    fail(
        "cuda-device",
        "no device runs these kernels: they use thread-block clusters, which devices of compute "
        f"capability {FIRST_CAPABILITY[0]}.{FIRST_CAPABILITY[1]} and newer have",
        notes=(f"found {listed}",),
        help="an H100, H200, GH200 or newer does; `--backend cuda-cpu` runs them on the CPU",
    )


def _facts(driver: Driver, index: int) -> DeviceFacts:
    device, total = ct.c_int(), ct.c_size_t()
    name = ct.create_string_buffer(_NAME_BYTES)
    driver.call("cuDeviceGet", ct.byref(device), index)
    driver.call("cuDeviceGetName", name, _NAME_BYTES, device.value)
    driver.call("cuDeviceTotalMem_v2", ct.byref(total), device.value)

    def attribute(number: int) -> int:
        value = ct.c_int()
        driver.call("cuDeviceGetAttribute", ct.byref(value), number, device.value)
        return value.value

    return DeviceFacts(
        name.value.decode(errors="replace"),
        (attribute(_MAJOR), attribute(_MINOR)),
        attribute(_MULTIPROCESSORS),
        attribute(_SHARED_BYTES),
        attribute(_CORE_BYTES),
        attribute(_RESERVED_BYTES),
        attribute(_L2_BYTES),
        total.value,
        driver.version,
    )
