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


def sines_and_cosines(costs: Costs, frequencies: Window, sines: Window, cosines: Window) -> Steps:
    """Those of ``place`` times the frequencies, all of them not negative; ``whole`` is the scalar
    with the place, of which ``high`` and ``low`` are the parts."""
    steps = Steps(costs)
    count = frequencies.size
    head, tail = steps.room(count), steps.room(count)
    angles, turns = steps.room(2 * count), steps.room(2 * count)
    upper, lower = _halves(angles, count)
    steps.do("@fmuls", tail, frequencies, _SPLIT)
    steps.do("@fsubs", head, tail, frequencies)
    steps.do("@fsubs", head, tail, head)
    steps.do("@fsubs", tail, frequencies, head)
    steps.do("@fmuls", upper, head, "high")
    steps.do("@fmuls", lower, head, "low")
    steps.whole(turns, angles, 1 / tau)
    for part in TURN:
        steps.do("@fmacs", angles, angles, turns, -part)
    angle, (turn, _) = upper, _halves(turns, count)
    steps.do("@fadds", angle, upper, lower)
    steps.do("@fmacs", angle, angle, tail, "whole")
    steps.whole(turn, angle, 1 / tau)
    steps.do("@fmacs", angle, angle, turn, -TURN[0])
    steps.do("@fmacs", angle, angle, turn, -sum(TURN[1:]))
    half, square = head, turn
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
    return steps


def _halves(window: Window, count: int) -> tuple[Window, Window]:
    """The first ``count`` elements of an array, and the others."""
    part = window.inner((Dim(count, 1),))
    return part, part.moved(count)
