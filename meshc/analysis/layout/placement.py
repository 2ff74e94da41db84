"""Rings on a line of cores: INTERLEAVE (WaferLLM Algorithm 1), its steps, hops and colors.

Everything is a function of ``p``, the position on the axis, for an axis of ``n >= 1`` cores; ranks
count along the ring, and ``coordinates.ring_rank`` and ``ring_core`` translate. The algorithm as
printed needs N >= 3; here one and two cores are covered too: a core alone is its own neighbour,
two exchange.

The two-hop ring takes three colors: a message spans two or three routers, and the interval that
begins at ``lo`` has color ``lo mod 3``. The short intervals at the two ends begin where a long one
begins, so the first takes color 2 and the last ``(n - 2) mod 3``.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshc.analysis.layout.coordinates import ring_core, ring_rank
from meshc.ir.affine import Cond, Expr, Piecewise

_P = Expr.var("p")
_EVEN, _ODD = Cond.eq(_P % 2, 0), Cond.eq(_P % 2, 1)

__all__ = [
    "Coloring",
    "chain_coloring",
    "most_turns",
    "multicast_coloring",
    "ring_coloring",
    "ring_core",
    "ring_rank",
    "ring_step",
    "spaced_coloring",
]


@dataclass(frozen=True)
class Coloring:
    """Colors of a channel, counted from 0: of the sender and of the receiver at ``p``."""

    count: int
    send: Piecewise
    recv: Piecewise


def most_turns(chunks: int, stride: int, both_ways: bool) -> int:
    """The most steps by which a core turns a ring of ``chunks`` of which it wants a multiple of
    ``stride`` ahead: all but one ``stride`` of them, or by the shorter way half of them."""
    if not both_ways:
        return chunks - stride
    return chunks // 2 // stride * stride


def ring_step(n: int, step: int = -1) -> Piecewise:
    """Position of the core whose rank is one lower (``step = -1``) or one higher (``step = 1``)."""
    if n == 1:
        return Piecewise.single(_P)
    turn = Expr.const(2 * n - 3) - _P
    if step < 0:
        pieces = [
            (Cond.eq(_P, 0), Expr.const(1)),
            (_EVEN & Cond.ge(_P, 2), _P - 2),
            (_ODD & Cond.le(_P, n - 3), _P + 2),
            (_ODD & Cond.ge(_P, n - 2), turn),
        ]
    else:
        pieces = [
            (Cond.eq(_P, 1), Expr.const(0)),
            (_ODD & Cond.ge(_P, 3), _P - 2),
            (_EVEN & Cond.le(_P, n - 3), _P + 2),
            (_EVEN & Cond.ge(_P, n - 2), turn),
        ]
    return Piecewise.of(pieces)


def ring_coloring(n: int) -> Coloring:
    """Three colors for the ring in rank order of ``n`` cores (one or two for fewer cores).

    The colors are those of messages to the next lower rank.
    """
    if n <= 2:
        parity = Piecewise.single(_P if n == 2 else 0)
        return Coloring(n, parity, Piecewise.single(1 - _P if n == 2 else 0))
    end = Expr.const((n - 2) % 3)
    # An even core sends down over [p-2, p], an odd one up over [p, p+2].
    send = [
        (Cond.eq(_P, 0), Expr.const(2)),
        (_EVEN, (_P - 2) % 3),
        (Cond.le(_P, n - 3), _P % 3),
        (Cond.true(), end),
    ]
    recv = [
        (Cond.eq(_P, 1), Expr.const(2)),
        (_ODD, (_P - 2) % 3),
        (Cond.le(_P, n - 3), _P % 3),
        (Cond.true(), end),
    ]
    return Coloring(3, Piecewise.of(send), Piecewise.of(recv))


def chain_coloring(stride: int) -> Coloring:
    """Two colors for messages from ``p`` to ``p - stride``, by the parity of the place."""
    place = _P // stride
    return Coloring(2, Piecewise.single(place % 2), Piecewise.single((place + 1) % 2))


def spaced_coloring(distance: int) -> Coloring:
    """Colors for messages from ``p`` to ``p + distance``, which touch ``|distance| + 1`` routers.

    Senders of one color are so many places apart that their messages touch no common router.
    """
    count = abs(distance) + 1
    return Coloring(count, Piecewise.single(_P % count), Piecewise.single((_P - distance) % count))


def multicast_coloring() -> Coloring:
    """One color: all receivers belong to one message."""
    return Coloring(1, Piecewise.single(0), Piecewise.single(0))
