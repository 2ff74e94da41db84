"""What report.json says of a core's memory against what the simulator's compiler places there."""

import json
import sys
from itertools import product
from pathlib import Path

import pytest
from csl_decoding import TINY
from csl_runs import compiled, emit, tile_text
from csl_texts import tile_program
from csl_turn_texts import all_gather
from reduced import crossed, each

from meshc.analysis.csl import resources
from meshc.analysis.csl.memory import element_bytes
from meshc.analysis.csl.words import TABLE_BYTES, WORD_BYTES, word_bytes
from meshc.backends.csl.pe.code_size import code_size
from meshc.backends.csl.pe.core_memory import CoreMemory
from meshc.backends.csl.tree.syntax_tree import Return
from meshc.devices import device
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.driver.questions import GEMMS, GEMVS, Question, tile_module
from meshc.passes.tile.plan_memory import explain_shortfall
from meshc.sim import csl_compiler
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.plmr import letter_of

ROOT = Path(__file__).parents[3]
GOLDENS = sorted((ROOT / "tests/golden").glob("csl_*/expected/out/report.json"))
ARCHS = ("wse2", "wse3")
EXAMPLES = ("all_gather", "column_sums", "relay", "scatter")
OF_LIBRARIES = 16  # statements of time stamps and of the end of a launch, which runtime_bytes hold

STATEMENT = Return()


def placed(files, folder, arch, monkeypatch):
    """By PE class: bytes of variables, bytes up to the last one, statements of lowered code."""
    found = []
    check = csl_compiler._check_memory

    def watched(unit):
        found.append((sum(s.size for s in unit.symbols), unit.used, unit.statements))
        check(unit)

    monkeypatch.setattr(csl_compiler, "_check_memory", watched)
    for name, text in files.items():
        (folder / name).write_text(text)
    width, height = json.loads(files["report.json"])["mesh"]
    depth = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        csl_compiler.compile_program(
            str(folder / "layout.csl"), arch, {}, {}, (width + 7, height + 2), (4, 1), []
        )
    finally:
        sys.setrecursionlimit(depth)
    return found


def agree(files, folder, arch, monkeypatch):
    memory = json.loads(files["report.json"])["memory"]
    classes = placed(files, folder, arch, monkeypatch)
    assert memory["data"] == max(data for data, _, _ in classes)
    named = memory["scratch"] + memory["tables"] + memory["variables"]
    assert memory["data"] - named >= sum(memory["buffers"].values())
    assert max(used for _, used, _ in classes) <= memory["data"] + memory["padding"]
    assert max(count for *_, count in classes) <= memory["code"]["statements"] + OF_LIBRARIES
    code = memory["code"]
    assert code["bytes"] == code["runtime"] + code["own"] + code["margin"]
    taken = memory["data"] + memory["padding"] + code["bytes"]
    assert memory["left"] == device(arch).memory_bytes - taken >= 0


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.parts[-4])
def test_golden_programs(path, tmp_path, monkeypatch):
    files = {p.name: p.read_text() for p in path.parent.iterdir() if p.is_file()}
    for arch in json.loads(files["report.json"])["arch"]:
        agree(files, tmp_path, arch, monkeypatch)


@pytest.mark.parametrize(("name", "arch"), crossed(EXAMPLES, ARCHS))
def test_examples(name, arch, tmp_path, monkeypatch):
    text = (ROOT / f"examples/{name}.meshir").read_text()
    files = emit(compiled(text, tmp_path, f"{name}.meshir", device=arch))
    agree(files, tmp_path, arch, monkeypatch)


@pytest.mark.parametrize(
    ("asked", "arch"),
    crossed([*(("gemm", a) for a in GEMMS), *(("gemv", a) for a in GEMVS)], ARCHS),
)
def test_products(asked, arch, tmp_path, monkeypatch):
    kind, algo = asked
    m = 13 if kind == "gemm" else 1
    question = Question(m=m, k=50, n=22, mesh="4x6", device=arch, dtype="f16")
    agree(emit({"main": tile_module(question, kind, algo)}), tmp_path, arch, monkeypatch)


def test_tables_of_turns_are_counted(tmp_path, monkeypatch):
    """The words that end a turn: two for the way up, and one of two for the way down."""
    files = emit({"main": tile_text(all_gather(2, 5, "x", 1), "wse2")})
    assert json.loads(files["report.json"])["memory"]["tables"] == 12
    agree(files, tmp_path, "wse2", monkeypatch)


@pytest.mark.parametrize(
    ("asked", "kind", "arch"),
    crossed([(13, "cannon"), (40, "summa"), (1, "k_tree")], ["f16", "f32"], ARCHS, times=2),
)
def test_the_plan_is_what_is_placed(asked, kind, arch, tmp_path, monkeypatch):
    """Buffers and scratch as plan-csl-memory says them, and words as plan-csl-words, are all."""
    m, algo = asked
    question = Question(m=m, k=50, n=22, mesh="4x4", device=arch, dtype=kind)
    module = tile_module(question, "gemv" if m == 1 else "gemm", algo)
    files = emit({"main": module})
    memory = json.loads(files["report.json"])["memory"]
    classes = placed(files, tmp_path, arch, monkeypatch)
    assert resources.scratch(module) or memory["scratch"] == 0
    planned_is_placed(module, memory, classes)


def planned_is_placed(module, memory, classes):
    planned = element_bytes(module) + word_bytes(module)
    assert planned == memory["data"] == max(data for data, _, _ in classes)
    assert TABLE_BYTES * sum(resources.tables(module).values()) == memory["tables"]
    assert WORD_BYTES * sum(resources.words(module).values()) == memory["variables"]


@pytest.mark.parametrize(("name", "arch"), crossed([*EXAMPLES, "turns"], ARCHS))
def test_the_plan_of_collectives_is_what_is_placed(name, arch, tmp_path, monkeypatch):
    if name == "turns":
        module = tile_text(all_gather(2, 5, "x", 1), arch)
    else:
        text = (ROOT / f"examples/{name}.meshir").read_text()
        (module,) = compiled(text, tmp_path, f"{name}.meshir", device=arch).values()
    files = emit({"main": module})
    memory = json.loads(files["report.json"])["memory"]
    assert resources.tables(module) == ({"turns": 3} if name == "turns" else {})
    planned_is_placed(module, memory, placed(files, tmp_path, arch, monkeypatch))


@pytest.mark.parametrize(("kind", "arch"), each(product(["f16", "f32"], ARCHS), 4))
def test_the_plan_of_a_decode_step_is_what_is_placed(kind, arch, tmp_path, monkeypatch):
    """Angles, caches, products, sums of lines and run-time coordinates in one program."""
    loaded = load_any(str(TINY / "llama-3h1"), Diagnostics())
    request = CompileRequest(
        target="csl", device=arch, mesh="2x3", kv="cyclic", dtype=kind, seq=24, phase="decode"
    )
    found = compile_loaded(loaded, request, (), Diagnostics())
    (module,), files = found.modules.values(), found.files
    assert (
        resources.tables(module)["angles"]
        and resources.words(module)["scalars"]
        and resources.words(module)["coordinates"]
    )
    memory = json.loads(files["report.json"])["memory"]
    planned_is_placed(module, memory, placed(files, tmp_path, arch, monkeypatch))


def program(statements, elements):
    """A tile program of so many statements on a buffer of so many f32."""
    fills = "".join(f"    tile.fill %d[{n} +: 1] {{value = {n}.0}}\n" for n in range(statements))
    return tile_program(fills, f"  buffer %d : f32[{elements}]\n")


def test_code_counts_against_the_memory_of_a_core(monkeypatch):
    """Beside 40 kB of data there is room for 300 statements and not for 900."""
    files = emit({"main": tile_text(program(300, 10_000), "wse2")})
    memory = json.loads(files["report.json"])["memory"]
    assert memory["data"] > device("wse2").data_bytes and memory["left"] >= 0
    with pytest.raises(MeshcError) as caught:
        emit({"main": tile_text(program(900, 10_000), "wse2")})
    (refused,) = caught.value.diagnostics
    assert (refused.code, letter_of(refused)) == ("csl-memory-full", "M")
    assert any("estimate" in note and "statements" in note for note in refused.notes)
    monkeypatch.setattr(CoreMemory, "check", lambda _: None)
    wide = json.loads(emit({"main": tile_text(program(900, 10_000), "wse2")})["report.json"])
    memory = wide["memory"]
    taken, code = " ".join([refused.message, *refused.notes]), memory["code"]
    for said in (
        f"{sum(memory['buffers'].values())} bytes of buffers, {memory['scratch']} of scratch",
        f"{memory['tables']} of tables, {memory['variables']} of variables",
        f"{memory['data']} of data",
        f"{memory['padding']} of padding",
        f"{code['bytes']} bytes of code: {code['runtime']} of",
        f"{code['own']} of {code['statements']} statements, {code['margin']} of margin",
        f"{-memory['left']} bytes short",
    ):
        assert said in taken


def test_what_the_search_keeps_free_is_named_as_in_the_report():
    """Before a program is emitted, a refusal says what the device's reserve is for."""
    with pytest.raises(MeshcError) as caught:
        explain_shortfall(tile_text(program(1, 20_000), "wse2"), 80_000, device("wse2").data_bytes)
    (refused,) = caught.value.diagnostics
    kept = f"{device('wse2').reserved_bytes} bytes are kept for "
    assert f"{kept}scratch, tables, variables, padding and code" in refused.notes
    report = json.loads(emit({"main": tile_text(program(1, 10), "wse2")})["report.json"])
    assert {"scratch", "tables", "variables", "padding", "code"} <= report["memory"].keys()


def test_an_estimate_leaves_a_public_program_its_size():
    """The vendor's single-tile product runs with 40,848 bytes of data, in 32 statements."""
    from_vendor = code_size([STATEMENT] * 32, device("wse2"))
    assert from_vendor.bytes <= device("wse2").memory_bytes - 40_848


def test_the_calibration_is_the_size_that_is_known():
    """588 statements and the host's copies are what WaferLLM leaves to code, without the margin."""
    found = code_size([STATEMENT] * 588, device("wse2"))
    known = device("wse2").reserved_bytes
    assert abs(found.runtime + found.own - known) <= 0.01 * known


CHAIN = """model chain(M=1, E=4, F=8, N=8) {
  weights f32  accumulate f32
  param w[E, F], v[F, N]
  main(x[M, E]) -> [M, N] { return (x @ w) @ v }
}
"""


def test_sums_by_which_the_next_product_multiplies_begin_in_another_bank(tmp_path):
    """Their elements are read one by one there; rows of the first product's weights are added to
    them, and lie in the same banks as each other."""
    source = tmp_path / "chain.mesh"
    source.write_text(CHAIN)
    request = CompileRequest(target="csl", device="wse3", mesh="1x1", dtype="f32")
    files = compile_loaded(load_any(str(source), Diagnostics()), request, (), Diagnostics()).files
    late = [line for line in files["main.csl"].splitlines() if "one element late" in line]
    assert len(late) == 2 and all("[9]f32" in line for line in late)
