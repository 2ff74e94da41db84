"""Rows of several new tokens, which a task attends to before caches hold them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from meshc.backends.cuda.tasks.cached_tiles import CachedTiles
from meshc.backends.cuda.tasks.statements import Locals, Statements, Text
from meshc.backends.cuda.tasks.values import extents
from meshc.ir.affine import Expr
from meshc.ir.ops import tile
from meshc.ir.views import Point, View


@dataclass(frozen=True)
class NewRows:
    """The rows of so many ``new`` tokens beside ``tiles``; the task's is ``own`` of them where they
    stand in their places among cached ones."""

    tiles: CachedTiles
    new: int
    own: Expr | None

    @property
    def some(self) -> bool:
        """Whether fewer than ``new`` may be there, as in a batch of tokens."""
        return self.tiles.storage.owned and self.own is not None

    @property
    def count(self) -> str:
        """How many there are: of a batch of tokens those up to the task's."""
        if not self.some:
            return str(self.new)
        assert self.own is not None
        return self.tiles.values.spelled(self.own + 1)

    def statements(self, text: Text, locals: Locals) -> Statements:
        """Statements of the task; a loop over new rows goes up to the last that is there."""
        made = Statements(self.tiles.values, text, locals)
        if self.some:
            made.loop = partial(self._rounds, made)
        return made

    def _rounds(self, statements: Statements, op: tile.For, body: Callable[[], None]) -> None:
        made = [one.views()[0] for one in op.regions[0].ops if isinstance(one, tile.Compute)]
        own, new = Point(Expr.var(op.var)), self.new
        of_rows = new > 1 and op.count.constant == new
        of_rows &= all(view.indices[:1] == (own,) and _rows_of(view) == new for view in made)
        statements.rounds(op, body, self.count if of_rows else "")


def _rows_of(view: View) -> int:
    """The rows of all that ``view`` is of."""
    return extents(View(view.buffer))[0]
