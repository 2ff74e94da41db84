"""A compile in words: one line, a few lines, and HTML for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from meshc.backends.request import CompileRequest
from meshc.backends.target import target_of
from meshc.devices import Device
from meshc.ir.mesh import Mesh
from meshc.ir.module import Module
from meshc.support.diagnostics import Diagnostic


def short(
    name: str,
    request: CompileRequest,
    modules: Iterable[str],
    files: Sequence[str] | Mapping[str, str],
    remarks: Sequence[Diagnostic],
) -> str:
    """One line, in angle brackets."""
    what = request.compile_to or request.target
    counts = f"{_counted(len(files), 'file')}, {_counted(len(remarks), 'remark')}"
    return f"<Compiled {name}: {', '.join(modules)} for {what} on {_where(request)}; {counts}>"


def summary(
    name: str,
    request: CompileRequest,
    modules: Mapping[str, Module],
    used: Mapping[str, Sequence[str]],
) -> list[str]:
    """Lines on what was compiled onto what; ``used`` are those on what a phase takes of a core."""
    mesh = next((m.mesh for m in modules.values() if m.mesh is not None), None)
    lines = [f"{name} on {_where(request, mesh)}"]
    for phase, module in modules.items():
        ops = sum(1 for _ in module.walk())
        words = [f"{module.level} level", f"{ops} ops"]
        if module.mesh is not None and module.mesh.regions > 1:
            words.append(_regions(module.mesh, module.the_device()))
        ends = [b.address + b.type.bytes for b in module.buffers if b.address is not None]
        if ends:
            words.append(f"{max(ends)} bytes of memory per core")
        lines.append(f"  {phase}: {', '.join(words)}")
        lines += [f"    {line}" for line in used[phase]]
    return lines


def html(
    title: str, lines: Sequence[str], files: Mapping[str, str], remarks: Sequence[Diagnostic]
) -> str:
    """A summary, files with their sizes and remarks; everything is escaped."""
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{len(text.encode())} bytes</td></tr>"
        for name, text in files.items()
    )
    told = escape("\n".join(message.render() for message in remarks))
    return (
        f"<div><code>{escape(title)}</code><pre>{escape(chr(10).join(lines))}</pre>"
        f"<details><summary>{_counted(len(files), 'file')}</summary>"
        f"<table>{rows}</table></details>"
        f"<details><summary>{_counted(len(remarks), 'remark')}</summary>"
        f"<pre>{told}</pre></details></div>"
    )


def _where(request: CompileRequest, mesh: Mesh | None = None) -> str:
    if not target_of(request).ON_MESH:
        return request.device_name
    return f"{request.device_name}, mesh {mesh or request.mesh_name}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _regions(mesh: Mesh, device: Device) -> str:
    """Where the regions are, and what they leave of the device."""
    text = f"{mesh.regions} regions of {mesh} cores"
    if mesh.origins:
        text += " at columns and rows " + " ".join(f"({x}, {y})" for x, y in mesh.origins)
    if device.enforced:
        every = device.cores_x * device.cores_y
        text += f" ({every - mesh.cores} of {every} cores left over)"
    return text
