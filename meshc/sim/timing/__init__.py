"""Named timing models: the cycles of which the simulator's clock is made.

Each model is a file beside this one. An entry gives a ``value``, or one for ``wse2`` and one for
``wse3``, with its ``kind`` (how far it can be relied on) and its ``source``. A model that names a
``base`` has the entries of that one, but for its own.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from meshc.support.declared_values import toml_of

VENDOR_SIMULATOR, MACHINE = MODELS = ("vendor-simulator", "machine")
DEFAULT = VENDOR_SIMULATOR

KINDS = ("measured", "documented", "calibrated", "inferred", "predicted")
"""Measured: published as such. Documented: by the vendor. Calibrated: a measured program comes
out right with it. Inferred: what is left of a measured number when its other parts are known.
Predicted: chosen here."""

Entry = dict[str, Any]


@cache
def entries(model: str) -> dict[str, dict[str, Entry]]:
    """The entries of a model by table and name; what it takes from its base is there too."""
    own = dict(toml_of("meshc.sim.timing", f"{model.replace('-', '_')}.toml"))
    base = own.pop("base", None)
    found = {} if base is None else {name: dict(table) for name, table in entries(base).items()}
    for name, table in own.items():
        found[name] = {**found.get(name, {}), **table}
    return found


def numbers(model: str, arch: str, table: str) -> dict[str, Any]:
    """The numbers of one table for ``wse2`` or ``wse3``."""
    return {
        name: entry["value"] if "value" in entry else entry[arch]
        for name, entry in entries(model)[table].items()
    }
