"""The ``.mesh`` language: models as people write them on a whiteboard (docs/language.md)."""

from meshc.frontend.language.ast import Model
from meshc.frontend.language.block_calls import phases
from meshc.frontend.language.elaborate import elaborate
from meshc.frontend.language.loader import load_model, parse_model
from meshc.frontend.language.parameters import with_parameters
from meshc.frontend.language.shipped import library_model

__all__ = [
    "Model",
    "elaborate",
    "library_model",
    "load_model",
    "parse_model",
    "phases",
    "with_parameters",
]
