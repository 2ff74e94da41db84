"""Kernels on a device: loaded from cubins, prepared for a grid, launched."""

from __future__ import annotations

import ctypes as ct
from collections.abc import Sequence
from dataclasses import replace

from meshc.backends.cuda.driver.context import Context
from meshc.backends.cuda.driver.device_memory import argument_bytes
from meshc.backends.cuda.driver.driver_api import LaunchAttribute, LaunchConfig
from meshc.backends.cuda.driver.streams import Stream
from meshc.backends.cuda.executor import Grid
from meshc.backends.cuda.toolchain.cubin import KernelResources
from meshc.backends.cuda.toolchain.toolkit import Cubin
from meshc.support.diagnostics import fail

# CUfunction_attribute
_DYNAMIC_SHARED_BYTES, _SHARED_PERCENT, _NON_PORTABLE_CLUSTER, _CLUSTER_POLICY = 8, 9, 14, 15
# CUclusterSchedulingPolicy: blocks of a cluster on different multiprocessors, where that can be.
_SPREAD = 1
# Up to here a block has its shared memory, and a cluster its size, without asking.
_SHARED_BYTES, _PORTABLE_CLUSTER = 48 * 1024, 8
_MAX_CLUSTER = 16


class Kernel:
    """A kernel of a loaded module; shapes and arguments are checked against its cubin."""

    def __init__(self, context: Context, name: str, handle: int, needs: KernelResources) -> None:
        self.name = name
        self.needs = needs
        self._context = context
        self._handle = handle
        self._shared_bytes = _SHARED_BYTES - needs.shared_bytes
        self._large_cluster = False
        self._shaped = False
        self._prepared: set[Grid] = set()

    def active_clusters(self, grid: Grid) -> int:
        """Clusters (blocks, where a cluster is one block) that can be on the device at once.

        Raises MeshcError: ``cuda-launch`` for a grid that the kernel does not allow.
        """
        self._allow(grid)
        count = ct.c_int()
        if grid.cluster == 1:
            self._context.driver.call(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                ct.byref(count), self._handle, grid.threads, grid.shared_bytes,
            )  # fmt: skip
            return count.value * self._context.facts.multiprocessors
        config = _config(grid, None, [LaunchAttribute.cluster(grid.cluster)])
        code = self._context.driver.result(
            "cuOccupancyMaxActiveClusters", ct.byref(count), self._handle, ct.byref(config)
        )
        if code:
            self._context.driver.explain("cuOccupancyMaxActiveClusters", code, self._asking(grid))
        return count.value

    def may_start_early(self, grid: Grid) -> bool:
        """Whether the grid may start while the one in front of it ends: where no two of its blocks
        find room on a multiprocessor.

        Of other grids two blocks take the room that the one in front left, on a half of the
        multiprocessors, and so does the next grid on the other half: a step of Llama-2-7B took
        5.0 ms in place of 3.7 on an H200.
        """
        facts = self._context.facts
        if grid.whole_grid:
            return False  # its blocks would wait for each other where others have their room
        held = grid.shared_bytes + self.needs.shared_bytes + facts.reserved_bytes
        return 2 * held > facts.core_bytes

    def resident(self, grid: Grid) -> Grid:
        """``grid``, of one whose blocks meet as many of them as are on the device at once.

        Raises MeshcError: ``cuda-launch`` for a grid that the kernel does not allow,
        ``cuda-cluster`` where not even one cluster is.
        """
        if not grid.whole_grid:
            return grid
        most = self.active_clusters(grid) * grid.cluster
        fitted = replace(grid, blocks=min(grid.blocks, most) or grid.cluster)
        self._check_resident(fitted)
        if fitted.blocks < grid.least_blocks:
            fail(
                "cuda-cluster",
                f"{self._asking(grid)}: clusters have memory for the key heads of one of "
                f"{grid.least_blocks} blocks, and {self._context.facts.name} holds {fitted.blocks} "
                "at once",
                help="compile with smaller clusters, or without",
            )
        return fitted

    def launch(
        self, grid: Grid, arguments: Sequence[object], stream: Stream, programmatic: bool = False
    ) -> None:
        """Start the kernel on ``stream``; with ``programmatic`` it may start before the kernel in
        front of it has ended, for which it waits itself.

        Raises MeshcError: ``cuda-launch`` for a grid or arguments that are not the kernel's,
        ``cuda-cluster`` when blocks cannot be on the device together; TypeError as
        ``argument_bytes``.
        """
        values = self._values(arguments)
        if grid not in self._prepared:
            self._check_resident(grid)
            self._prepared.add(grid)
        cells = [ct.create_string_buffer(value, len(value)) for value in values]
        addresses = (ct.c_void_p * len(cells))(*(ct.addressof(cell) for cell in cells))
        config = _config(grid, stream, _attributes(grid, programmatic))
        code = self._context.driver.result(
            "cuLaunchKernelEx", ct.byref(config), self._handle, addresses, None
        )
        if code:
            self._context.driver.explain("cuLaunchKernelEx", code, self._asking(grid))
        stream.launched(self.name)

    def _check_resident(self, grid: Grid) -> None:
        """All blocks of a cluster are resident at once, and all of a grid that meets."""
        if grid.cluster == 1 and not grid.whole_grid:
            self._allow(grid)
            return
        active = self.active_clusters(grid)
        if grid.whole_grid and active * grid.cluster < grid.blocks:
            fail(
                "cuda-cluster",
                f"{self._asking(grid)}: its {grid.blocks} blocks wait for each other, and "
                f"{self._context.facts.name} holds {active * grid.cluster} of them at once",
            )
        if not active:
            fail(
                "cuda-cluster",
                f"{self._asking(grid)}: {self._context.facts.name} cannot hold the blocks of one "
                "cluster at once",
                help="a smaller cluster, fewer threads or less shared memory",
            )

    def _allow(self, grid: Grid) -> None:
        """Ask the driver for what the grid needs beyond the usual."""
        self._check(grid)
        if not self._shaped:
            # A multiprocessor gives memory to L1 or back when nothing runs on it, so kernels that
            # take turns on it, or share it while one ends, all want the same.
            self._set(_SHARED_PERCENT, 100)
            if grid.cluster > 1:
                self._set(_CLUSTER_POLICY, _SPREAD)
            self._shaped = True
        if grid.shared_bytes > self._shared_bytes:
            self._set(_DYNAMIC_SHARED_BYTES, grid.shared_bytes)
            self._shared_bytes = grid.shared_bytes
        if grid.cluster > _PORTABLE_CLUSTER and not self._large_cluster:
            self._set(_NON_PORTABLE_CLUSTER, 1)
            self._large_cluster = True

    def _set(self, attribute: int, value: int) -> None:
        self._context.driver.call("cuFuncSetAttribute", self._handle, attribute, value)

    def _check(self, grid: Grid) -> None:
        threads, cluster = self.needs.max_threads, self.needs.cluster
        if grid.threads < 1 or grid.threads > (threads or 1024):
            self._refuse(f"{grid.threads} threads in a block, and it allows {threads or 1024}")
        if grid.cluster != (cluster or grid.cluster):
            self._refuse(f"clusters of {grid.cluster} blocks, and it is made for {cluster}")
        if not 1 <= grid.cluster <= _MAX_CLUSTER:
            self._refuse(f"clusters of {grid.cluster} blocks; a cluster has 1 to {_MAX_CLUSTER}")
        if grid.blocks < 1 or grid.blocks % grid.cluster:
            self._refuse(f"{grid.blocks} blocks in clusters of {grid.cluster}")
        self._context.check_block(self.name, self.needs, grid.shared_bytes)

    def _values(self, arguments: Sequence[object]) -> list[bytes]:
        values = [argument_bytes(argument) for argument in arguments]
        sizes = tuple(len(value) for value in values)
        if sizes != self.needs.parameters:
            self._refuse(
                f"arguments of {sizes} bytes, and its parameters are {self.needs.parameters}"
            )
        return values

    def _refuse(self, words: str) -> None:
        fail("cuda-launch", f"kernel '{self.name}' was launched with {words}")

    def _asking(self, grid: Grid) -> str:
        return (
            f"kernel '{self.name}' with {grid.blocks} blocks of {grid.threads} threads in clusters "
            f"of {grid.cluster} and {grid.shared_bytes} bytes of shared memory"
        )


def load_kernels(context: Context, cubin: Cubin) -> dict[str, Kernel]:
    """The kernels of ``cubin`` by name, on the device until the context ends.

    Raises MeshcError, ``cuda-driver`` when the driver is too old for the cubin.
    """
    driver, module = context.driver, ct.c_void_p()
    if code := driver.result("cuModuleLoadData", ct.byref(module), cubin.data):
        version = f"{driver.version[0]}.{driver.version[1]}"
        doing = f"the driver, for CUDA {version}, does not load what {cubin.compiler} compiled"
        driver.explain("cuModuleLoadData", code, doing)
    context.own("cuModuleUnload", module.value)
    found = {}
    for name, needs in cubin.kernels.items():
        function = ct.c_void_p()
        driver.call("cuModuleGetFunction", ct.byref(function), module, name.encode())
        found[name] = Kernel(context, name, function.value or 0, needs)
    return found


def _attributes(grid: Grid, programmatic: bool) -> list[LaunchAttribute]:
    """A grid that meets is launched as a cooperative one: all of its blocks start, or none."""
    found = [LaunchAttribute.cluster(grid.cluster)] if grid.cluster > 1 else []
    if grid.whole_grid:
        found.append(LaunchAttribute.cooperative())
    elif programmatic:
        found.append(LaunchAttribute.programmatic())
    return found


def _config(grid: Grid, stream: Stream | None, attributes: list[LaunchAttribute]) -> LaunchConfig:
    return LaunchConfig(
        grid.blocks, 1, 1, grid.threads, 1, 1, grid.shared_bytes,
        stream.handle if stream is not None else None,
        (LaunchAttribute * len(attributes))(*attributes), len(attributes),
    )  # fmt: skip
