"""Modules that were given as text of some level: what they fix, and what is asked of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshc.backends.request import CompileRequest, flag_of, told
from meshc.ir.batch import requests_of
from meshc.ir.clone import clone_module
from meshc.ir.mesh import Mesh
from meshc.ir.module import Module
from meshc.passes.base import Pass
from meshc.pipelines import CODING, GIVEN, KEEPING
from meshc.support.diagnostics import Diagnostics, fail
from meshc.verify import check_fact

_OBEYED_BY: Mapping[str, tuple[str, ...]] = {
    "mesh": ("partition",),
    "align": ("partition",),
    "form": ("partition",),
    "result": ("partition",),
    "kv": ("partition", "shift-kv-cache"),
    "algo gemm": ("partition", "select-gemm"),
    "algo all_reduce": ("select-collective",),
    "algo dispatch": ("select-dispatch",),
    "keep_quantised": (KEEPING,),
    "kv_dtype": (CODING,),
}
"""What a request asks of passes, and those that obey it where one of them is still ahead."""
_OF_MODELS = ("seq", "layers", "choose", "phases", "chunk", "kv_layout", "drafts")
"""What is settled before there is a module of one phase."""


def on_its_device(name: str, module: Module, request: CompileRequest) -> CompileRequest:
    """``request`` for the device that ``module``, the text ``name``, is for, if it says one. Raises
    ``bad-argument`` where another one is asked for."""
    if module.device is None:
        return request
    if request.device and request.the_device() != module.device:
        fail(
            "bad-argument",
            f"--device is {told(request.device)}, but '{name}' is for {module.device.name}"
            + (" of other numbers" if request.device_name == module.device.name else ""),
            help="leave it out, or compile the model that the text was made of",
        )
    return request.changed(device=module.device)


def started(given: Module, request: CompileRequest) -> Module:
    """A copy of ``given`` for the passes ahead, on the device of ``request`` where its text names
    none; what the passes ask for is proved where the text does not claim it."""
    module = clone_module(given)
    if module.device is None:
        module.device = request.the_device()
    for fact in GIVEN[module.level]:
        if fact not in module.holds:
            check_fact(module, fact)
            module.holds.add(fact)
    return module


def check_asked(name: str, module: Module, request: CompileRequest, ahead: Sequence[Pass]) -> None:
    """Raise ``bad-argument`` for everything that ``request`` asks of ``module``, the text ``name``,
    in vain: the text says it otherwise, or the passes that would obey it are not ``ahead``.

    What the text says alike is no mistake, so that a dump can be compiled on with the flags that it
    was made with.
    """
    found = Diagnostics()
    said, passes = _said(module), {step.NAME for step in ahead}
    for what, asked in _asked(request).items():
        flag, *op = what.split()
        words = f"{flag_of(flag)} is {'='.join((*op, told(asked)))}, but '{name}'"
        if what == "mesh" and module.mesh is not None:
            if not _same_mesh(module.mesh, request, passes):
                found.error("bad-argument", f"{words} is of a mesh {_sizes(module.mesh)}")
        elif what in said:
            if asked != said[what]:
                found.error("bad-argument", f"{words} says {told(said[what])}")
        elif what in _OF_MODELS:
            found.error("bad-argument", f"{words} is the module of a phase, made without it")
        elif what in _OBEYED_BY and not passes.intersection(_OBEYED_BY[what]):
            chosen = f"is of the {module.level} level, where that is chosen already"
            found.error("bad-argument", f"{words} {chosen}")
    found.raise_errors()


def _asked(request: CompileRequest) -> dict[str, object]:
    """What a request asks for, by fields; algorithms by their op."""
    asked = request.asked()
    algorithms = dict(text.split("=", 1) for text in asked.pop("algo", ()))
    return asked | {f"algo {op}": name for op, name in algorithms.items()}


def _said(module: Module) -> dict[str, object]:
    """What a module says of fields of a request."""
    said: dict[str, object] = {
        "dtype": str(module.dtype()),
        "batch": requests_of(module),
        "phase": module.option("phase", "main"),
    }
    return said if module.rows is None else said | {"seq": module.capacity}


def _same_mesh(mesh: Mesh, request: CompileRequest, passes: set[str]) -> bool:
    """Whether the mesh of ``request`` is ``mesh``, to whose regions layers may still be dealt."""
    *plane, regions = request.the_device().axes.sizes_of(request.mesh_name)
    dealt = "split-regions" in passes and mesh.regions == 1
    return tuple(plane) == (mesh.columns, mesh.rows) and (dealt or regions in (0, mesh.regions))


def _sizes(mesh: Mesh) -> str:
    """A mesh as ``--mesh`` calls it."""
    plane = f"{mesh.columns}x{mesh.rows}"
    return plane if mesh.regions == 1 else f"{plane} in {mesh.regions} regions"
