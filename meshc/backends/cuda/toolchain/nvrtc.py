"""Compiles with NVRTC, NVIDIA's compiler in a library: needs neither a GPU nor a driver.

Called by ctypes; functions as in the NVRTC reference, "Supported Compile Options" for the flags.
"""

from __future__ import annotations

import ctypes as ct
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from meshc.backends.cuda.toolchain.compiler import FLAGS, Built, fail_too_old, refuse
from meshc.backends.cuda.toolchain.locations import find_headers, toolkit_folders
from meshc.support.native import BuildError

_FIRST_WITH_CLUSTERS = (12, 0)
_LIBRARY_FOLDERS = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
# Found by the loader when no folder has one; newest first.
_LOADER_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
# Headers that mc.cuh includes: a change to one is a change of the compiler.
_JUDGED_HEADERS = ("cuda_fp16.h", "cuda_fp16.hpp", "cuda_bf16.h", "cuda_bf16.hpp")


class _Library:
    """NVRTC's functions, with their results checked."""

    def __init__(self, library: ct.CDLL) -> None:
        self._library = library
        library.nvrtcGetErrorString.restype = ct.c_char_p

    def call(self, name: str, *arguments: object) -> None:
        """Call ``nvrtcNAME``. Raises BuildError when it fails."""
        if code := getattr(self._library, f"nvrtc{name}")(*arguments):
            raise BuildError(f"NVRTC: {self._words(code)} in nvrtc{name}")

    def compiled(self, program: ct.c_void_p, options: list[str]) -> bool:
        """Whether the program is legal; what is wrong stands in its log."""
        values = (ct.c_char_p * len(options))(*(option.encode() for option in options))
        return not self._library.nvrtcCompileProgram(program, len(options), values)

    def text(self, name: str, program: ct.c_void_p) -> bytes:
        """What ``nvrtcGetNAMESize`` and ``nvrtcGetNAME`` give."""
        size = ct.c_size_t()
        self.call(f"Get{name}Size", program, ct.byref(size))
        held = ct.create_string_buffer(max(1, size.value))
        self.call(f"Get{name}", program, held)
        return held.raw[: size.value]

    def _words(self, code: int) -> str:
        words: bytes = self._library.nvrtcGetErrorString(code)
        return words.decode(errors="replace")


@dataclass(frozen=True)
class Nvrtc:
    """The library at ``path``, with the folder of CUDA's headers."""

    path: str
    headers: Path

    @property
    def name(self) -> str:
        """``NVRTC 13.0``"""
        major, minor = self.version
        return f"NVRTC {major}.{minor}"

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor version of the toolkit that the library is of. Raises BuildError."""
        major, minor = ct.c_int(), ct.c_int()
        _load(self.path).call("Version", ct.byref(major), ct.byref(minor))
        return major.value, minor.value

    @property
    def identity(self) -> str:
        """Version, size and age of the library, and the headers' content."""
        return f"{self.name} {_fingerprint(self.path, self.headers)}"

    def build(self, text: str, headers: Mapping[str, str], arch: str) -> Built:
        """Compile ``text``. Raises BuildError, and MeshcError for a library that is too old."""
        if self.version < _FIRST_WITH_CLUSTERS:
            fail_too_old(self.name, arch)
        library, program = _load(self.path), ct.c_void_p()
        names = (ct.c_char_p * len(headers))(*(name.encode() for name in headers))
        texts = (ct.c_char_p * len(headers))(*(part.encode() for part in headers.values()))
        library.call(
            "CreateProgram", ct.byref(program), text.encode(), b"kernels.cu",
            len(headers), texts, names,
        )  # fmt: skip
        try:
            legal = library.compiled(program, self._options(arch))
            log = library.text("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
            if not legal:
                refuse(log)
            return Built(library.text("CUBIN", program), log)
        finally:
            library.call("DestroyProgram", ct.byref(program))

    def _options(self, arch: str) -> list[str]:
        """``--device-as-default-execution-space``: there is no host code, so constexpr functions
        without a mark are the device's, as nvcc lets device code use them."""
        return [
            f"--gpu-architecture={arch}",
            *(f"-{flag}" for flag in FLAGS),
            "--device-as-default-execution-space",
            "--ptxas-options=-v",
            f"--include-path={self.headers}",
        ]


def find_nvrtc() -> Nvrtc | None:
    """NVRTC with CUDA's headers; None when one of both is missing."""
    for path, folder in _candidates():
        headers = find_headers(folder)
        if headers is not None and _loads(path):
            return Nvrtc(path, headers)
    return None


def _candidates() -> Iterator[tuple[str, Path | None]]:
    for folder in toolkit_folders():
        for place in _LIBRARY_FOLDERS:
            for library in sorted((folder / place).glob("libnvrtc.so.*"), reverse=True):
                yield str(library), folder
    for name in _LOADER_NAMES:
        yield name, None


def _loads(path: str) -> bool:
    try:
        _load(path)
    except BuildError:
        return False
    return True


@cache
def _load(path: str) -> _Library:
    """The library at ``path``, opened once. Raises BuildError.

    It looks for its builtins by name alone, so they are opened first where they lie beside it.
    """
    try:
        for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")):
            ct.CDLL(str(builtins), mode=ct.RTLD_GLOBAL)
        return _Library(ct.CDLL(path))
    except (OSError, AttributeError) as problem:
        raise BuildError(f"NVRTC cannot be loaded: {problem}") from problem


@cache
def _fingerprint(path: str, headers: Path) -> str:
    digest = hashlib.sha256()
    if Path(path).is_file():
        facts = Path(path).stat()
        digest.update(f"{facts.st_size} {facts.st_mtime_ns}".encode())
    for name in _JUDGED_HEADERS:
        header = headers / name
        digest.update(header.read_bytes() if header.is_file() else b"")
    return digest.hexdigest()[:16]
