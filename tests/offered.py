"""Packages that tests offer as if they were installed."""

from importlib.metadata import EntryPoint

from meshc.frontend.families.family import family_named
from meshc.support import plugins


def offer(monkeypatch, group, *pairs):
    """Have packages ``package-0``, ``package-1``, .. offer pairs of a name and a place in the entry
    points of ``group``, beside what other calls offered in others."""
    if group == "meshc.families":
        family_named.cache_clear()
    known = plugins.offers
    found = tuple(
        plugins.Offer(name, f"package-{n} 1.0 ({value})", EntryPoint(name, value, group))
        for n, (name, value) in enumerate(pairs)
    )
    monkeypatch.setattr(plugins, "offers", lambda one: found if one == group else known(one))
