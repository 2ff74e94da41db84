"""The primitives that emitted kernels are written in: CUDA C++ headers, ``mc.cuh`` first."""

from functools import cache
from importlib import resources


@cache
def headers() -> dict[str, str]:
    """The texts of the library by file name, as programs carry them."""
    found = [p for p in resources.files(__name__).iterdir() if p.name.endswith(".cuh")]
    return {p.name: p.read_text(encoding="utf-8") for p in sorted(found, key=lambda p: p.name)}
