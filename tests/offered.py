"""Packages that tests offer as if they were installed."""

from importlib.metadata import EntryPoint

from meshc.frontend.families.family import family_named
from meshc.ir.brought_functions import BROUGHT
from meshc.ir.core import OP_CLASSES
from meshc.ir.functions import DOCS, FUNCTIONS
from meshc.ir.kernels import KERNELS
from meshc.support import plugins


def offer(monkeypatch, group, *pairs):
    """Have packages ``package-0``, ``package-1``, .. offer pairs of a name and a place in the entry
    points of ``group``, beside what other calls offered in others."""
    if group == "meshc.families":
        family_named.cache_clear()
    for name, _ in pairs if group == "meshc.functions" else ():
        levels = [(OP_CLASSES, f"{level}.{name}") for level in ("graph", "mesh")]
        for table, key in [*levels, *((one, name) for one in (FUNCTIONS, DOCS, KERNELS, BROUGHT))]:
            if key not in table:  # what is brought goes with the test
                monkeypatch.setitem(table, key, None)
                del table[key]
    known = plugins.offers
    found = tuple(
        plugins.Offer(name, f"package-{n} 1.0 ({value})", EntryPoint(name, value, group))
        for n, (name, value) in enumerate(pairs)
    )
    monkeypatch.setattr(plugins, "offers", lambda one: found if one == group else known(one))
