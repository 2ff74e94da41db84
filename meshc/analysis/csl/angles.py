"""Sines and cosines of a position times all frequencies, by vector operations in f32.

Angles reach 5,000 turns, and as products of two f32 they would be off by as much as 0.002. So each
frequency is split into two of half as many bits (Dekker, 1971), and the position into a multiple of
128 and a rest; the products of the halves are exact, and whole turns are taken off in three parts
of 2 pi of which two have exact multiples (Cody and Waite, Software Manual for the Elementary
Functions, 1980). Sine and cosine of half the angle are polynomials, those of the whole follow from
them. What is found is right to 1e-6.
"""

from __future__ import annotations

from math import tau
from typing import NamedTuple

from meshc.analysis.csl.costs import Costs
from meshc.analysis.csl.vector_steps import Steps
from meshc.analysis.csl.windows import Dim, Window

LOW = 128
"""The lower half of a position counts so many."""
TURN = (6.28125, 0.001934051513671875, 1.2556659146e-6)
"""2 pi. The first two parts have so few bits that their products with whole numbers are exact."""
_SPLIT = 4097.0
"""2^12 + 1: a number less this number's multiple keeps the upper half of its bits."""
_SINE = (0.99999999530, -0.16666657285, 0.00833303403, -1.98077985e-4, 2.60229555e-6)
"""Of x^2, times x: the sine of x up to a quarter turn, 5e-9 off at most."""
_COSINE = (0.99999994868, -0.49999897652, 0.04166339920, -1.385231369e-3, 2.312202316e-5)
"""Of x^2: the cosine of x up to a quarter turn, 5.2e-8 off at most."""


class Places(NamedTuple):
    """Where positions are, one for each row: whole, and their ``high`` and ``low`` parts."""

    whole: Window
    high: Window
    low: Window


def sines_and_cosines(costs: Costs, frequencies: Window, sines: Window, cosines: Window) -> Steps:
    """Those of ``place`` times the frequencies, all of them not negative; ``whole`` is the scalar
    with the place, of which ``high`` and ``low`` are the parts."""
    steps = Steps(costs)
    count = frequencies.size
    head, tail = steps.room(count), steps.room(count)
    angles, turns = steps.room(2 * count), steps.room(2 * count)
    upper, lower = _halves(angles, count)
    _split(steps, frequencies, head, tail)
    steps.do("@fmuls", upper, head, "high")
    steps.do("@fmuls", lower, head, "low")
    _reduce(steps, angles, turns)
    turn, _ = _halves(turns, count)
    steps.do("@fadds", upper, upper, lower)
    steps.do("@fmacs", upper, upper, tail, "whole")
    _sines(steps, upper, turn, head, sines, cosines)
    return steps


def of_rows(
    costs: Costs, frequencies: Window, sines: Window, cosines: Window, rows: int
) -> tuple[Steps, Places]:
    """Those of a place of each row times the frequencies, as [rows, frequencies], and where the
    places are to be."""
    steps = Steps(costs)
    each = frequencies.size
    count = rows * each
    head, tail = steps.room(each), steps.room(each)
    places = Places(*(steps.room(rows) for _ in range(3)))
    angles, turns = steps.room(2 * count), steps.room(2 * count)
    upper, lower = _halves(angles, count)
    turn, _ = _halves(turns, count)

    def in_row(window: Window) -> Window:
        return window.inner((Dim(rows, 0), Dim(each, 1)))

    def of_row(window: Window) -> Window:
        return window.inner((Dim(rows, 1), Dim(each, 0)))

    _split(steps, frequencies, head, tail)
    steps.do("@fmuls", upper, in_row(head), of_row(places.high))
    steps.do("@fmuls", lower, in_row(head), of_row(places.low))
    _reduce(steps, angles, turns)
    steps.do("@fadds", upper, upper, lower)
    steps.do("@fmuls", lower, in_row(tail), of_row(places.whole))
    steps.do("@fadds", upper, upper, lower)
    _sines(steps, upper, turn, lower, sines, cosines)
    return steps, places


def _split(steps: Steps, frequencies: Window, head: Window, tail: Window) -> None:
    """Each frequency as the sum of two of half as many bits."""
    steps.do("@fmuls", tail, frequencies, _SPLIT)
    steps.do("@fsubs", head, tail, frequencies)
    steps.do("@fsubs", head, tail, head)
    steps.do("@fsubs", tail, frequencies, head)


def _reduce(steps: Steps, angles: Window, turns: Window) -> None:
    """Whole turns taken off angles that are exact."""
    steps.whole(turns, angles, 1 / tau)
    for part in TURN:
        steps.do("@fmacs", angles, angles, turns, -part)


def _sines(
    steps: Steps, angle: Window, turn: Window, half: Window, sines: Window, cosines: Window
) -> None:
    """Sines and cosines of a few turns; what ``turn`` and ``half`` hold is lost."""
    steps.whole(turn, angle, 1 / tau)
    steps.do("@fmacs", angle, angle, turn, -TURN[0])
    steps.do("@fmacs", angle, angle, turn, -sum(TURN[1:]))
    square = turn
    steps.do("@fmuls", half, angle, 0.5)
    steps.do("@fmuls", square, half, half)
    steps.polynomial(sines, square, _SINE)
    steps.do("@fmuls", sines, sines, half)
    steps.polynomial(cosines, square, _COSINE)
    steps.do("@fmuls", square, sines, sines)
    steps.do("@fmuls", sines, sines, cosines)
    steps.do("@fmuls", sines, sines, 2.0)
    steps.do("@fmuls", cosines, square, -2.0)
    steps.do("@fadds", cosines, cosines, 1.0)


def _halves(window: Window, count: int) -> tuple[Window, Window]:
    """The first ``count`` elements of an array, and the others."""
    part = window.inner((Dim(count, 1),))
    return part, part.moved(count)
