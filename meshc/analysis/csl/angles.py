"""Sines and cosines of a position times all frequencies, by vector operations in f32.

Angles reach 5,000 turns, and as products of two f32 they would be off by as much as 0.002. So each
frequency is split into two of half as many bits (Dekker, 1971), and the position into a multiple of
128 and a rest; the products of the halves are exact. Whole turns, as many as the product of two f32
tells, are taken off in three parts of 2 pi of which two have exact multiples (Cody and Waite,
Software Manual for the Elementary Functions, 1980): the first part leaves the product of the upper
halves exact, as both are multiples of what the smaller of the two resolves. Sine and cosine of half
the angle are polynomials, those of the whole follow from them. What is found is right to 1e-6; what
is wanted in f16 has shorter polynomials, right to 1.4e-5, and is rounded once.
"""

from __future__ import annotations

from math import tau
from typing import NamedTuple

from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.strided_windows import Dim, Window
from meshc.analysis.csl.vector_steps import Steps
from meshc.ir.types import DType

LOW = 128
"""The lower half of a position counts so many."""
TURN = (6.28125, 0.001934051513671875, 1.2556659146e-6)
"""2 pi. The first two parts have so few bits that their products with whole numbers are exact."""
TURNED = 1 / tau
"""Turns in an angle of 1."""
_SPLIT = 4097.0
"""2^12 + 1: a number less this number's multiple keeps the upper half of its bits."""
_SINE = (0.7071067779, -0.02946276596, 3.682715544e-4, -2.188473225e-6, 7.187893867e-9)
"""Coefficients in x^2, times x: the sine of x / 2 times the root of 2, up to half a turn, 7e-9 off
at most."""
_COSINE = (1.41421349, -0.1767763334, 0.003682559013, -3.060957795e-5, 1.277323388e-7)
"""Coefficients in x^2: the cosine of x / 2 times the root of 2, up to half a turn, 7.4e-8 off at
most."""
_SHORT_SINE = (0.7071043883, -0.02945953289, 3.670911808e-4, -2.028916285e-6)
_SHORT_COSINE = (1.41420408, -0.1767457381, 0.003667033496, -2.809002638e-5)
"""The same with a term less: 8.3e-7 and 9.5e-6 off at most."""


class Places(NamedTuple):
    """Where positions are, one for each row: whole, and their ``high`` and ``low`` parts."""

    whole: Window
    high: Window
    low: Window


def sines_and_cosines(costs: Costs, frequencies: Window, sines: Window, cosines: Window) -> Steps:
    """Those of ``place`` times the frequencies, all of them not negative; ``whole`` is the scalar
    with the place, of which ``high`` and ``low`` are the parts, and ``turned`` is the place over
    2 pi."""
    steps = Steps(costs)
    head, tail, angle, turns = (steps.room(frequencies.size) for _ in range(4))
    _split(steps, frequencies, head, tail)
    steps.do("@fmuls", turns, frequencies, "turned")
    steps.round(turns)
    steps.do("@fmuls", angle, head, "high")
    steps.do("@fmacs", angle, angle, turns, -TURN[0])
    steps.do("@fmacs", angle, angle, head, "low")
    steps.do("@fmacs", angle, angle, turns, -TURN[1])
    steps.do("@fmacs", angle, angle, tail, "whole")
    steps.do("@fmacs", angle, angle, turns, -TURN[2])
    _sines(steps, angle, turns, head, sines, cosines)
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
    angle, turns, part = (steps.room(count) for _ in range(3))

    def in_row(window: Window) -> Window:
        return window.inner((Dim(rows, 0), Dim(each, 1)))

    def of_row(window: Window) -> Window:
        return window.inner((Dim(rows, 1), Dim(each, 0)))

    def add(part_of_frequency: Window, place: Window) -> None:
        steps.do("@fmuls", part, in_row(part_of_frequency), of_row(place))
        steps.do("@fadds", angle, angle, part)

    _split(steps, frequencies, head, tail)
    steps.do("@fmuls", turns, in_row(frequencies), of_row(places.whole))
    steps.do("@fmuls", turns, turns, TURNED)
    steps.round(turns)
    steps.do("@fmuls", angle, in_row(head), of_row(places.high))
    steps.do("@fmacs", angle, angle, turns, -TURN[0])
    add(head, places.low)
    steps.do("@fmacs", angle, angle, turns, -TURN[1])
    add(tail, places.whole)
    steps.do("@fmacs", angle, angle, turns, -TURN[2])
    _sines(steps, angle, turns, part, sines, cosines)
    return steps, places


def _split(steps: Steps, frequencies: Window, head: Window, tail: Window) -> None:
    """Each frequency as the sum of two of half as many bits."""
    steps.do("@fmuls", tail, frequencies, _SPLIT)
    steps.do("@fsubs", head, tail, frequencies)
    steps.do("@fsubs", head, tail, head)
    steps.do("@fsubs", tail, frequencies, head)


def _sines(
    steps: Steps, angle: Window, odd: Window, even: Window, sines: Window, cosines: Window
) -> None:
    """Sines and cosines of at most half a turn, by way of the odd and the even powers of its
    square."""
    wide = sines.dtype == DType.F32
    sine, cosine = (sines, cosines) if wide else (steps.room(sines.size), steps.room(sines.size))
    of_sine, of_cosine = (_SINE, _COSINE) if wide else (_SHORT_SINE, _SHORT_COSINE)

    def add(power: Window, number: int) -> None:
        for window, polynomial in ((sine, of_sine), (cosine, of_cosine)):
            before = () if number == 1 else (window,)
            steps.do("@fmacs" if before else "@fmuls", window, *before, power, polynomial[number])

    steps.do("@fmuls", odd, angle, angle)
    add(odd, 1)
    steps.do("@fmuls", even, odd, odd)
    add(even, 2)
    steps.do("@fmuls", odd, even, odd)
    add(odd, 3)
    if wide:
        steps.do("@fmuls", even, even, even)
        add(even, 4)
    steps.do("@fadds", sine, sine, of_sine[0])
    steps.do("@fmuls", sine, sine, angle)
    steps.do("@fadds", cosine, cosine, of_cosine[0])
    # Twice the product of sine and cosine of the half, and 1 less twice the square of its sine.
    steps.do("@fmuls", odd, sine, sine)
    steps.do("@fmuls", sine, sine, cosine)
    steps.do("@fsubs", cosine, 1.0, odd)
    if not wide:
        steps.do("@fs2h", sines, sine)
        steps.do("@fs2h", cosines, cosine)
