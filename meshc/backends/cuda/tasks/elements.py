"""Families without products of weights: each thread has elements of the block's tasks, or its
workers compute a task together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from meshc.backends.cuda.tasks.asking import Asking, waited_for
from meshc.backends.cuda.tasks.columns import Merged, merged, rounded
from meshc.backends.cuda.tasks.families import Placed
from meshc.backends.cuda.tasks.lanes import Lanes
from meshc.backends.cuda.tasks.matrix_places import base
from meshc.backends.cuda.tasks.statements import Locals, Statements, Text
from meshc.backends.cuda.tasks.storage import Storage
from meshc.backends.cuda.tasks.values import Values, extents, is_pointwise
from meshc.ir.affine import Expr
from meshc.ir.core import Op
from meshc.ir.ops import task, tile
from meshc.ir.types import BufferType
from meshc.ir.views import View

MOST_SPLITS_OF_A_THREAD = 16
"""Splits whose records a thread merges by eight lanes; a warp does more. On an H200 steps of
Llama-3-8B, with 16 splits, take 5 % longer by warps, those of Qwen3-30B-A3B, with 33, 4 % less."""


@dataclass
class Elements:
    """A family; ``ranges`` are those of names around it, ``behind`` are lines that follow what the
    workers of a block compute of a task together."""

    family: Placed
    storage: Storage
    locals: Locals
    ranges: dict[str, tuple[int, int]]
    behind: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ranges = {**self.ranges, **self.family.ranges}
        self.values = Values(self.storage, self.family.ops, ranges, self.family.waits)
        gives = [op for op in self.family.ops if isinstance(op, task.Give)]
        self.given = extents(gives[0].view)

    def compute(self, text: Text) -> None:
        """Write what the workers do: the block's tasks."""
        heads = self._heads()
        if heads is not None:
            self._by_heads(text, heads)
        elif len(self.given) == 2 and all(self._by_lane(op) for op in self.family.ops):
            self._by_lanes(text)
        else:
            with self.family.each(text):
                self.family.point(text, self.family.op.dims)
                self.values.arrays.clear()
                self.locals.restart()
                statements = Statements(self.values, text, self.locals)
                if any(map(statements.written, self.family.ops)):
                    statements.stage(v for op in self.family.ops for v in op.views()[1:])
                statements.add(self.family.ops)
                text.add(*self.behind)

    def _heads(self) -> Merged | None:
        """The records of the head whose attention a task merges and gives as it is."""
        (give, *more) = [op for op in self.family.ops if isinstance(op, task.Give)]
        whole = not (more or give.source.indices or give.source.reshape)
        found = merged(self.values, rounded(self.values, give.source).buffer) if whole else None
        if found is None or len(found.shape) != 3 or len(self.given) != 2:
            return None
        if found.lanes % 8 or self.given[-1] % 8:
            return None
        if self.storage.of_cluster(give.view.buffer):
            return None  # a thread stores one element at a time there
        return found

    @contextmanager
    def _elements(self, text: Text, together: int, by_warps: bool = False) -> Iterator[None]:
        """A loop of the workers, or of their warps, over the elements of the block's tasks, of
        which each takes so many ``together``: i is the first one's lane, b its request."""
        requests, lanes = self.given
        count, units = requests * lanes // together, lanes // together
        first, end = self.family.first, self.family.end
        own, every = ("(int)mc::warp()", "WARPS") if by_warps else ("me", "WORKERS")
        head = f"int at = mine.first({first}) * {count} + {own}; at < mine.last({end}) * {count}"
        with (
            self.family.each_group(text),
            text.within(f"for ({head}; at += {every}) {{"),
            self.values.within(b=requests, i=lanes - together + 1),
        ):
            request = f"at / {units} % {requests}" if requests > 1 else "0"
            times = f" * {together}" if together > 1 else ""
            text.add(f"const int task = at / {count}, b = {request}, i = at % {units}{times};")
            self.family.point(text, self.family.op.dims)
            yield

    def _by_heads(self, text: Text, heads: Merged) -> None:
        """A thread has eight lanes of a request of a task, or a warp where there are many splits,
        of which its threads take some each."""
        storage, spelled, splits = self.storage, self.values.spelled, heads.shape[1]
        (give,) = [op for op in self.family.ops if isinstance(op, task.Give)]
        by_warps = splits > MOST_SPLITS_OF_A_THREAD
        with self._elements(text, 8, by_warps):
            *_, rows, stride = storage.shape(heads.records)
            record, first = heads.index(self.values, Expr.var("b"))
            begin = spelled(storage.place(heads.records, record))
            index = base(give.view, (Expr.var("b"), Expr.var("i")))
            to = spelled(storage.place(give.view.buffer, index))
            name = "merge_attention_by_warp" if by_warps else "merge_attention"
            merge = f"mc::{name}<{splits}, {heads.lanes}, {rows * stride}>"
            given = f"{storage.scratch(heads.records)} + {begin}, {spelled(first + Expr.var('i'))}"
            target = f"{storage.scratch(give.view.buffer)} + {to}"
            tag = storage.tag(give.view.buffer, index, self.values.ranges)
            text.add("float v[8];", f"{merge}({given}, v{self.values.words(heads.of)});")
            if by_warps:
                text.add("if (mc::lane() != 0) continue;")
            if tag:
                bits = storage.roles[give.view.buffer].tags
                text.add(f"mc::give8<{bits}>({target}, v, {tag});")
                return
            if storage.of_columns(give.view.buffer):
                text.add(f"mc::store8({target}, v);")
                return
            text.add(
                f"float4* const given = (float4*)({target});",
                "given[0] = make_float4(v[0], v[1], v[2], v[3]);",
                "given[1] = make_float4(v[4], v[5], v[6], v[7]);",
            )

    def _by_lanes(self, text: Text) -> None:
        """A thread has an element of a task."""
        with self._elements(text, 1):
            self._ask(text)
            Lanes(self.values, text, False).add(self.family.ops)

    def _ask(self, text: Text) -> None:
        """Ask for all words at once that a thread needs: of values ``[requests, lanes]`` one, of
        parts of them one each."""
        asking, own = Asking(self.values), (Expr.var("b"), Expr.var("i"))
        for value in self.values.reads:
            shape = extents(View(value))
            if not waited_for(self.values, value) or shape[-2:] != self.given or len(shape) > 3:
                continue
            first = len(asking.places)
            if len(shape) == 2:
                self.values.registers[value] = (asking.add(value, own), own)
                continue
            for part in range(shape[0]):
                asking.add(value, (Expr.const(part), *own))
            self.values.registers[value] = (f"(came + {first})" if first else "came", own)
        if asking.places:
            asking.write(text)

    def _by_lane(self, op: Op) -> bool:
        if isinstance(op, (tile.For, task.Routed)):
            each = isinstance(op, tile.For) and op.each
            return not each and all(self._by_lane(one) for one in op.regions[0].ops)
        if not isinstance(op, tile.Compute):
            return True
        kind = op.views()[0].buffer.type
        assert isinstance(kind, BufferType)
        return is_pointwise(op.kernel) and kind.shape in (self.given, self.given[1:])
