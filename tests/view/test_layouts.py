"""Which elements a core holds, as the page says and as the interpreter has it."""

import numpy as np
import pytest
from viewed import data, page

from meshc.interp.shards import PAD, Sharding
from meshc.ir.parser import parse_module
from meshc.support.spans import Source


def held(group, layouts, core):
    """The elements of a group of dims that a core holds, by the rule of the page (mesh.js)."""
    extent = int(np.prod(group["extents"]))
    if not group["axis"]:
        return set(range(extent))
    part = layouts["parts"][group["axis"]]["part"][core[layouts["parts"][group["axis"]]["whole"]]]
    if group["skew"]:
        other = layouts["parts"][group["skew"]]
        part = (part + other["part"][core[other["whole"]]]) % group["parts"]
    part //= group["copies"]
    if group["kind"] == "block":
        first = part * group["block"]
        return set(range(first, min(first + group["block"], extent)))
    every = range(part, extent, group["parts"])
    return set(every[: group["block"]])


@pytest.mark.parametrize("name", ["csl", "python", "mlp"])
def test_cores_hold_what_the_interpreter_gives_them(name):
    for phase in data(page(name))["phases"]:
        layouts = phase["layouts"]
        text = [m["text"] for m in phase["modules"] if m["level"] == "mesh"][-1]
        module = parse_module(Source("mesh", text))
        mesh = module.the_mesh()
        values = [p.value for p in module.function.params]
        values += [value for op in module.walk() for value in op.results]
        assert len(values) == len(layouts["values"])
        for value, shown in zip(values, layouts["values"], strict=True):
            assert (value.name, str(value.type)) == (shown["name"], shown["type"])
            sharding = Sharding(value.type, mesh, module.dims, module.dims)
            elements = dict(zip(sharding.groups, sharding.elements, strict=True))
            assert [tuple(g["dims"]) for g in shown["groups"]] == list(elements)
            for number in range(mesh.cores):
                row, column = divmod(number, mesh.columns)
                core = {mesh.down: row, mesh.across: column}
                for group in shown["groups"]:
                    mine = set(elements[tuple(group["dims"])][number].tolist()) - {PAD}
                    assert held(group, layouts, core) == mine, (shown["type"], core, group)
