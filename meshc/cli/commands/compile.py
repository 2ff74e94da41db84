"""``meshc compile``: a model to a program, or to IR of a level."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from meshc.cli.output import print_json
from meshc.cli.progress import Progress
from meshc.cli.requests import request_of
from meshc.cli.watching import Watching
from meshc.driver import (
    Compiled,
    LoadedModel,
    compile_loaded,
    find_weights,
    load_any,
    open_weights,
    weight_files,
)
from meshc.driver.weights import check_present
from meshc.ir.mesh import Mesh
from meshc.support.diagnostics import Diagnostics
from meshc.support.output import Content, check_free, write_directory


def run(options: argparse.Namespace) -> int:
    """Compile, write, report."""
    report = Diagnostics()
    request = request_of(options)
    if options.output not in (None, "-"):
        check_free(Path(options.output), options.force)
    with Progress() as progress:
        watching = Watching.of(options, progress)
        try:
            loaded = load_any(options.model, report)
            compiled = compile_loaded(loaded, request, watching.instruments, report)
            names = _write(options, loaded, compiled, report, progress)
        finally:
            watching.finish(report)
    if options.json:
        print_json(watching.outcome(names, report))
    elif options.output != "-":
        print(_summary(loaded, compiled, options.output))
    return 0


def _write(
    options: argparse.Namespace,
    loaded: LoadedModel,
    compiled: Compiled,
    report: Diagnostics,
    progress: Progress,
) -> list[str]:
    """Write what was asked for; the paths written, relative to the output directory."""
    if options.output is None:
        return []
    if options.output == "-":
        if not options.json:
            sys.stdout.write("\n".join(t for n, t in compiled.files.items() if _is_ir(n)))
        return []
    files: dict[str, Content] = dict(compiled.files)
    if options.weights is not None:
        place = find_weights(loaded.name, loaded.weights, options.weights)
        assert place is not None
        tensors = open_weights(
            place, loaded.config, options.layers, report, on_read=progress.reading
        )
        check_present(compiled.weight_names, tensors)
        files |= weight_files(compiled.weight_names, tensors)
    return write_directory(Path(options.output), files, compiled.facts, options.force, report)


def _is_ir(name: str) -> bool:
    return name.endswith(".meshir")


def _summary(loaded: LoadedModel, compiled: Compiled, output: str | None) -> str:
    """A few lines: what was compiled onto what, and what to do next."""
    request = compiled.request
    mesh = next((m.mesh for m in compiled.modules.values() if m.mesh is not None), request.mesh)
    where = (
        request.device_name if request.target == "cuda" else f"{request.device_name}, mesh {mesh}"
    )
    lines = [f"{loaded.name} on {where}"]
    for phase, module in compiled.modules.items():
        ops = sum(1 for _ in module.walk())
        words = [f"{module.level} level", f"{ops} ops"]
        if module.mesh is not None and module.mesh.regions > 1:
            words.append(_regions(module.mesh, module.device))
        ends = [b.address + b.type.bytes for b in module.buffers if b.address is not None]
        if ends:
            words.append(f"{max(ends)} bytes of memory per core")
        lines.append(f"  {phase}: {', '.join(words)}")
        lines += [f"    {line}" for line in compiled.use_of_a_core(phase)]
    if output is not None:
        lines.append(f"written to {output}")
    return "\n".join(lines)


def _regions(mesh: Mesh, device: Mapping[str, object]) -> str:
    """Where the regions are, and what they leave of the device."""
    text = f"{mesh.regions} regions of {mesh} cores"
    if mesh.origins:
        text += " at columns and rows " + " ".join(f"({x}, {y})" for x, y in mesh.origins)
    width, height = device.get("cores_x"), device.get("cores_y")
    if isinstance(width, int) and isinstance(height, int) and device.get("enforced"):
        text += f" ({width * height - mesh.cores} of {width * height} cores left over)"
    return text
