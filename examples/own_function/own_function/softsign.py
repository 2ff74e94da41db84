"""softsign: ``x / (1 + |x|)``, an activation (Glorot and Bengio 2010, section 3.2)."""

from dataclasses import dataclass

import numpy as np

import meshc


@dataclass(eq=False)
class Softsign(meshc.ElementFunction):
    """``x / (width + |x|)``."""

    width: float = 1.0


def formula(x, width):
    """What the interpreters compute."""
    return x / (width + np.abs(x))


PYTHON = """
def softsign(out, a, width):
    \"\"\"out = a / (width + |a|)\"\"\"
    np.divide(a, np.float32(width) + np.abs(a), out=out)
"""
CUDA = """
MC_INLINE float softsign(float v, float width) { return v / (width + (v < 0.0f ? -v : v)); }
"""


def csl(x, math, width):
    """The value in CSL."""
    return x / (width + math("abs", x))


SOFTSIGN = meshc.BroughtFunction(Softsign, "out = a / (width + |a|)", formula, PYTHON, CUDA, csl)
