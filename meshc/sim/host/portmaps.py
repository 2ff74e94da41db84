"""Port maps of hosts before SDK 1.0: where each element of a tensor lies on the PEs.

A map such as ``{ A[j=0:5][i=0:7] -> [PE[i//4, j//3] -> index[i%4, j%3]] }`` names the tensor's
indices with their ranges (both ends belong to them), the PE, and the place on the PE; of several
numbers the last runs fastest.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from meshc.sim.host.utils import input_array_to_u32, memcpy_view
from meshc.support.diagnostics import fail

_MAP = re.compile(
    r"\{\s*(\w+)\s*((?:\[[^\]]*\]\s*)+)->\s*\[\s*PE\s*\[(.*?)\]\s*->\s*index\s*\[(.*)\]\s*\]\s*\}",
    re.DOTALL,
)
_RANGE = re.compile(r"\s*(\w+)\s*=([^:]+)(?::([^:]+))?")
_MOST_ELEMENTS = 1 << 28


@dataclass(frozen=True)
class PortMap:
    """Where the tensor ``name`` of shape ``shape`` lies: the region of PEs, the words on each, and
    for each element its place in an array [h, w, words]."""

    name: str
    px: int
    py: int
    w: int
    h: int
    words: int
    shape: tuple[int, ...]
    places: Any

    @property
    def region(self) -> tuple[int, int, int, int, int]:
        """The numbers that a copy takes: px, py, w, h, words per PE."""
        return self.px, self.py, self.w, self.h, self.words


def read_map(text: str) -> PortMap:
    """The map that ``text`` describes. Raises MeshcError ``csl-host``."""
    found = _MAP.fullmatch(text.strip())
    if found is None:
        _refuse(text, "is no port map")
    ranges = [_range(text, part) for part in re.split(r"\]\s*\[|,", found[2].strip()[1:-1])]
    shape = tuple(high - low + 1 for _, low, high in ranges)
    if min(shape) < 1 or math.prod(shape) > _MOST_ELEMENTS:
        _refuse(text, f"describes a tensor of shape {shape}")
    grids = np.indices(shape)
    names = {name: grid + low for (name, low, _), grid in zip(ranges, grids, strict=True)}
    at = _numbers(text, found[3], names, shape)
    inside = _numbers(text, found[4], names, shape)
    if any(numbers.min() < 0 for numbers in inside):
        _refuse(text, f"reaches below 0 in '{found[4].strip()}'")
    if len(at) != 2:
        _refuse(text, "must give a PE by two numbers")
    extents = [int(numbers.max()) + 1 for numbers in inside]
    px, py = int(at[0].min()), int(at[1].min())
    w, h = int(at[0].max()) - px + 1, int(at[1].max()) - py + 1
    words = math.prod(extents)
    index = np.ravel_multi_index(inside, extents)
    places = ((at[1] - py) * w + at[0] - px) * words + index
    return PortMap(found[1], px, py, w, h, words, shape, places)


def _refuse(text: str, problem: str) -> NoReturn:
    fail("csl-host", f"'{text.strip()}' {problem}")


def _range(text: str, part: str) -> tuple[str, int, int]:
    found = _RANGE.fullmatch(part)
    if found is None:
        _refuse(text, f"has the range '{part.strip()}'")
    low, high = (_numbers(text, part, {}, ())[0] for part in (found[2], found[3] or found[2]))
    return found[1], int(low), int(high)


def _numbers(text: str, part: str, names: dict[str, Any], shape: tuple[int, ...]) -> list[Any]:
    try:
        parsed = ast.parse(f"[{part.strip()}]", mode="eval").body
        assert isinstance(parsed, ast.List)
        values = [np.broadcast_to(_value(e, names), shape) for e in parsed.elts]
    except (SyntaxError, KeyError, AssertionError, ZeroDivisionError):
        _refuse(text, f"has the expression '{part.strip()}'")
    return values


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    """An expression of integers, indices and ``+ - * // / %``."""
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return np.int64(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, names)
    assert isinstance(node, ast.BinOp)
    left, right = _value(node.left, names), _value(node.right, names)
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.FloorDiv() | ast.Div() if np.all(right):
            return left // right
        case ast.Mod() if np.all(right):
            return left % right
    raise AssertionError


def convert_input_tensor(portmap: str, tensor: Any) -> tuple[int, int, int, int, int, Any]:
    """What a copy to the PEs takes: px, py, w, h, words per PE, and the words, row-major."""
    found = read_map(portmap)
    given = np.asarray(tensor)
    if given.size != math.prod(found.shape):
        _refuse(portmap, f"has {math.prod(found.shape)} elements, the array {given.size}")
    words = np.zeros(found.w * found.h * found.words, np.uint32)
    words[found.places.reshape(-1)] = input_array_to_u32(given)
    return (*found.region, words)


def prepare_output_tensor(portmap: str, dtype: Any) -> tuple[int, int, int, int, int, Any]:
    """What a copy from the PEs takes: px, py, w, h, words per PE, and room for the words."""
    found = read_map(portmap)
    return (*found.region, np.zeros(found.w * found.h * found.words, np.uint32))


def format_output_tensor(portmap: str, dtype: Any, data: Any) -> Any:
    """The tensor in the words that a copy has filled."""
    found = read_map(portmap)
    return memcpy_view(np.asarray(data), dtype)[found.places]


def output_array_from_u32(words: Any, dtype: Any) -> Any:
    """The values of ``dtype`` in an array of words."""
    return memcpy_view(words, dtype)
