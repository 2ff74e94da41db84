"""Tile-level modules to the files of a CSL program."""

from __future__ import annotations

import json
from collections.abc import Mapping

from meshc.backends.csl.host_file import host_file
from meshc.backends.csl.layout_file import layout_file
from meshc.backends.csl.pe_file import PeFile, colors_on, free_bytes, pe_file
from meshc.ir.module import Module
from meshc.support.diagnostics import fail

ARCHITECTURES = ("wse2", "wse3")


def emit(modules: Mapping[str, Module]) -> dict[str, str]:
    """Path and text of every file: layout, a file per phase, the host's ``run.py``, commands.

    The architecture is the device of the modules. Raises ``csl-device`` for another one,
    ``csl-phases`` for several phases, and what the parts raise.
    """
    if len(modules) != 1:
        fail("csl-phases", "a CSL program has one phase", help="choose it with --phase")
    ((phase, module),) = modules.items()
    arch = str(module.device.get("name", ""))
    if arch not in ARCHITECTURES:
        fail(
            "csl-device",
            f"CSL is for {' and '.join(ARCHITECTURES)}, not for '{arch}'",
            help="choose it with --device",
        )
    pe = pe_file(module, phase, arch)
    return {
        "layout.csl": layout_file(module, pe, phase),
        f"{phase}.csl": pe.text,
        "run.py": host_file(module),
        f"commands_{arch}.sh": _commands(module, arch),
        "report.json": json.dumps(report(module, pe), indent=2) + "\n",
    }


def _commands(module: Module, arch: str) -> str:
    mesh = module.the_mesh()
    return (
        "#!/usr/bin/env bash\n"
        "set -e\n"
        f"cslc layout.csl --arch={arch} --fabric-dims={mesh.columns + 7},{mesh.rows + 2} "
        "--fabric-offsets=4,1 --memcpy --channels=1 -o out\n"
        "cs_python run.py --name out\n"
    )


def report(module: Module, pe: PeFile) -> dict[str, object]:
    """What the program uses of a core: bytes by buffer, colors and queues by channel, what is
    left."""
    mesh = module.the_mesh()
    colors = {
        f"{end.channel.name}.{end.verb}": sorted(colors_on(end.colors, mesh.rows, mesh.columns))
        for end in pe.ends.of.values()
    }
    taken = {color for used in colors.values() for color in used}
    buffers = {b.value.name: b.type.bytes for b in module.buffers}
    return {
        "arch": module.device.get("name"),
        "mesh": [mesh.columns, mesh.rows],
        "predicted_cycles": pe.predicted_cycles,
        "inputs": _tensors(module, "in"),
        "outputs": _tensors(module, "out"),
        "memory": {
            "buffers": buffers,
            "scratch": pe.scratch_bytes,
            "data": sum(buffers.values()) + pe.scratch_bytes,
            "left": free_bytes(module) - pe.scratch_bytes,
        },
        "colors": {"by_channel": colors, "left": 21 - len(taken)},
        "queues": {f"{e.channel.name}.{e.verb}": e.queue for e in pe.ends.of.values()},
        "tasks": pe.tasks,
    }


def _tensors(module: Module, direction: str) -> dict[str, list[int]]:
    """Shapes of the tensors that the host gives or gets."""
    return {
        port.name: list(port.tensor.shape(module.dims))
        for port in module.ports
        if port.direction == direction and port.name not in module.constants
    }
