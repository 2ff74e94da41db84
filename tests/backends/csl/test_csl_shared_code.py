"""What several places of a program do is emitted once and called: the same results, less code, and
no more cycles than the calls take, which are none where functions are short."""

import json

import numpy as np
import pytest
from csl_decoding import TINY
from csl_runs import run_files, tile_text
from csl_texts import tile_program

from meshc.analysis.csl.joined_transfers import Transfers
from meshc.analysis.csl.repeats import repeated_runs
from meshc.backends import csl
from meshc.driver import CompileRequest, compile_loaded, find_weights, load_any, open_weights
from meshc.pipelines import resource_passes
from meshc.support.diagnostics import Diagnostics

PAIR = "    tile.silu %b, %a\n    tile.add %a, %b, %c\n    tile.mul %c, %a, %b\n"
REDUCE = """\
    %s{n} = tile.send @chain_x_1, %a {{when = "x = 2"}} : token
    %p{n} = tile.relay @chain_x_1, @chain_x_1, %a {{when = "x = 1"}} : token
    %r{n} = tile.recv @chain_x_1, %a {{combine = add, when = "x = 0"}} : token
    tile.wait %s{n}, %p{n}, %r{n}
"""
CHAIN = '  channel @chain_x_1 "{ [y, x] -> [y, x - 1] : x >= 1 }"\n'


def runs(body, header=""):
    """How often each run of a program stands there, and how many statements it has."""
    module = tile_text(tile_program(body, header), "wse3")
    found = repeated_runs(module, Transfers(module))
    return sorted((run.places, len(run.ops)) for run in dict.fromkeys(found.values()))


def test_equal_statements_are_one_run():
    assert runs(PAIR + PAIR) == [(2, 3)]
    assert runs(PAIR + "    tile.fill %a {value = 1.0}\n" + PAIR + PAIR) == [(3, 3)]


def test_runs_may_stand_in_several_blocks():
    loop = f"    tile.for {{var = t, count = 2}} {{\n{PAIR}    }}\n"
    assert runs(PAIR + loop) == [(2, 3)]


def test_too_little_is_not_shared():
    assert runs("    tile.silu %b, %a\n" * 2) == []


def test_what_differs_is_not_shared():
    other = PAIR.replace("%a, %b\n", '%a, %b {when = "x = 1"}\n')
    assert runs(PAIR + other) == []
    assert runs(PAIR + PAIR.replace("%c, %a, %b", "%c, %b, %a")) == []


def test_what_a_loop_counts_is_not_shared():
    inner = PAIR.replace("silu %b, %a", "scale %b[t +: 1], %a[0 +: 1] {factor = 2.0}")
    loop = f"    tile.for {{var = t, count = 2}} {{\n{inner}{inner}    }}\n"
    assert runs(loop) == []


def test_reductions_are_shared_unless_the_program_returns_to_wait():
    two = [REDUCE.format(n=n) for n in range(2)]
    fill = "    tile.fill %b {value = 0.0}\n"
    assert runs(fill.join(two), CHAIN) == [(2, 4)]
    late = [text.replace("    tile.wait", f"{fill}    tile.wait") for text in two]
    assert runs("".join(late), CHAIN) == []


def decode_step(merged):
    """The decode step of a tiny model, its tensors, and the inputs of a first step."""
    report, name = Diagnostics(), "llama-3h1"
    loaded = load_any(str(TINY / name), report)
    asked = CompileRequest(
        device="wse3", mesh="3x2", phase="decode", dtype="f16", seq=8, compile_to="tile"
    )
    module = compile_loaded(loaded, asked, (), report).modules["decode"]
    csl.check(module)
    for one in resource_passes()[0 if merged else 1 :]:
        module = one.run(module, report)
    tensors = open_weights(find_weights(name, TINY / name, None), loaded.config, None, report)
    given = {p.name: tensors[p.name] for p in module.ports if p.name in tensors}
    entry = next(p for p in module.ports if p.buffer.name == "x" and p.direction == "in")
    row = np.asarray(tensors["embedding"])[19][None, None]
    return module, {**given, entry.name: row}


def test_a_decode_step_with_shared_code_and_without(tmp_path, monkeypatch):
    found, steps = {}, {merged: decode_step(merged) for merged in (True, False)}
    for merged, shared in ((True, True), (True, False), (False, False)):
        module, tensors = steps[merged]
        folder = tmp_path / f"{merged}_{shared}"
        folder.mkdir()
        files = csl.emit({"decode": module}, shared=shared)
        assert ("In 3 places" in files["decode.csl"]) == shared
        results, cycles = run_files(files, tensors, folder, monkeypatch)
        memory = json.loads(files["report.json"])["memory"]
        found[merged, shared] = results["logits"], cycles, memory
    usual, plain, apart = found.values()
    np.testing.assert_array_equal(usual[0], plain[0])
    np.testing.assert_array_equal(usual[0], apart[0])
    assert usual[1] == plain[1], "short functions are written in the place of their calls"
    assert usual[2]["code"]["statements"] < 0.95 * plain[2]["code"]["statements"]
    assert plain[2]["data"] < apart[2]["data"] and plain[1] == pytest.approx(apart[1], rel=0.002)
