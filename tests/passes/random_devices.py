"""Random devices of one to three levels: a row of cores, a plane, planes in regions."""

import random
from dataclasses import dataclass, replace

from meshc.devices import Device, Number, Numbers, check_device, device
from meshc.ir.ops import graph

BASES = ("ideal", "toy", "wse2", "h100x8")
NAMES = ("hall", "rack", "shelf", "board", "chip", "tile2", "y", "x", "r")


@dataclass(frozen=True)
class Place:
    """A device, the mesh to take of it by the names of its axes, and the number of regions."""

    device: Device
    mesh: str
    regions: int

    @property
    def levels(self) -> int:
        """How many of its axes have more than one part."""
        return (self.regions > 1) + sum(not part.endswith("=1") for part in self.mesh.split(","))


def random_place(seed, loops):
    """A device with room for a random mesh; in several regions only where ``loops`` says so.

    Regions lie in a snake of two to a row. Numbers of links and cores are drawn too, so that now
    one form is cheap and now another.
    """
    drawn = random.Random(seed)
    outer, down, across = drawn.sample(NAMES, 3)
    rows, columns = drawn.choice([(1, drawn.randint(1, 7)), (drawn.randint(2, 7), 1)] + [
        (drawn.randint(2, 5), drawn.randint(2, 5))] * 3)  # fmt: skip
    regions = drawn.choice([1, 2, 3, 4]) if loops else 1
    base = device(drawn.choice(BASES))
    made = base.with_numbers(
        cores_x=2 * columns,
        cores_y=2 * rows,
        hop_cycles=drawn.choice([1, 2, 50]),
        route_cycles=drawn.choice([0, 5, 200]),
        op_cycles=drawn.choice([0, 27, 500]),
    )
    # Axes of the same level have the same links, those of the innermost are the device's.
    levels = drawn.choice(["one one one", "far one one", "far far one", "far middle one"])
    facts = {**base.facts, "axes": f"{outer} {down} {across}", "levels": levels, "enforced": True}
    links = {name: random_links(drawn) for name in sorted({*levels.split()} - {"one"})}
    several = replace(made, facts=facts, level_links=links)
    check_device(several)
    return Place(several, f"{down}={rows},{across}={columns}", regions)


def random_links(drawn):
    """Links of a level of its own."""
    numbers = {
        "hop_cycles": drawn.choice([1, 100, 5000]),
        "route_cycles": drawn.choice([0, 500]),
        "relay_cycles": drawn.choice([None, 6]),
        "words_per_cycle": drawn.choice([0.1, 1, 30]),
    }
    facts = {"topology": drawn.choice(["mesh", "all_to_all"]), "push": drawn.choice([True, False])}
    return Numbers(facts, {name: Number(value, "assumed") for name, value in numbers.items()})


def has_loop(module):
    """Whether layers of ``module`` could go to regions."""
    return sum(isinstance(op, graph.Repeat) for op in module.function.body.ops) == 1
