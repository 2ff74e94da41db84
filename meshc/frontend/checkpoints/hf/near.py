"""The nearest architecture to one that is not read, and in what they differ.

``near.toml`` knows the common ones. Of others the name decides, and the keys of the config that
change the maths say what differs.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping

from meshc.frontend.checkpoints.fields import brief
from meshc.frontend.checkpoints.hf.unknown import keys_of_maths
from meshc.support.declared_values import toml_of

_SUFFIX = re.compile(r"(For[A-Z]\w*|LMHeadModel|Model)\Z")
_MOST_KEYS = 6
_USUAL = "llama"


def nearest(name: str, read: Collection[str], config: Mapping[str, object]) -> str:
    """A note on the architecture ``name`` (a class of transformers or a ``model_type``): which of
    the families ``read`` is nearest and how they differ. ``config`` is its ``config.json``, empty
    for other files."""
    plain = _plain(name)
    families = {_plain(family): family for family in read}
    every = toml_of("meshc.frontend.checkpoints.hf", "near.toml")
    known = {_plain(kind): entry for kind, entry in every.items() if entry["nearest"] in read}
    if plain in families:
        return f"{families[plain]} is read as a model of the next token, {brief(name)} is another"
    if plain in known:
        entry = known[plain]
        return f"nearest of those that are read: {entry['nearest']}; it differs: {entry['differs']}"
    (like,) = difflib.get_close_matches(plain, [*families, *known], n=1) or (_plain(_USUAL),)
    family = families[like] if like in families else known[like]["nearest"]
    keys = keys_of_maths(config)
    shown = ", ".join(brief(key) for key in keys[:_MOST_KEYS])
    what = f"its config has {shown}" if keys else "nothing here says how it differs"
    return f"nearest of those that are read, by its name: {family}; {what}"


def _plain(name: str) -> str:
    """Letters and digits of a class or a ``model_type``, so that both are alike."""
    return re.sub(r"[^a-z0-9]", "", _SUFFIX.sub("", name[:80]).lower())
