"""Where ring buffers overflow, by the guards of a program, beside a count entry by entry."""

import pytest
from reduced import crossed

from meshc.analysis.layout.occupancy import first_overflow
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics

TEXT = """module @t level(tile) {{
  dims E = 8
  scalars pos = 0..99
  mesh y = {rows}, x = 2
  buffer %cache : f32[{slots}, 2] {{role = state}}
  buffer %state : i32[2] {{role = state}}
  buffer %row : f32[2] {{role = in}}
  program @decode {{
    {body}
  }}
}}"""


def module_of(tmp_path, body, rows=3, slots=2):
    path = tmp_path / "rings.meshir"
    path.write_text(TEXT.format(rows=rows, slots=slots, body="\n    ".join(body)))
    return load_any(str(path), Diagnostics()).module


def push(when):
    """An entry enters the ring of the cores of a guard."""
    return [
        f'tile.ring_push %cache, %row, %state {{when = "{when}"}}',
        f'tile.ring_grow %state {{when = "{when}"}}',
    ]


def test_every_core_takes_every_entry(tmp_path):
    found = first_overflow(module_of(tmp_path, push("x >= 0")))
    assert (found.position, found.core, found.cores) == (2, {"y": 0, "x": 0}, 6)


def test_cores_take_turns(tmp_path):
    found = first_overflow(module_of(tmp_path, push("y = pos mod 3"), slots=4))
    assert (found.position, found.core, found.cores, found.slots) == (12, {"y": 0, "x": 0}, 2, 4)


def test_one_core_takes_all_from_some_position_on(tmp_path):
    found = first_overflow(module_of(tmp_path, push("x = 1 and y = 2 and pos >= 5"), slots=3))
    assert (found.position, found.core, found.cores) == (8, {"y": 2, "x": 1}, 1)


def test_what_leaves_before_makes_room_and_what_leaves_behind_does_not(tmp_path):
    drop = ['tile.ring_drop %state {capacity = 2, when = "pos >= 2"}']
    assert first_overflow(module_of(tmp_path, drop + push("x >= 0"))) is None
    assert first_overflow(module_of(tmp_path, push("x >= 0") + drop)).position == 2


def test_a_program_without_caches_never_overflows(tmp_path):
    assert first_overflow(module_of(tmp_path, ["tile.fill %row {value = 0.0}"])) is None


@pytest.mark.parametrize(
    ("kv", "size"), crossed(["shift", "cyclic", "concat"], [(1, 3), (2, 2), (5, 1), (6, 3)])
)
def test_policies_hold_what_was_asked_for(kv, size):
    """Programs of the compiler: all the tokens they are compiled for, and not one more."""
    rows, slots = size
    seq = slots if kv == "concat" else slots * rows
    request = CompileRequest(mesh=f"2x{rows}", phase="decode", seq=seq, kv=kv, compile_to="tile")
    loaded = load_any("tests/data/tiny/llama-5h-mha", Diagnostics())
    (module,) = compile_loaded(loaded, request).modules.values()
    found = first_overflow(module)
    assert (found.position, found.slots) == (seq, slots)
    last = {1: 0, 2: 1, 5: 1, 6: 1}[rows]
    assert found.core == {"y": last if kv == "concat" else 0, "x": 0} and found.cores == 2
