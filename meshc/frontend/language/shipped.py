"""Models of published families, which ship with meshc."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from meshc.frontend.families import family_names, is_family
from meshc.frontend.language.ast import Constant, Model
from meshc.frontend.language.loader import library_source, parse_model
from meshc.frontend.language.parameters import with_parameters
from meshc.support.diagnostics import fail


def library_model(family: str, parameters: Mapping[str, Constant]) -> Model:
    """The ``model.mesh`` of ``family`` with ``parameters`` for its defaults.

    Raises MeshcError for an unknown family (``bad-model``) or parameter (``bad-parameter``).
    """
    if not is_family(family):
        names = ", ".join(family_names())
        fail("bad-model", f"the library has no family '{family}'", notes=[names])
    return with_parameters(_parsed(family), parameters)


@cache
def _parsed(family: str) -> Model:
    return parse_model(library_source(family))
