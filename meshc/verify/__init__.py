"""Facts a module may claim in ``holds(...)``, each with exactly one checker.

A checker reads the module alone, never what a pass believes about it, and raises
:class:`meshc.support.diagnostics.MeshcError` with a witness when the fact does not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshc.ir.module import Module
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.verify import (
    channels_matched,
    collectives_selected,
    csl_functions,
    csl_products,
    csl_resources,
    deadlock_free,
    given_before,
    guards_cover,
    in_cluster,
    memory_planned,
    not_overwritten,
    one_giver,
    ordered,
    padding_safe,
    partitioned,
    placed,
    routed,
    streams_free,
    transpose_free,
    within_bounds,
)


@dataclass(frozen=True)
class Fact:
    """A property of modules: its name, the levels it speaks of, its meaning and its checker."""

    name: str
    levels: tuple[str, ...]
    meaning: str
    check: Callable[[Module], None]


_CATALOGUE = (
    Fact(
        "transpose_free",
        ("graph", "mesh"),
        "no op moves data only to reorder dims",
        transpose_free.check,
    ),
    Fact(
        "partitioned",
        ("mesh",),
        "every element has an owner, one per replica",
        partitioned.check,
    ),
    Fact(
        "padding_safe",
        ("mesh",),
        "no op reads a pad lane in a state it cannot take",
        padding_safe.check,
    ),
    Fact(
        "placed",
        ("mesh",),
        "neighbours of an interleaved axis are at most two hops apart",
        placed.check,
    ),
    Fact(
        "collectives_selected",
        ("mesh",),
        "every collective has an algorithm",
        collectives_selected.check,
    ),
    Fact(
        "guards_cover",
        ("tile",),
        "guards speak of what exists, sweeps reach every core they run on",
        guards_cover.check,
    ),
    Fact(
        "channels_matched",
        ("tile",),
        "each channel carries its send domain exactly onto its recv domain",
        channels_matched.check,
    ),
    Fact(
        "deadlock_free",
        ("tile",),
        "the order rule of transfers and sweeps holds",
        deadlock_free.check,
    ),
    Fact(
        "routed",
        ("tile",),
        "colors and queues within the device, no two routes share a color at a router",
        routed.check,
    ),
    Fact(
        "csl_products",
        ("tile",),
        "each product says a way in which it can be written",
        csl_products.check,
    ),
    Fact(
        "csl_functions",
        ("tile",),
        "functions of elements that say a way can be written so",
        csl_functions.check,
    ),
    Fact(
        "csl_registers",
        ("tile",),
        "each mapped product has descriptor registers that hold no other row",
        csl_resources.registers,
    ),
    Fact(
        "csl_memory",
        ("tile",),
        "buffers have memory of their own and kernels the scratch that they need",
        csl_resources.memory,
    ),
    Fact(
        "csl_queues",
        ("tile",),
        "ends of channels have queues of the device, in which no transfers meet",
        csl_resources.queues,
    ),
    Fact(
        "csl_tasks",
        ("tile",),
        "each local task has an id of its own that is free on the device",
        csl_resources.tasks,
    ),
    Fact(
        "csl_words",
        ("tile",),
        "tables and words of state are those that the program has",
        csl_resources.words,
    ),
    Fact(
        "memory_planned",
        ("tile",),
        "every buffer has an address, live ones are disjoint, all fit",
        memory_planned.check,
    ),
    Fact(
        "within_bounds",
        ("task",),
        "what tasks need, stream and give lies in its buffer",
        within_bounds.check,
    ),
    Fact(
        "one_giver",
        ("task",),
        "no element of a buffer is written by two tasks, or twice by one",
        one_giver.check,
    ),
    Fact(
        "given_before",
        ("task",),
        "what a task needs is given by tasks of earlier phases, all of it",
        given_before.check,
    ),
    Fact(
        "streams_free",
        ("task",),
        "no task writes what a task streams",
        streams_free.check,
    ),
    Fact(
        "ordered",
        ("task",),
        "who needs what a task gives waits for its block or for its words, or is in its block",
        ordered.check,
    ),
    Fact(
        "not_overwritten",
        ("task",),
        "versions of scratch that share memory are read before the next is written",
        not_overwritten.check,
    ),
    Fact(
        "in_cluster",
        ("task",),
        "what lies in the memory of a cluster is given and needed by its blocks alone",
        in_cluster.check,
    ),
)

FACTS: dict[str, Fact] = {fact.name: fact for fact in _CATALOGUE}


def check_fact(module: Module, name: str) -> None:
    """Raise a diagnosed error when the fact ``name`` does not hold of ``module``."""
    FACTS[name].check(module)


def check_claims(module: Module) -> None:
    """Check every fact in ``module.holds``: for text that came from outside.

    All false claims are reported at once; an unknown fact is ``unknown-fact``.
    """
    found = Diagnostics()
    for name in sorted(module.holds):
        fact = FACTS.get(name)
        if fact is None or module.level not in fact.levels:
            known = ", ".join(f.name for f in _CATALOGUE if module.level in f.levels)
            found.error(
                "unknown-fact",
                f"there is no fact '{name}' at the {module.level} level",
                help=f"facts of this level: {known}",
            )
            continue
        try:
            fact.check(module)
        except MeshcError as error:
            for diagnostic in error.diagnostics:
                found.add(diagnostic)
    found.raise_errors()
