"""Turns hold of the common program and not of texts changed by hand."""

from pathlib import Path
from string import Template

import pytest
from compiled_texts import changed

from meshc.support.diagnostics import MeshcError
from meshc.verify import check_fact

TEMPLATE = Path(__file__).parents[1] / "data" / "turns.meshir.template"
TEXT = Template(TEMPLATE.read_text()).substitute(
    rows=2, columns=4, axis="x", each=1, words=1, rounds=2, steps=4, last=3,
    up="[y, _x] : x < _x and _x <= 3", down="[y, _x] : _x >= 0 and _x <= x",
)  # fmt: skip

CHANGES = {
    "another order": (
        r"x = step sends in that step, unlike core \(y=0, x=3\)",
        ('when = "x = floor(t/1)"', 'when = "x = 3 - t"'),
        ('when = "x <= floor(t/1)"', 'when = "x <= 3 - t"'),
    ),
    "a part of a round": (
        "a round takes 4 steps and the loop 3",
        ("var = t, count = 4", "var = t, count = 3"),
    ),
    "a part of a line": (
        "only a part of a line runs the loop",
        ("var = t, count = 4", 'var = t, count = 4, when = "x >= 1"'),
    ),
    "a route of another form": (
        "cannot take turns",
        ("_x <= 3", "_x <= 2"),
    ),
}


def test_the_common_program_holds():
    for fact in ("guards_cover", "channels_matched", "deadlock_free"):
        check_fact(changed(TEXT), fact)


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_program_is_refused(name):
    message, *edits = CHANGES[name]
    with pytest.raises(MeshcError, match=message) as caught:
        check_fact(changed(TEXT, *edits), "channels_matched")
    assert caught.value.diagnostics[0].code == "bad-turns"


def test_turns_are_taken_inside_a_loop():
    text = TEXT.replace("tile.for {var = t, count = 4} {", "").replace("      }\n    }", "    }")
    text = text.replace("floor(t/1)", "k").replace("t mod 1", "0").replace("[k, t]", "[0, 0]")
    text = text.replace("count = 2", "count = 4")
    check_fact(changed(text), "channels_matched")
    sweep = text.replace("tile.for {var = k, count = 4}", 'tile.sweep {rank = "0", count = 1}')
    with pytest.raises(MeshcError, match="outside the body of a loop"):
        check_fact(changed(sweep.replace('"x = k', '"x = 0').replace("> k", "> 0")
                           .replace("<= k", "<= 0")), "channels_matched")  # fmt: skip
