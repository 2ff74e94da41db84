"""NVIDIA's driver, called by ctypes: its functions, and what their errors mean to a user.

Names and signatures are those of the CUDA Driver API reference (``cuda.h``).
"""

from __future__ import annotations

import ctypes as ct
from typing import NoReturn

from meshc.support.diagnostics import fail

LIBRARY = "libcuda.so.1"
# The first whose graphs keep the programmatic dependence of launches.
_MIN_VERSION = (12, 3)
_HANDLE, _INT, _UINT, _SIZE, _WIDE = ct.c_void_p, ct.c_int, ct.c_uint, ct.c_size_t, ct.c_uint64
_OUT = ct.c_void_p

_SIGNATURES: dict[str, tuple[type, ...]] = {
    "cuInit": (_UINT,),
    "cuDriverGetVersion": (_OUT,),
    "cuGetErrorName": (_INT, _OUT),
    "cuGetErrorString": (_INT, _OUT),
    "cuDeviceGetCount": (_OUT,),
    "cuDeviceGet": (_OUT, _INT),
    "cuDeviceGetName": (_OUT, _INT, _INT),
    "cuDeviceGetAttribute": (_OUT, _INT, _INT),
    "cuDeviceTotalMem_v2": (_OUT, _INT),
    "cuDevicePrimaryCtxRetain": (_OUT, _INT),
    "cuDevicePrimaryCtxRelease_v2": (_INT,),
    "cuCtxPushCurrent_v2": (_HANDLE,),
    "cuCtxPopCurrent_v2": (_OUT,),
    "cuModuleLoadData": (_OUT, _OUT),
    "cuModuleUnload": (_HANDLE,),
    "cuModuleGetFunction": (_OUT, _HANDLE, ct.c_char_p),
    "cuFuncSetAttribute": (_HANDLE, _INT, _INT),
    "cuOccupancyMaxActiveClusters": (_OUT, _HANDLE, _OUT),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (_OUT, _HANDLE, _INT, _SIZE),
    "cuMemGetInfo_v2": (_OUT, _OUT),
    "cuMemAlloc_v2": (_OUT, _SIZE),
    "cuMemFree_v2": (_WIDE,),
    "cuMemcpyHtoDAsync_v2": (_WIDE, _OUT, _SIZE, _HANDLE),
    "cuMemcpyDtoHAsync_v2": (_OUT, _WIDE, _SIZE, _HANDLE),
    "cuMemsetD8Async": (_WIDE, ct.c_ubyte, _SIZE, _HANDLE),
    "cuLaunchKernelEx": (_OUT, _HANDLE, _OUT, _OUT),
    "cuCtxGetStreamPriorityRange": (_OUT, _OUT),
    "cuStreamCreate": (_OUT, _UINT),
    "cuStreamCreateWithPriority": (_OUT, _UINT, _INT),
    "cuStreamDestroy_v2": (_HANDLE,),
    "cuStreamSynchronize": (_HANDLE,),
    "cuStreamWaitEvent": (_HANDLE, _HANDLE, _UINT),
    "cuStreamBeginCapture_v2": (_HANDLE, _INT),
    "cuStreamEndCapture": (_HANDLE, _OUT),
    "cuGraphInstantiateWithFlags": (_OUT, _HANDLE, _WIDE),
    "cuGraphLaunch": (_HANDLE, _HANDLE),
    "cuGraphDestroy": (_HANDLE,),
    "cuGraphExecDestroy": (_HANDLE,),
    "cuEventCreate": (_OUT, _UINT),
    "cuEventRecord": (_HANDLE, _HANDLE),
    "cuEventSynchronize": (_HANDLE,),
    "cuEventElapsedTime": (_OUT, _HANDLE, _HANDLE),
    "cuEventDestroy_v2": (_HANDLE,),
}

# Results of calls (CUresult) by what they mean to a user; kernels are at fault for the last ones.
OUT_OF_MEMORY, NO_DEVICE, LAUNCH_OUT_OF_RESOURCES = 2, 100, 701
_DRIVER = frozenset((34, 36, 802, 803, 804))
_DEVICE = frozenset((46, NO_DEVICE, 101, 102, 214))
_CUBIN = frozenset((200, 209, 218, 221, 222, 223, 300))
_CLUSTER = frozenset((720, 912))
_FAULT = frozenset((700, 702, 710, 714, 715, 716, 717, 718, 719))
_UPDATE = "install a driver for CUDA 12.3 or newer"


class Driver:
    """The driver's library, initialised, with every result checked.

    Errors of kernels come late, from whatever call is next, so the driver keeps the names of
    kernels that may still run; ``lost`` says that one failed, after which no call succeeds.
    """

    def __init__(self, library: str = LIBRARY) -> None:
        """Raises MeshcError: ``cuda-driver`` when there is no driver or it is too old,
        ``cuda-device`` when it has no device."""
        self._library = _load(library)
        self._running: dict[str, None] = {}
        self.lost = False
        self.call("cuInit", 0)
        self.version = self._version()
        if self.version < _MIN_VERSION:
            words = f"the driver is for CUDA {self.version[0]}.{self.version[1]}"
            fail("cuda-driver", f"{words}, which is too old", help=_UPDATE)

    def result(self, function: str, *arguments: object) -> int:
        """Call ``function`` and give its result, 0 for success."""
        code: int = getattr(self._library, function)(*arguments)
        self.lost = self.lost or code in _FAULT
        return code

    def call(self, function: str, *arguments: object) -> None:
        """Call ``function``. Raises MeshcError when it fails."""
        if code := self.result(function, *arguments):
            self.explain(function, code)

    def running(self, *kernels: str) -> None:
        """Remember kernels that were launched."""
        self._running.update(dict.fromkeys(kernels))

    def finished(self) -> None:
        """Forget the kernels: all have ended without an error."""
        self._running.clear()

    def explain(self, function: str, code: int, doing: str = "") -> NoReturn:
        """Raise MeshcError with what ``code`` of ``function`` means; ``doing`` replaces the name of
        the function by words."""
        words = f"{self._text('cuGetErrorName', code)} ({self._text('cuGetErrorString', code)})"
        if code in _FAULT:
            self._explain_fault(words)
        where = doing or f"{function} failed"
        if code == OUT_OF_MEMORY:
            fail("cuda-memory", f"{where}: the device has too little free memory")
        if code in _DRIVER:
            fail("cuda-driver", f"{where}: {words}", help=_UPDATE)
        if code in _DEVICE:
            fail("cuda-device", f"{where}: {words}", help="`nvidia-smi` lists the devices")
        if code in _CUBIN:
            fail("cuda-driver", f"{where}: {words}", help="update the driver")
        if code in _CLUSTER:
            fail("cuda-cluster", f"{where}: {words}")
        if code == LAUNCH_OUT_OF_RESOURCES:
            fail("cuda-launch", f"{where}: {words}")
        fail("cuda-call", f"{where}: {words}")

    def _explain_fault(self, words: str) -> NoReturn:
        names = [f"'{name}'" for name in self._running]
        several = [f"launched since the last wait: {', '.join(names)}"] if len(names) > 1 else []
        fail(
            "cuda-fault",
            f"{f'kernel {names[0]}' if len(names) == 1 else 'a kernel'} failed: {words}",
            notes=several,
            help="`--backend cuda-cpu` runs the same kernels on the CPU and names the access",
        )

    def _text(self, function: str, code: int) -> str:
        found = ct.c_char_p()
        known = not getattr(self._library, function)(code, ct.byref(found)) and found.value
        return known.decode(errors="replace") if known else f"error {code}"

    def _version(self) -> tuple[int, int]:
        number = ct.c_int()
        self.call("cuDriverGetVersion", ct.byref(number))
        return number.value // 1000, number.value % 1000 // 10


def _load(library: str) -> ct.CDLL:
    try:
        found = ct.CDLL(library)
    except OSError:
        fail(
            "cuda-driver",
            f"NVIDIA's driver is not installed: {library} cannot be loaded",
            help="kernels compile without it, and `--backend cuda-cpu` runs them on the CPU",
        )
    for name, signature in _SIGNATURES.items():
        try:
            getattr(found, name).argtypes = signature
        except AttributeError:
            fail("cuda-driver", f"the driver is too old: it has no {name}", help=_UPDATE)
    return found


class _Dims(ct.Structure):
    _fields_ = [(name, ct.c_uint) for name in ("x", "y", "z")]


class _AttributeValue(ct.Union):
    _fields_ = [("pad", ct.c_char * 64), ("dims", _Dims), ("flag", ct.c_int)]


class LaunchAttribute(ct.Structure):
    """``CUlaunchAttribute``"""

    _fields_ = [("id", ct.c_uint), ("pad", ct.c_char * 4), ("value", _AttributeValue)]

    @staticmethod
    def cooperative() -> LaunchAttribute:
        """All blocks are resident at once, or the launch is refused."""
        return LaunchAttribute(2, b"", _AttributeValue(flag=1))

    @staticmethod
    def cluster(blocks: int) -> LaunchAttribute:
        """Blocks of a cluster."""
        return LaunchAttribute(4, b"", _AttributeValue(dims=_Dims(blocks, 1, 1)))

    @staticmethod
    def programmatic() -> LaunchAttribute:
        """The kernel may start before the one in front of it has ended."""
        return LaunchAttribute(6, b"", _AttributeValue(flag=1))


class LaunchConfig(ct.Structure):
    """``CUlaunchConfig``"""

    _fields_ = [
        *((f"grid_{axis}", ct.c_uint) for axis in "xyz"),
        *((f"block_{axis}", ct.c_uint) for axis in "xyz"),
        ("shared_bytes", ct.c_uint),
        ("stream", ct.c_void_p),
        ("attributes", ct.POINTER(LaunchAttribute)),
        ("attribute_count", ct.c_uint),
    ]
