"""Published families of models, one folder each: ``<name>/`` holds

* ``model.mesh``, the model in the language of ``docs/language.md``, its parameters the sizes;
* ``config.toml``, how a ``config.json`` of Hugging Face gives these parameters, and what is
  refused;
* ``tensors.toml``, under which names, and in which order of dims, files store its params.

``docs/families.md`` says how to add one.
"""

from meshc.frontend.families.family import (
    Family,
    brought_families,
    family_named,
    family_names,
    is_family,
    model_text,
)
from meshc.frontend.families.tables import (
    Dense,
    Experts,
    Flag,
    GgufTables,
    Number,
    Refusal,
    Size,
    SkippedRope,
    StoredParam,
    Tables,
    Windows,
)

__all__ = [
    "Dense",
    "Experts",
    "Family",
    "Flag",
    "GgufTables",
    "Number",
    "Refusal",
    "Size",
    "SkippedRope",
    "StoredParam",
    "Tables",
    "Windows",
    "brought_families",
    "family_named",
    "family_names",
    "is_family",
    "model_text",
]
