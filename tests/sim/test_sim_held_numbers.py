"""Numbers of operations that are in registers for all of a loop."""

from __future__ import annotations

import pytest
from truth_programs import interval, vectors

from meshc.sim.scalar_costs import scalar_costs

HEAD = """
var factor: f32 = 0.5; var kept = @zeros([1]f32); var other: f32 = 1.0;
const kept_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> kept[i] });
fn scale() void { @fmuls(dst, s0, factor); }
fn change() void { factor = other; }
"""
BOTH = "@fmuls(dst, s0, s1);"
"""What takes as long as an operation whose number costs nothing."""


def per_pass(body: str, more: str = "") -> float:
    """Cycles of a pass of a loop that is not written out."""
    loop = "for (@range(i16, {})) |k| {{ {} }}"
    head = vectors(8, 1) + HEAD + more
    many, few = (interval(loop.format(n, body), head) for n in (300, 200))
    return (many - few) / 100


@pytest.mark.parametrize(
    "body", ["@fmuls(dst, s0, factor);", "scale();", "@fmuls(dst, s0, kept[0]);"]
)
def test_a_number_that_no_pass_writes_costs_nothing_in_it(body: str) -> None:
    assert per_pass(body) == per_pass(BOTH)


@pytest.mark.parametrize("change", ["change();", "if (k > 3) { factor = other; }"])
@pytest.mark.parametrize("body", ["@fmuls(dst, s0, factor);", "scale();"])
def test_a_number_that_a_pass_writes_is_read_in_it(change: str, body: str) -> None:
    costs = scalar_costs("wse2")
    assert per_pass(change + body) == per_pass(change + BOTH) + costs.operation + costs.scalar


def test_a_number_that_a_descriptor_reaches_is_read_in_each_pass() -> None:
    costs = scalar_costs("wse2")
    more = "const mine = @get_dsr(dsr_dest, 2); comptime { @load_to_dsr(mine, kept_dsd); }"
    read = per_pass("@fmuls(dst, s0, kept[0]);", more)
    assert read == per_pass(BOTH) + costs.operation + costs.scalar


def test_a_function_that_is_called_from_elsewhere_too_reads_its_numbers() -> None:
    costs = scalar_costs("wse2")
    more = """task apart() void { scale(); }
    comptime { @bind_local_task(apart, @get_local_task_id(9)); }"""
    assert per_pass("scale();", more) == per_pass(BOTH) + costs.operation + costs.scalar
