"""No pass, fact, interpreter or back end names an axis of a mesh that it was not given."""

import ast

from sources import FILES, PACKAGE, nodes

NAMES = {"r", "y", "x", "xh", "xd", "rank_y", "rank_x", "rank_xd"}
# Names of the device, the language's formal parameters, CUDA's dim3, file modes, the simulator's
# own coordinates, the fields of a packing rectangle.
ELSEWHERE = {
    "devices/axes.py",
    "frontend/language/functions.py",
    "frontend/language/builtin_signatures.py",
    "backends/cuda/driver/driver_api.py",
}


def spelled(path):
    """Places of string literals in ``path`` that are names of axes."""
    every = nodes(path)
    modes = {
        id(keyword.value)
        for node in every
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg in ("mmap_mode", "mode")
    }
    sizes = {
        id(part)  # the "x" of "24x16"
        for node in every
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    return [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.value!r}"
        for node in every
        if isinstance(node, ast.Constant) and node.value in NAMES and id(node) not in modes | sizes
    ]


def test_no_axis_is_named_outside_the_device():
    paths = [
        path
        for path in FILES
        if not str(path.relative_to(PACKAGE)).startswith("sim/")
        and str(path.relative_to(PACKAGE)) not in ELSEWHERE
    ]
    assert len(paths) > 200
    assert [place for path in paths for place in spelled(path)] == []
