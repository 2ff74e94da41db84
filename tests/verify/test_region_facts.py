"""What crosses regions goes to a neighbour, and loops of two sides belong together step by step."""

from __future__ import annotations

import pytest
from compiled_texts import changed

from meshc.analysis.traffic.handovers import handovers
from meshc.support.diagnostics import MeshcError
from meshc.verify import check_fact

# ruff: noqa: E501

TEXT = """module @handover level(tile) holds() {
  dims X = 3, R = 2
  options phase = main, dtype = f32, accumulate = f32
  device name = plain, topology = mesh, axes = "r y x", push = false, enforced = false
    assumed colors = unlimited, reserved_colors = 0, input_queues = unlimited, reserved_input_queues = 0
  mesh r = 2, y = 1, x = 3, origins = [[0, 0], [3, 0]]
  buffer %v : f32[1]
  buffer %w : f32[1]
  channel @edge "{ [r, y, x] -> [r + 1, y, 0] : r <= 0 and x = 2 }" {send_color = "0", recv_color = "0", queue = 0, output_queue = 0}
  channel @onward "{ [y, x] -> [y, x + 1] : x <= 1 }" {send_color = "x mod 2 + 1", recv_color = "(x + 1) mod 2 + 1", queue = 1, output_queue = 1}
  program @main {
    tile.sweep {rank = "r", count = 2} {
      tile.for {var = t, count = 3} {
        %passed = tile.send @onward, %v {when = "r >= 1 and x < t"} : token
        %came = tile.recv @edge, %w {when = "r >= 1 and x = 0"} : token
        %got = tile.recv @onward, %w {when = "r >= 1 and x >= 1 and x <= t"} : token
        tile.wait %passed, %came, %got
        tile.copy %v, %w {when = "r >= 1 and x <= t"}
      }
      tile.for {var = u, count = 3} {
        %left = tile.send @edge, %v {when = "r <= 0 and x = 2"} : token
        %moved = tile.send @onward, %v {when = "r <= 0 and x >= u and x <= 1"} : token
        %next = tile.recv @onward, %w {when = "r <= 0 and x > u"} : token
        tile.wait %left, %moved, %next
        tile.copy %v, %w {when = "r <= 0 and x > u"}
      }
    }
  }
}
"""

BY_THEMSELVES = """      tile.for {var = k, count = 2} {
        %s = tile.send @edge, %v {when = "r <= 0 and x = 2"} : token
        %d = tile.recv @edge, %w {when = "r >= 1 and x = 0"} : token
        tile.wait %s, %d
      }
"""

CHANGES = {
    "another number of steps": (
        "channels_matched",
        "channels-unmatched",
        "what one loop sends on @edge is received in other steps",
        ("var = u, count = 3", "var = u, count = 2"),
    ),
    "a step in which nothing is sent": (
        "channels_matched",
        "channels-unmatched",
        r"a message on @edge has no counterpart at core \(r=1, y=0, x=0\)",
        ("%left = tile.send @edge, %v {when = \"r <= 0 and x = 2\"}",
         "%left = tile.send @edge, %v {when = \"r <= 0 and x = 2 and u >= 1\"}"),
    ),
    "only one side": (
        "channels_matched",
        "channels-unmatched",
        "0 sends and 1 receives on @edge",
        ("%left = tile.send @edge, %v {when = \"r <= 0 and x = 2\"} : token\n", "\n"),
        ("tile.wait %left, %moved", "tile.wait %moved"),
    ),
    "others while a message is on its way": (
        "channels_matched",
        "channels-unmatched",
        "transfers on @edge begin and end here while another is on its way",
        ("      tile.for {var = u", BY_THEMSELVES + "      tile.for {var = u"),
    ),
    "no sweep": (
        "deadlock_free",
        "deadlock",
        "every core waits for @edge before any sends on it",
        ('tile.sweep {rank = "r", count = 2}', "tile.for {var = once, count = 1}"),
    ),
    "a rank that falls": (
        "deadlock_free",
        "deadlock",
        "the sweep's rank does not grow by one along @edge",
        ('rank = "r"', 'rank = "1 - r"'),
    ),
    "past other cores": (
        "routed",
        "routes-clash",
        r"from core \(r=0, y=0, x=0\) to core \(r=1, y=0, x=0\) takes 3 hops",
        ("[r + 1, y, 0] : r <= 0 and x = 2", "[r + 1, y, x] : r <= 0"),
    ),
    "regions apart": (
        "routed",
        "routes-clash",
        "takes 4 hops on the device",
        ("[3, 0]]", "[6, 0]]"),
    ),
    "askew": (
        "routed",
        "routes-clash",
        "other than straight over an edge",
        ("[r + 1, y, 0] : r <= 0 and x = 2", "[r + 1, 0, 0] : r <= 0 and x = 2"),
    ),
}  # fmt: skip


def test_the_common_program_holds() -> None:
    for fact in ("guards_cover", "channels_matched", "deadlock_free", "routed"):
        check_fact(changed(TEXT), fact)


def test_any_core_is_near_where_all_reach_each_other() -> None:
    far = ("[r + 1, y, 0] : r <= 0 and x = 2", "[r + 1, y, x] : r <= 0")
    check_fact(changed(TEXT, far, ("topology = mesh", "topology = all_to_all")), "routed")


@pytest.mark.every_case
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_program_is_refused(name: str) -> None:
    fact, code, message, *edits = CHANGES[name]
    with pytest.raises(MeshcError, match=message) as caught:
        check_fact(changed(TEXT, *edits), fact)
    assert caught.value.diagnostics[0].code == code


def test_regions_without_a_common_edge_hand_over_nothing() -> None:
    mesh = changed(TEXT, ("[3, 0]]", "[3, 1]]")).the_mesh()
    with pytest.raises(MeshcError, match="no edge in common") as caught:
        handovers(mesh)
    assert caught.value.diagnostics[0].code == "regions-apart"


def test_many_nested_loops_are_looked_at_once() -> None:
    """Work must not double with each loop around a transfer."""
    depth = 20
    sends = '%a = tile.send @edge, %v {when = "r <= 0 and x = 2"} : token'
    recvs = '%b = tile.recv @edge, %w {when = "r >= 1 and x = 0"} : token'
    body = [f"tile.for {{var = n{i}, count = 1}} {{" for i in range(depth)]
    text = "\n".join([*body, sends, recvs, "tile.wait %a, %b", *["}"] * depth])
    begin, end = TEXT.index('    tile.sweep {rank = "r"'), TEXT.rindex("  }\n}")
    check_fact(changed(TEXT[:begin] + text + "\n" + TEXT[end:]), "channels_matched")
