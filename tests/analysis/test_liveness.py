"""Memory planning: no byte that a buffer still needs is written by another one.

The judge is a memory of bytes: a random program is run with its loops unrolled, each write stamps
the bytes of its buffer, and each read must find the stamps of that buffer's own last write.
Programs that read what nobody wrote are no programs, and are passed over.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshc.analysis.layout.liveness import align, assign_addresses, largest_buffers, live_ranges
from meshc.ir.core import Block, Op
from meshc.ir.kernels import KERNELS
from meshc.ir.module import Module
from meshc.ir.ops import tile
from meshc.ir.parser import parse_module
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.support.spans import Source

LOOP_ROUNDS = 3


def program(
    statements: str, buffers: dict[str, int], roles: dict[str, str] | None = None
) -> Module:
    """A tile module with the given buffers of f32 and statements."""
    named = roles or {}
    lines = [
        f"  buffer %{name} : f32[{size}]" + (f" {{role = {named[name]}}}" if name in named else "")
        for name, size in buffers.items()
    ]
    text = "\n".join(
        [
            "module @m level(tile) {",
            "  dims E = 4",
            "  mesh y = 1, x = 4",
            *lines,
            '  channel @c "{ [y, x] -> [y, x - 1] : x >= 1 }"',
            "  program @m {",
            statements,
            "  }",
            "}",
            "",
        ]
    )
    return parse_module(Source("random.meshir", text))


class ByteMemory:
    """Who wrote each byte last, and what each buffer's last write was."""

    def __init__(self, module: Module) -> None:
        self.address = {b.value: (b.address or 0, b.type.bytes) for b in module.buffers}
        self.stamps: dict[int, tuple[Value, int]] = {}
        self.written: dict[Value, dict[int, int]] = {b.value: {} for b in module.buffers}
        self.time = 0
        self.clashes: list[str] = []

    def write(self, view: View) -> None:
        self.time += 1
        for offset in self.bytes_of(view):
            self.stamps[self.address[view.buffer][0] + offset] = (view.buffer, self.time)
            self.written[view.buffer][offset] = self.time

    def read(self, view: View) -> None:
        for offset in self.bytes_of(view):
            last = self.written[view.buffer].get(offset)
            assume(last is not None)
            found = self.stamps[self.address[view.buffer][0] + offset]
            if found != (view.buffer, last):
                self.clashes.append(f"{view} was overwritten by {found[0]}")

    def bytes_of(self, view: View) -> range:
        """Bytes of a view: the whole buffer, or a window with constant bounds."""
        if not view.indices:
            return range(self.address[view.buffer][1])
        (window,) = view.indices
        start, extent = int(str(window.start)), int(str(window.extent))
        return range(4 * start, 4 * (start + extent))


def run(memory: ByteMemory, block: Block, guards: bool) -> None:
    """Run a block on a core where all guards have one value; transfers act early and late."""
    started: dict[Value, Op] = {}
    for op in block.ops:
        if op.when is not None and not guards:
            continue
        for region in op.regions:
            for _ in range(LOOP_ROUNDS if isinstance(op, tile.For) else 1):
                run(memory, region, guards)
        if isinstance(op, tile.Compute):
            kinds = [operand.role for operand in KERNELS[op.kernel].operands]
            pairs = list(zip(op.views(), kinds, strict=True))
            for view, kind in pairs:
                if kind != "out":
                    memory.read(view)
            for view, kind in pairs:
                if kind != "in":
                    memory.write(view)
        elif isinstance(op, (tile.Send, tile.Recv)):
            started[op.result] = op
            transfer(memory, op)
        elif isinstance(op, tile.Wait):
            for token in op.tensors():
                if token in started:
                    transfer(memory, started.pop(token))
    for op in started.values():
        transfer(memory, op)


def transfer(memory: ByteMemory, op: Op) -> None:
    (view,) = op.views()
    if isinstance(op, tile.Send):
        memory.read(view)
        return
    if op.combine != "store":
        memory.read(view)
    memory.write(view)


NAMES = ("a", "b", "c", "d", "e")


@st.composite
def statements(draw: st.DrawFn, depth: int = 2, path: str = "t") -> str:
    """A block of kernels, transfers and loops over buffers of 8 elements."""
    filled = draw(st.lists(st.sampled_from(NAMES), min_size=3, unique=True))
    lines = [f"tile.fill %{name} {{value = 1.0}}" for name in filled]
    for place in range(draw(st.integers(1, 5))):
        kind = draw(
            st.sampled_from(["add", "copy", "head", "tail", "guarded", "recv", "send", "for"])
        )
        one, two, three = (draw(st.sampled_from(NAMES)) for _ in range(3))
        token = f"%{path}_{place}"
        wait = draw(st.booleans())
        if kind == "for" and depth:
            body = draw(statements(depth - 1, f"{path}_{place}"))
            lines.append(f"tile.for {{var = i{depth}, count = {LOOP_ROUNDS}}} {{\n{body}\n}}")
        elif kind == "add":
            lines.append(f"tile.add %{one}, %{two}, %{three}")
        elif kind == "copy":
            lines.append(f"tile.scale %{one}, %{two} {{factor = 2.0}}")
        elif kind in ("head", "tail"):
            window = "0 +: 4" if kind == "head" else "2 +: 6"
            lines.append(f"tile.scale %{one}[{window}], %{two}[{window}] {{factor = 2.0}}")
        elif kind == "guarded":
            lines.append(f'tile.scale %{one}, %{two} {{factor = 2.0, when = "x = 0"}}')
        elif kind == "recv":
            combine = draw(st.sampled_from(["store", "add"]))
            lines.append(f"{token} = tile.recv @c, %{one} {{combine = {combine}}} : token")
            lines += [f"tile.scale %{two}, %{three} {{factor = 2.0}}"] if one != two else []
            lines += [f"tile.wait {token}"] if wait else []
        else:
            lines.append(f"{token} = tile.send @c, %{one} : token")
            lines += [f"tile.wait {token}"] if wait else []
    return "\n".join(lines)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(statements(), st.booleans())
def test_no_live_buffer_is_overwritten(text: str, guards: bool) -> None:
    module = program(text, dict.fromkeys(NAMES, 8))
    used = assign_addresses(module)
    assert used <= len(NAMES) * 32
    memory = ByteMemory(module)
    run(memory, module.programs[0].body, guards)
    assert not memory.clashes


def test_buffers_with_disjoint_lives_share_room() -> None:
    """A chain of five values needs room for two at a time."""
    chain = "\n".join(f"tile.scale %{b}, %{a} {{factor = 2.0}}" for a, b in pairwise(NAMES))
    module = program(chain, dict.fromkeys(NAMES, 8))
    assert assign_addresses(module) == 64


def test_a_value_carried_through_a_loop_keeps_its_room() -> None:
    text = """tile.fill %a {value = 1.0}
    tile.for {var = i, count = 3} {
      tile.scale %b, %a {factor = 2.0}
      tile.scale %c, %b {factor = 2.0}
      tile.scale %a, %c {factor = 2.0}
    }"""
    module = program(text, {"a": 8, "b": 8, "c": 8})
    assign_addresses(module)
    found = {b.value.name: b for b in module.buffers}
    assert found["a"].address not in (found["b"].address, found["c"].address)
    ranges = {value.name: found for value, found in live_ranges(module).items()}
    assert (ranges["a"].first, ranges["a"].last) == (1, 5)


def test_what_depends_on_the_round_may_be_carried() -> None:
    """Round 0 fills all of a, later ones only its head: its tail must outlive each round."""
    text = """tile.for {var = i, count = 3} {
      tile.scale %a, %b {factor = 2.0, when = "i = 0"}
      tile.scale %a[0 +: 4], %b[0 +: 4] {factor = 2.0}
      tile.scale %c, %a {factor = 2.0}
      tile.scale %d, %c {factor = 2.0}
    }"""
    module = program(text, {"a": 8, "b": 8, "c": 8, "d": 8}, {"b": "in"})
    assign_addresses(module)
    found = {b.value.name: b.address for b in module.buffers}
    assert found["a"] not in (found["c"], found["d"])


@pytest.mark.parametrize("each", ["", ", each = [pos]"])
def test_so_may_what_depends_on_a_scalar_that_each_round_has_of_its_own(each: str) -> None:
    text = f"""tile.for {{var = i, count = 3{each}}} {{
      tile.scale %a, %b {{factor = 2.0, when = "pos = 0"}}
      tile.scale %a[0 +: 4], %b[0 +: 4] {{factor = 2.0}}
      tile.scale %c, %a {{factor = 2.0}}
      tile.scale %d, %c {{factor = 2.0}}
    }}"""
    module = program(text, {"a": 8, "b": 8, "c": 8, "d": 8}, {"b": "in"})
    assign_addresses(module)
    found = {b.value.name: b.address for b in module.buffers}
    assert (found["a"] == found["d"]) == (not each)


@pytest.mark.parametrize("outside", [False, True])
def test_a_round_that_is_left_out_carries_nothing(outside: bool) -> None:
    """A block that some rounds leave out writes what it reads; a use outside of it is another."""
    after = "tile.scale %d, %a {factor = 2.0}" if outside else ""
    text = f"""tile.for {{var = i, count = 3}} {{
      tile.sweep {{when = "i <= 1"}} {{
        tile.scale %a, %b {{factor = 2.0}}
        tile.scale %c, %a {{factor = 2.0}}
        tile.scale %d, %c {{factor = 2.0}}
      }}
      {after}
    }}"""
    module = program(text, {"a": 8, "b": 8, "c": 8, "d": 8}, {"b": "in"})
    assign_addresses(module)
    found = {b.value.name: b.address for b in module.buffers}
    assert (found["a"] == found["d"]) == (not outside)


def test_a_double_buffer_is_not_carried_through_the_outer_loop() -> None:
    """Each round of the outer loop fills both halves before it reads them."""
    text = """tile.for {var = layer, count = 2} {
      tile.scale %d[0 +: 1], %b {factor = 2.0}
      tile.for {var = t, count = 1} {
        tile.scale %d[(t + 1) mod 2], %d[t mod 2] {factor = 2.0}
      }
      tile.scale %e, %d[1] {factor = 2.0}
      tile.scale %f, %e {factor = 2.0}
    }"""
    module = program(text, {"b": 1, "d": 2, "e": 1, "f": 1}, {"b": "in"})
    ranges = {value.name: found for value, found in live_ranges(module).items()}
    assert (ranges["d"].first, ranges["d"].last) == (2, 5)


def test_buffers_with_a_role_keep_their_place() -> None:
    text = "tile.scale %b, %a {factor = 2.0}\ntile.scale %d, %c {factor = 2.0}"
    module = program(text, {"a": 5, "b": 3, "c": 5, "d": 3}, {"a": "in", "d": "out"})
    assert assign_addresses(module) == 80
    found = {b.value.name: b.address for b in module.buffers}
    assert found == {"a": 0, "d": 32, "c": 48, "b": 48}


def test_addresses_are_aligned() -> None:
    assert [align(size) for size in (0, 1, 16, 17)] == [0, 16, 16, 32]
    text = "tile.scale %b, %a {factor = 2.0}\ntile.add %a, %b, %c"
    module = program(text, {"a": 1, "b": 1, "c": 1})
    assign_addresses(module)
    assert all((b.address or 0) % 16 == 0 for b in module.buffers)


def test_the_largest_buffers_come_first() -> None:
    module = program("tile.scale %b, %a {factor = 2.0}", {"a": 3, "b": 9, "c": 5})
    assert [b.value.name for b in largest_buffers(module, 2)] == ["b", "c"]
