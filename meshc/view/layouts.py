"""Where the elements of values lie on a mesh: for each dim, which part of which axis has what."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from meshc.analysis.layout.coordinates import coordinate_values
from meshc.ir.mesh import Mesh
from meshc.ir.module import Module
from meshc.ir.printer import op_lines
from meshc.ir.types import Split, TensorType
from meshc.ir.values import Value


def layouts(module: Module) -> dict[str, Any]:
    """The mesh of a mesh-level ``module``, the part that each position of an axis or factor is, and
    the values with their dims in groups that are dealt together."""
    mesh = module.the_mesh()
    found: list[tuple[Value, str, int]] = []
    found += [(param.value, param.role, 0) for param in module.function.params]
    found += [(value, "", line) for line, op in op_lines(module) for value in op.results]
    values = [_value(module, mesh, *one) for one in found if isinstance(one[0].type, TensorType)]
    used = {group["axis"] for value in values for group in value["groups"] if group["axis"]}
    used |= {group["skew"] for value in values for group in value["groups"] if group["skew"]}
    used |= {axis for value in values for axis in (*value["roots"], *value["partial"])}
    return {
        "mesh": mesh_facts(mesh),
        "parts": {axis: _parts(mesh, axis) for axis in sorted(used)},
        "values": values,
    }


def mesh_facts(mesh: Mesh) -> dict[str, Any]:
    """Sizes and names of the axes, and where regions begin on the device."""
    return {
        "rows": mesh.rows,
        "columns": mesh.columns,
        "regions": mesh.regions,
        "down": mesh.down,
        "across": mesh.across,
        "words": [str(axis) for axis in mesh.axes],
        "origins": [list(origin) for origin in mesh.origins],
    }


def _parts(mesh: Mesh, axis: str) -> dict[str, Any]:
    """For each position of the axis of the plane that ``axis`` is or divides, its part there."""
    whole = mesh.whole(axis)
    if whole not in mesh.plane:
        return {"whole": whole, "count": mesh.size(axis), "part": [*range(mesh.size(axis))]}
    positions = np.arange(mesh.size(whole))
    part = coordinate_values(mesh)[mesh.index(axis)].evaluate({whole: positions})
    held = np.broadcast_to(np.asarray(part), positions.shape).tolist()
    return {"whole": whole, "count": mesh.size(axis), "part": held}


def _value(module: Module, mesh: Mesh, value: Value, role: str, line: int) -> dict[str, Any]:
    kind = value.type
    assert isinstance(kind, TensorType)
    layout, groups = kind.layout, list[dict[str, Any]]()
    by_axis: dict[str, list[str]] = {}
    for dim in kind.dims:
        split = layout.split_of(dim) if layout is not None else None
        by_axis.setdefault(f"on {split.axis}" if split is not None else dim, []).append(dim)
    for dims in by_axis.values():
        split = layout.split_of(dims[0]) if layout is not None else None
        groups.append(_group(module, mesh, dims, split))
    return {
        "name": value.name,
        "type": str(kind),
        "role": role,
        "line": line,
        "bytes": kind.dtype.bytes * prod(group["block"] for group in groups),
        "groups": groups,
        "partial": [*layout.partial] if layout is not None else [],
        "roots": [*layout.roots] if layout is not None else [],
    }


def _group(module: Module, mesh: Mesh, dims: list[str], split: Split | None) -> dict[str, Any]:
    """Dims that are dealt together: several on one axis in equal blocks of their elements, counted
    with the last dim fastest."""
    extents = [module.dims[dim] for dim in dims]
    whole = prod(extents)
    found: dict[str, Any] = {"dims": dims, "extents": extents}
    if split is None:
        how = {"axis": "", "kind": "whole", "copies": 1, "skew": "", "parts": 1, "block": whole}
        return found | how
    parts = mesh.size(split.axis)
    found |= {"axis": split.axis, "skew": split.skew, "parts": parts}
    if len(dims) > 1:
        return found | {"kind": "block", "copies": 1, "block": -(-whole // parts)}
    return found | {"kind": split.kind, "copies": split.copies, "block": split.block}
