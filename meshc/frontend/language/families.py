"""Models of published families, from the library that ships with the language."""

from __future__ import annotations

from collections.abc import Mapping

from meshc.frontend.language.ast import Constant, Model
from meshc.frontend.language.loader import library_source, parse_model
from meshc.frontend.language.parameters import with_parameters
from meshc.support.diagnostics import fail

FAMILIES = ("llama", "qwen2", "deepseek_v2")


def library_model(family: str, parameters: Mapping[str, Constant]) -> Model:
    """The model of ``family`` with ``parameters`` for its defaults; see ``library/<family>.mesh``.

    Raises MeshcError for an unknown family (``bad-model``) or parameter (``bad-parameter``).
    """
    if family not in FAMILIES:
        fail("bad-model", f"the library has no family '{family}'", notes=[", ".join(FAMILIES)])
    return with_parameters(parse_model(library_source(family)), parameters)
