"""Facts of the tile level: they hold of what the passes write, and not of texts changed by hand."""

from __future__ import annotations

import pytest
from compiled_texts import changed, parse, stages, text_after

from meshc.ir.printer import print_module
from meshc.support.diagnostics import MeshcError
from meshc.verify import FACTS, check_claims, check_fact

# Those of CSL programs have tests of their own.
TILE_FACTS = [
    name for name, fact in FACTS.items() if fact.levels == ("tile",) and not name.startswith("csl_")
]
GRIDS = ("1x1", "4x3", "3x5", "6x1", "1x6")

CHANGES = {
    # --- guards_cover
    "guard with an unknown name": (
        "guards_cover",
        "guards-uncovered",
        "'z'",
        ('{when = "y = 0"}', '{when = "z = 0"}'),
    ),
    "loop variable outside its loop": (
        "guards_cover",
        "guards-uncovered",
        "'layer'",
        (
            '%got_18 = tile.recv @cast_y, %result_2_h_2.ss[0 +: 7] {when = "y >= 1"}',
            '%got_18 = tile.recv @cast_y, %result_2_h_2.ss[0 +: 7] {when = "y >= layer"}',
        ),
    ),
    "sweep that is too short": (
        "guards_cover",
        "guards-uncovered",
        r"core \(y=0, .*0\.\.1",
        ('tile.sweep {rank = "2 - y", count = 3}', 'tile.sweep {rank = "2 - y", count = 2}'),
    ),
    "rank below zero": (
        "guards_cover",
        "guards-uncovered",
        r"core \(y=2",
        ('rank = "2 - y"', 'rank = "1 - y"'),
    ),
    # --- channels_matched
    "guard of a send": (
        "channels_matched",
        "channels-unmatched",
        r"@chain_y_1 has no counterpart at core \(y=1",
        ('@chain_y_1, %h.ss {when = "y = 1"}', '@chain_y_1, %h.ss {when = "y = 3"}'),
    ),
    "send that leads nowhere": (
        "channels_matched",
        "channels-unmatched",
        r"the route of @cast_y leads nowhere from core \(y=1",
        (
            '%sent_1 = tile.send @cast_y, %h.ss {when = "y = 0"}',
            '%sent_1 = tile.send @cast_y, %h.ss {when = "y <= 1"}',
        ),
    ),
    "two ends of a chain on one core": (
        "channels_matched",
        "channels-unmatched",
        r"two statements of a chain on @chain_y_1 run at core \(y=2",
        ('@chain_y_1, %h.ss {when = "y = 1"}', '@chain_y_1, %h.ss {when = "y >= 1"}'),
    ),
    "guard of a receive": (
        "channels_matched",
        "channels-unmatched",
        r"@cast_y has no counterpart at core \(y=1",
        (
            '%got_1 = tile.recv @cast_y, %h.ss {when = "y >= 1"}',
            '%got_1 = tile.recv @cast_y, %h.ss {when = "y >= 2"}',
        ),
    ),
    "bound on the position": (
        "channels_matched",
        "channels-unmatched",
        "pos=3",
        (
            'tile.recv @ring_y, %kv_risen {when = "pos >= 3',
            'tile.recv @ring_y, %kv_risen {when = "pos >= 4',
        ),
    ),
    "route": (
        "channels_matched",
        "channels-unmatched",
        "@chain_xd_1",
        ("[y, x] -> [y, x - 1] : x >= 1", "[y, x] -> [y, x - 2] : x >= 2"),
    ),
    "two senders for one core": (
        "channels_matched",
        "channels-unmatched",
        "two cores send to one",
        ("[y, x] -> [y - 1, x] : y >= 1", "[y, x] -> [0, x] : y >= 1"),
    ),
    "send left out": (
        "channels_matched",
        "channels-unmatched",
        "4 sends and 5 receives on @cast_y",
        (
            '      %sent_1 = tile.send @cast_y, %h.ss {when = "y = 0"} : token\n'
            '      %got_1 = tile.recv @cast_y, %h.ss {when = "y >= 1"} : token\n'
            "      tile.wait %sent_1, %got_1\n",
            '      %got_1 = tile.recv @cast_y, %h.ss {when = "y >= 1"} : token\n',
        ),
    ),
    "start of a chain left out": (
        "channels_matched",
        "channels-unmatched",
        r"@chain_y_1 has no counterpart at core \(y=1",
        ('        %sent = tile.send @chain_y_1, %h.ss {when = "y = 2"} : token\n', ""),
    ),
    "lengths": (
        "channels_matched",
        "channels-unmatched",
        "different numbers of elements",
        (
            "%sent_2 = tile.send @chain_y_1, %q_k_v[0 +: 20]",
            "%sent_2 = tile.send @chain_y_1, %q_k_v[0 +: 19]",
        ),
    ),
    # --- deadlock_free
    "rank against the channel": (
        "deadlock_free",
        "deadlock",
        r"does not grow by one along @chain_y_1 at core \(y=",
        ('rank = "2 - y"', 'rank = "y"'),
    ),
    "rank that grows by two": (
        "deadlock_free",
        "deadlock",
        "does not grow by one",
        ('rank = "2 - y", count = 3', 'rank = "4 - 2*y", count = 5'),
    ),
    "chain without a sweep": (
        "deadlock_free",
        "deadlock",
        "every core waits for @chain_y_1",
        ('tile.sweep {rank = "2 - y", count = 3}', "tile.for {var = once, count = 1}"),
    ),
    "wait before the send": (
        "deadlock_free",
        "deadlock",
        "every core waits for @cast_y",
        ('      %sent_1 = tile.send @cast_y, %h.ss {when = "y = 0"} : token\n', ""),
        (
            "      tile.wait %sent_1, %got_1\n",
            "      tile.wait %got_1\n"
            '      %sent_1 = tile.send @cast_y, %h.ss {when = "y = 0"} : token\n',
        ),
    ),
    # --- routed
    "color of a receive": (
        "routed",
        "routes-clash",
        "@chain_y_1: y=1 sends on color 1 but y=0 listens on 0",
        ('recv_color = "(y + 1) mod 2"', 'recv_color = "y mod 2"'),
    ),
    "one color for a chain": (
        "routed",
        "routes-clash",
        "share color 0 at the router of y=1",
        (
            'send_color = "y mod 2", recv_color = "(y + 1) mod 2"',
            'send_color = "0", recv_color = "0"',
        ),
    ),
    "color of another channel": (
        "routed",
        "routes-clash",
        "@cast_y uses a color of another channel",
        ('send_color = "2", recv_color = "2"', 'send_color = "1", recv_color = "1"'),
    ),
    "color by the wrong axis": (
        "routed",
        "routes-clash",
        "@chain_y_1 runs along y, but its route or colors depend on 'x'",
        (
            'send_color = "y mod 2", recv_color = "(y + 1) mod 2"',
            'send_color = "x mod 2", recv_color = "(x + 1) mod 2"',
        ),
    ),
    "shared input queue": (
        "routed",
        "routes-clash",
        "@cast_y and @chain_y_1 share input queue 2",
        ("queue = 3, output_queue = 3", "queue = 2, output_queue = 3"),
    ),
    "queue beyond the device": (
        "routed",
        "too-many-routes",
        "@cast_xd has no input queue left",
        ("queue = 6, output_queue = 4}\n  port", "queue = 8, output_queue = 4}\n  port"),
    ),
    "more colors than the device": (
        "routed",
        "too-many-routes",
        "9 colors are used, 6 are free",
        ("colors = 24", "colors = 9"),
    ),
    # --- memory_planned
    "no address": (
        "memory_planned",
        "memory-unplanned",
        "'q_k_v' has no address",
        ("%q_k_v : f32[20] {address = 2112}", "%q_k_v : f32[20]"),
    ),
    "scratch over scratch": (
        "memory_planned",
        "memory-unplanned",
        "'h' and 'h.ss' overlap|'h.ss' and 'h' overlap|'h' and 'q_k_v' overlap",
        ("%h : f32[4] {address = 2032}", "%h : f32[4] {address = 2016}"),
    ),
    "scratch over weights": (
        "memory_planned",
        "memory-unplanned",
        "'lm_head' and|and 'lm_head'",
        ("%h.ss : f32[1] {address = 2016}", "%h.ss : f32[1] {address = 1900}"),
    ),
    "cache over weights": (
        "memory_planned",
        "memory-unplanned",
        "'kv_cache' and 'rope_frequency_lanes' overlap",
        ("role = state, address = 704", "role = state, address = 688"),
    ),
    "memory of the device": (
        "memory_planned",
        "does-not-fit",
        "bytes of a core, which has 736",
        ("memory_bytes = 49152", "memory_bytes = 12000"),
    ),
}


@pytest.mark.every_case
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_facts_hold_of_what_the_passes_write(phase: str, grid: str) -> None:
    module = parse(text_after("plan-memory", phase, grid))
    assert module.holds == set(TILE_FACTS)
    check_claims(module)


def test_facts_hold_with_regions() -> None:
    settings = (("split-regions", "split-regions{regions=2}"),)
    for phase in ("prefill", "decode"):
        check_claims(parse(stages(phase, "4x3", "ideal", settings)["plan-memory"]))


@pytest.mark.parametrize("numbers", ["ideal", "wse2"])
@pytest.mark.parametrize("grid", ["1x1", "4x3", "1x6"])
def test_facts_hold_of_steps_of_several_requests(grid: str, numbers: str) -> None:
    module = parse(stages("decode", grid, numbers, batch=3)["plan-memory"])
    assert module.holds == set(TILE_FACTS)
    check_claims(module)


@pytest.mark.parametrize(
    ("fact", "words", "edit"),
    [
        (
            "channels_matched",
            r"@ring_y has no counterpart at core .*pos=",
            (
                '@ring_y, %kv_oldest {when = "pos >= 3 and',
                '@ring_y, %kv_oldest {when = "pos >= 4 and',
            ),
        ),
        ("guards_cover", "'request'", ('%s.max {when = "y = 0"}', '%s.max {when = "y = request"}')),
    ],
)
def test_a_changed_step_of_several_requests_is_refused(
    fact: str, words: str, edit: tuple[str, str]
) -> None:
    """In a round the position of its request is one number, as if there were no others."""
    module = changed(stages("decode", "4x3", batch=3)["plan-memory"], edit)
    with pytest.raises(MeshcError, match=words):
        check_fact(module, fact)


@pytest.mark.every_case
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_text_is_refused_with_a_witness(change: str) -> None:
    fact, code, words, *edits = CHANGES[change]
    module = changed(text_after("plan-memory", numbers="wse2"), *edits)
    with pytest.raises(MeshcError, match=words) as error:
        check_fact(module, fact)
    assert [d.code for d in error.value.diagnostics] == [code]


def test_every_tile_fact_has_a_text_that_breaks_it() -> None:
    assert {change[0] for change in CHANGES.values()} == set(TILE_FACTS)


def test_claims_of_a_changed_text_are_checked() -> None:
    """All false claims of a text are reported together."""
    module = changed(
        text_after("plan-memory", numbers="wse2"),
        ("%q_k_v : f32[20] {address = 2112}", "%q_k_v : f32[20]"),
        ('recv_color = "(y + 1) mod 2"', 'recv_color = "y mod 2"'),
    )
    with pytest.raises(MeshcError) as error:
        check_claims(module)
    assert [d.code for d in error.value.diagnostics] == ["memory-unplanned", "routes-clash"]


def test_an_unknown_claim_is_refused() -> None:
    module = changed(text_after("plan-memory"), ("holds(", "holds(bug_free, "))
    with pytest.raises(MeshcError, match="no fact 'bug_free'"):
        check_claims(module)


def test_waiting_inside_a_loop_comes_before_a_later_send() -> None:
    """A wait in a nested block counts where the block stands."""
    module = changed(
        text_after("plan-memory"),
        (
            '    %sent_19 = tile.send @cast_y, %result_2_h_2.ss[0 +: 7] {when = "y = 0"} : token\n',
            "",
        ),
        (
            "    tile.wait %sent_19, %got_19\n",
            "    tile.for {var = once, count = 1} {\n"
            "      tile.wait %got_19\n"
            "    }\n"
            '    %sent_19 = tile.send @cast_y, %result_2_h_2.ss[0 +: 7] {when = "y = 0"} : token\n',
        ),
    )
    assert "tile.wait %got_19" in print_module(module)
    with pytest.raises(MeshcError) as error:
        check_fact(module, "deadlock_free")
    assert error.value.diagnostics[0].code == "deadlock"
