"""Kernels of a text on a device, from machine code made elsewhere or by a compiler here."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache
from pathlib import Path

from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.driver.launch import Kernel
from meshc.backends.cuda.library import headers
from meshc.backends.cuda.toolchain.cubin import KernelResources
from meshc.backends.cuda.toolchain.toolkit import Cubin, compile_cubin
from meshc.support.diagnostics import fail
from meshc.support.native import BuildError

_FOLDER = "cubins"


class Cubins:
    """Machine code by content in a folder of a program: a text that was changed is not in it."""

    def __init__(self, program: Path) -> None:
        self.folder = program / _FOLDER

    def find(self, text: str) -> Cubin | None:
        """What was kept for ``text`` and this library of primitives; None where there is none."""
        data = self._place(text)
        try:
            facts = json.loads(data.with_suffix(".json").read_text(encoding="utf-8"))
            kernels = {
                name: KernelResources(**{**needs, "parameters": tuple(needs["parameters"])})
                for name, needs in facts["kernels"].items()
            }
            return Cubin(data.read_bytes(), facts["arch"], facts["compiler"], kernels, ())
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, text: str, cubin: Cubin) -> None:
        """Keep the machine code of ``text``. Raises OSError."""
        data = self._place(text)
        data.parent.mkdir(parents=True, exist_ok=True)
        kernels = {name: asdict(needs) for name, needs in cubin.kernels.items()}
        facts = {"arch": cubin.arch, "compiler": cubin.compiler, "kernels": kernels}
        data.write_bytes(cubin.data)
        data.with_suffix(".json").write_text(json.dumps(facts, indent=1), encoding="utf-8")

    def make(self, texts: list[str]) -> None:
        """Compile and keep all of ``texts`` at the same time. Raises MeshcError and BuildError."""
        with ThreadPoolExecutor() as pool:
            for text, cubin in zip(texts, pool.map(compile_cubin, texts), strict=True):
                self.keep(text, cubin)

    def _place(self, text: str) -> Path:
        parts = headers()
        digest = hashlib.sha256(text.encode())
        for name, part in sorted(parts.items()):
            digest.update(f"\0{name}\0{part}".encode())
        return self.folder / f"{digest.hexdigest()[:32]}.cubin"


def load(device: Device, text: str, cubins: Cubins | None = None) -> dict[str, Kernel]:
    """The kernels of ``text`` by name. Raises MeshcError, ``cuda-toolkit`` when they are not among
    ``cubins`` and cannot be compiled."""
    if cubins is not None and (known := cubins.find(text)) is not None:
        return device.load(known)
    try:
        return device.load(compile_cubin(text))
    except BuildError as problem:
        fail("cuda-toolkit", f"a kernel cannot be compiled: {problem}")


def probes() -> str:
    """The text of the kernels that measure the device."""
    return _text("probes.cu")


def rates() -> str:
    """The text of the kernels that measure what the event model of a step rests on."""
    return _text("rates.cu")


@cache
def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
