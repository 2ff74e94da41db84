"""Masks of scores by position: of keys behind a row's query, and of those before its window.

Positions of keys grow with their lanes. So the keys that a row sees follow each other, and a mask
is one operation on a row: on the lanes from the first key on that lies behind the query, or on all
lanes up to the last key that lies before the window.
"""

from __future__ import annotations

from meshc.analysis.csl.strided_windows import Dim, Window, own
from meshc.backends.csl.kernels.shared_code import SharedCode, Writer, literal
from meshc.backends.csl.spelling.expressions import expression
from meshc.backends.csl.spelling.memory_dsds import builtin, moved, resized
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.affine import Expr
from meshc.ir.ops.tile import Compute
from meshc.support.diagnostics import fail

_FARTHEST = 2**15 - 1
"""How far apart two positions are at most."""


class Masks:
    """Writers of masks by position, with the functions of ``code``."""

    def __init__(self, code: SharedCode) -> None:
        self.code = code
        self.writers: dict[str, Writer] = {
            "mask_causal": self._mask_causal,
            "mask_window": self._mask_window,
        }

    def _mask_causal(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        """Scores [.., rows, keys]; ``until`` is the position behind the last that a row sees."""
        row, keys = self._row(op, windows[0])
        count = self._count(op, own("until") - own("first"))
        none_seen = csl.infix("until", "<=", "first")
        share, hidden = _hidden(op, windows[0])
        rest = resized(moved(row, "seen", windows[0].dtype), "beyond", hidden)
        body = [
            csl.const("seen", csl.either(none_seen, csl.cast("i16", 0), count)),
            csl.const("beyond", keys - "seen"),
            csl.when(csl.infix("beyond", ">", 0), self._lowest(windows[0], rest), share=share),
        ]
        return self._rows(op, windows[0], body)

    def _mask_window(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        """The same; ``reach`` counts the positions from the first key to the query."""
        row, keys = self._row(op, windows[0])
        window, (share, hidden) = _window(op), _hidden(op, windows[0])
        hiding = [
            csl.const("passed", self._count(op, own("reach") - window)),
            csl.const("hidden", csl.either(csl.infix("passed", "<", keys), "passed", keys)),
            *self._lowest(windows[0], resized(row, "hidden", hidden)),
        ]
        reach = csl.const("reach", csl.Name("until") - "first")
        return self._rows(
            op, windows[0], [reach, csl.when(csl.infix("reach", ">", window), hiding, share=share)]
        )

    def _rows(self, op: Compute, scores: Window, inner: list[csl.Statement]) -> list[csl.Statement]:
        """``inner`` for each row, where ``first`` is the position of its first key."""
        spell, rows = self.code.descriptors.spell, scores.dims[-2]
        query, key, limit = (_position(op, name) for name in ("query", "key", "limit"))
        each = op.params["query_step"]
        assert isinstance(each, int)
        body = [
            csl.const("query", expression(query + _index("row", rows) * each + 1, spell)),
            csl.const("limit", csl.cast("i16", expression(limit, spell))),
            csl.const("until", csl.either(csl.infix("query", "<", "limit"), "query", "limit")),
            csl.const("first", csl.cast("i16", expression(key, spell))),
            *inner,
        ]
        return (
            self.code.over("row", rows, body)
            if rows.extent > 1 or rows.count
            else [csl.scope(body)]
        )

    def _row(self, op: Compute, scores: Window) -> tuple[csl.Expression, csl.Expression]:
        """The descriptor of the keys of a row of a head, and how many these are."""
        *heads, rows, keys = scores.dims
        if keys.stride != 1 and keys.extent > 1:
            fail("csl-view", f"keys of %{scores.buffer.name} do not follow each other", op.span)
        row = scores.moved(_index("row", rows) * rows.stride)
        for place, dim in enumerate(heads):
            row = row.moved(_index(f"h{place}", dim) * dim.stride)
        descriptor = self.code.descriptors.memory(row.inner([Dim(keys.extent, keys.stride)]))
        return descriptor, expression(keys.steps, self.code.descriptors.spell)

    def _count(self, op: Compute, positions: Expr) -> csl.Expression:
        """Keys at the first of so many positions, and at steps from there."""
        apart = _apart(op)
        found = expression(positions + (apart - 1), self.code.descriptors.spell)
        return found if apart == 1 else found / apart

    def _lowest(self, scores: Window, lanes: csl.Expression) -> list[csl.Statement]:
        """Minus infinity in ``lanes`` of each head."""
        number = literal(float("-inf"), scores.dtype)
        body: list[csl.Statement] = [csl.do(builtin("fmov", scores.dtype), lanes, number)]
        for place, dim in reversed([*enumerate(scores.dims[:-2])]):
            body = self.code.over(f"h{place}", dim, body)
        return body


def _index(variable: str, dim: Dim) -> Expr:
    """The variable of a loop over ``dim``."""
    return own(variable) if dim.extent > 1 else Expr.const(0)


def _hidden(op: Compute, scores: Window) -> tuple[float, int]:
    """In which share of rows a mask hides keys, and how many in each. Queries of several rows lie
    anywhere among the keys, a single one behind them."""
    rows, keys = (dim.extent for dim in scores.dims[-2:])
    if op.kernel == "mask_causal":
        return 1, keys // 2
    passed = max(0, keys - _window(op) // _apart(op))
    return (min(passed, 1), passed) if rows == 1 else (passed / keys, passed // 2)


def _apart(op: Compute) -> int:
    """How far the position of a key lies behind that of the one before."""
    apart = op.params["key_step"]
    assert isinstance(apart, int)
    if apart < 1:
        fail("csl-kernel", f"'{op.kernel}' is emitted for a key_step of 1 or more", op.span)
    return apart


def _window(op: Compute) -> int:
    """The window of a mask; a wider one hides no more than one that positions do not exceed."""
    window = op.params["window"]
    assert isinstance(window, int)
    return min(window, _FARTHEST)


def _position(op: Compute, name: str) -> Expr:
    found = op.params[name]
    assert isinstance(found, Expr)
    return found
