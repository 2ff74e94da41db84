"""What loops make of products of 32 bits, and what their counters take."""

from __future__ import annotations

import pytest
from truth_programs import interval

from meshc.sim.scalar_costs import scalar_costs

HEAD = """
var z = @zeros([8]i32); var h = @zeros([8]i16); var p: i32 = 3; var i: u16 = 1;
"""


def per_pass(body: str, counter: str = "i16", arch: str = "wse2") -> float:
    """Cycles of a pass of a loop that is not written out; ``f`` is a local in front of it."""
    loop = "const f = p; for (@range({}, {})) |k| {{ {} }}"
    many, few = (interval(loop.format(counter, n, body), HEAD, arch) for n in (300, 200))
    return (many - few) / 100


@pytest.mark.parametrize(
    ("body", "sums"),
    [
        ("z[i] = f * 36;", 0),
        ("z[i] = f * 36 * f;", 0),
        ("const g = f; z[i] = g * 36;", 0),
        ("if (h[i] > 5) { z[i] = f; } else { z[i] = f * 36; }", None),
        ("z[i] = @as(i32, k) * 36;", 1),
        ("z[i] = @as(i32, k) * f;", 1),
    ],
)
def test_products_are_moved_out_of_loops(body: str, sums: int | None) -> None:
    """What no pass changes is worked out once, what the counter changes by a sum."""
    costs = scalar_costs("wse2")
    plain = "z[i] = f;" if sums is not None else body.replace("f * 36", "f")
    assert per_pass(body) == per_pass(plain) + (sums or 0) * costs.operation


@pytest.mark.parametrize("body", ["z[i] = z[i] * 36;", "p += 1; z[i] = p * 36;"])
def test_other_products_stay_in_loops(body: str) -> None:
    costs = scalar_costs("wse2")
    assert per_pass(body) == per_pass(body.replace(" * 36", "")) + costs.wide_product


def test_products_are_moved_out_of_all_loops_that_do_not_change_them() -> None:
    inner = "for (@range(i16, 200)) |_| {{ z[i] = {}; }}"
    assert per_pass(inner.format("f * 36")) == per_pass(inner.format("f"))


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_a_product_of_which_half_is_used(arch: str) -> None:
    costs = scalar_costs(arch)
    whole = interval("z[i] = p * 36;", HEAD, arch) - interval("z[i] = p + 36;", HEAD, arch)
    used = "h[i] = @as(i16, p {} 36 + 1);"
    half = interval(used.format("*"), HEAD, arch) - interval(used.format("+"), HEAD, arch)
    assert whole == costs.wide_product - costs.operation
    assert half == costs.narrow_product - costs.operation


def test_a_counter_of_32_bits_takes_longer() -> None:
    costs = scalar_costs("wse2")
    assert per_pass("z[i] = f;", "i32") == per_pass("z[i] = f;") + costs.wide_back
