"""Ways of writing kernels that may be turned off, to see what each of them gains.

``docs/csl.md`` has a table of them with the cycles of a decode step with and without each.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Choices:
    """What the kernels of a program may be written with; each is taken only where fewer cycles are
    predicted for it.

    ``vector_angles``: sines and cosines of all pairs of lanes at once, by polynomials.
    ``vector_turns``: all pairs of all heads are turned by the same six vector operations.
    ``vector_functions``: exponentials and SiLU of f16 rows by vector operations in f32.
    """

    vector_angles: bool = True
    vector_turns: bool = True
    vector_functions: bool = True


USUAL = Choices()
"""All of them."""
