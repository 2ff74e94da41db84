"""Meshes with the axes of a wafer, for tests: of the IR, of emitted Python, and as text."""

from meshc.backends.python.runtime.percore import Mesh as RuntimeMesh
from meshc.ir.mesh import Axis, Mesh


def wafer(rows, columns, regions=None, segments=None, interleaved=()):
    """Rows ``y`` and columns ``x``, the columns in ``segments`` (``xh``, ``xd``) and all of it
    in ``regions`` (``r``) unless None."""
    factors = ()
    if segments is not None:
        factors = (Axis("xh", segments), Axis("xd", columns // segments))
    outer = (Axis("r", regions),) if regions is not None else ()
    mesh = Mesh((*outer, Axis("y", rows), Axis("x", columns, factors=factors)))
    return mesh.with_interleaved(interleaved)


def mesh_text(*numbers, **options):
    """The ``mesh`` section of a module, without its word."""
    return ", ".join(map(str, wafer(*numbers, **options).axes))


def runtime_wafer(rows, columns, regions=None, segments=None):
    """The same for a program of the Python target."""
    mesh = wafer(rows, columns, regions, segments)
    factors = {a.name: {f.name: f.size for f in a.factors} for a in mesh.axes if a.factors}
    return RuntimeMesh({axis.name: axis.size for axis in mesh.axes}, factors)
