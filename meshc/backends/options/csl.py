"""Options of the CSL target."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.backends.options.base import option
from meshc.backends.options.meshes import MeshOptions


@dataclass(frozen=True)
class CslOptions(MeshOptions):
    """How programs for wafers are made. ``portable`` ones run on every architecture that has CSL;
    ``phases`` says whether both phases are one program (:mod:`meshc.backends.csl.one_program`)."""

    portable: bool = option(False, "one CSL source for all architectures that have CSL")
    phases: str = option(
        "two",
        "CSL: a program for each phase (two), or one for both, with copies of weights that lie "
        "differently (copied) or moving them in between (moved); auto: one if it fits; default: "
        "two",
        "auto|one|copied|moved|two",
    )

    @property
    def joined(self) -> bool:
        """Whether one program for both phases is asked for, whose steps take one request."""
        return self.phases not in ("auto", "two")
