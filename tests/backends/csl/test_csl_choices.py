"""Ways of writing kernels that may be turned off: what each changes, gains and how exact it is."""

import json

import numpy as np
import pytest
from csl_runs import compiled, emitted, run_files, tile_text

from meshc.ir.printer import print_module
from meshc.passes.mesh.select_collective import SelectCollective
from meshc.passes.resources.csl.assign_registers import AssignCslRegisters
from meshc.passes.resources.csl.plan_memory import PlanCslMemory
from meshc.passes.resources.csl.select_functions import SelectCslFunctions
from meshc.passes.resources.csl.select_products import SelectCslProducts
from meshc.support.diagnostics import Diagnostics

LAYER = """\
use blocks
model layer(E=32, H=2, D=16, F=48, layers=1) {{
  weights f16  accumulate {sums}
  main(x[B, L, E]) -> [B, L, E] {{
    repeat layers {{
      param attn_norm[E], wq[E, H, D], wk[E, H, D], wv[E, H, D], wo[H, D, E]
      param ffn_norm[E], w_gate[E, F], w_up[E, F], w_down[F, E]
      x = llama_attention(x, attn_norm, wq, wk, wv, wo)
      x = llama_mlp(x, ffn_norm, w_gate, w_up, w_down)
    }}
    return x
  }}
}}
"""
USUAL = SelectCslFunctions()
NONE = SelectCslFunctions(functions=False, angles=False, turns=False)


def layer(
    folder,
    monkeypatch,
    choices,
    arch,
    sums,
    phase="decode",
    scalar=("--pos", "5"),
    algo=(),
    **options,
):
    """Result and cycles of a decode step behind five tokens, or of a prompt, and its text."""
    folder.mkdir()
    request = {"device": arch, "mesh": "2x2", "dtype": "f16", "seq": 24, "phase": phase}
    request["algo"] = algo
    modules = compiled(LAYER.format(sums=sums), folder, **request)
    files = emitted(modules, *choices, **options)
    facts = json.loads(files["report.json"])
    rng = np.random.default_rng(3)
    tensors = {
        name: (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float16)
        for name, shape in facts["inputs"].items()
    }
    if phase == "prefill":
        tensors["x"] = tensors["x"][:, : int(scalar[1])]
    found, cycles = run_files(files, tensors, folder, monkeypatch, options=scalar)
    (result,) = facts["outputs"]
    return found[result], cycles, files["main.csl" if "main.csl" in files else f"{phase}.csl"]


@pytest.mark.parametrize(
    ("sums", "arch"),
    [
        ("f16", "wse2"),
        pytest.param("f32", "wse3", marks=pytest.mark.slow),
        pytest.param("f16", "wse3", marks=pytest.mark.slow),
        pytest.param("f32", "wse2", marks=pytest.mark.slow),
    ],
)
def test_each_choice_saves_cycles_and_leaves_the_result(sums, arch, tmp_path, monkeypatch):
    result, cycles, text = layer(tmp_path / "usual", monkeypatch, [USUAL], arch, sums)
    plain, most, before = layer(tmp_path / "none", monkeypatch, [NONE], arch, sums)
    np.testing.assert_allclose(result, plain, 0, 8e-3)
    assert "math.sin_f32" in before and "math.sin_f32" not in text
    gained = 0
    for name in ("angles", "turns", "functions"):
        choices = [SelectCslFunctions(**{name: False})]
        without = layer(tmp_path / name, monkeypatch, choices, arch, sums)
        assert without[1] > cycles, name
        assert without[2] not in (text, before), name
        gained += without[1] - cycles
    # A choice also moves the scratch memory of the others to other banks.
    assert abs(most - cycles - gained) <= 0.05 * most


@pytest.mark.parametrize("arch", ["wse2", pytest.param("wse3", marks=pytest.mark.slow)])
@pytest.mark.parametrize("accuracy", ["half", "single"])
def test_operands_in_registers_save_cycles_and_change_no_bit(arch, accuracy, tmp_path, monkeypatch):
    functions = SelectCslFunctions(accuracy=accuracy)
    held, cycles, text = layer(tmp_path / "held", monkeypatch, [functions], arch, "f16")
    choices = [functions, AssignCslRegisters(functions=False)]
    named, most, before = layer(tmp_path / "named", monkeypatch, choices, arch, "f16")
    np.testing.assert_array_equal(held, named)
    assert cycles < most
    assert "@get_dsr(dsr_src0, 8)" in text and "@get_dsr(dsr_src0, 8)" not in before


def test_lanes_turned_in_half_save_cycles_and_leave_the_result(tmp_path, monkeypatch):
    result, cycles, text = layer(tmp_path / "half", monkeypatch, [USUAL], "wse2", "f16")
    choices = [SelectCslFunctions(narrow=False)]
    wide, most, before = layer(tmp_path / "wide", monkeypatch, choices, "wse2", "f16")
    np.testing.assert_allclose(result, wide, 0, 8e-3)
    assert cycles < most and text != before


@pytest.mark.parametrize("arch", ["wse2", pytest.param("wse3", marks=pytest.mark.slow)])
def test_rows_without_zeros_before_them_save_cycles_and_change_no_bit(arch, tmp_path, monkeypatch):
    fresh, cycles, text = layer(tmp_path / "fresh", monkeypatch, [], arch, "f16")
    choices = [SelectCslProducts(fresh=False)]
    zeroed, most, before = layer(tmp_path / "zeroed", monkeypatch, choices, arch, "f16")
    np.testing.assert_array_equal(fresh, zeroed)
    assert cycles < most and text != before


def test_chunks_in_one_contraction_save_cycles_and_change_no_bit(tmp_path, monkeypatch):
    """What was gathered is multiplied row by row, through all chunks before the next row."""
    prompt = ("wse2", "f16", "prefill", ("--len", "15"), ("gemm=allgather",))
    joined, cycles, text = layer(tmp_path / "joined", monkeypatch, [], *prompt)
    choices = [SelectCslProducts(joined=False)]
    apart, most, before = layer(tmp_path / "apart", monkeypatch, choices, *prompt)
    np.testing.assert_array_equal(joined, apart)
    assert "right_chunks" in text and cycles < most and text != before


@pytest.mark.parametrize("arch", ["wse2", pytest.param("wse3", marks=pytest.mark.slow)])
def test_waits_that_lead_to_the_next_round_save_cycles_and_change_no_bit(
    arch, tmp_path, monkeypatch
):
    """The last wait of a ring's step needs no case of its own."""
    prompt = (arch, "f16", "prefill", ("--len", "15"), ("gemm=cyclic_shift",))
    direct, cycles, text = layer(tmp_path / "direct", monkeypatch, [], *prompt)
    cases, most, before = layer(tmp_path / "cases", monkeypatch, [], *prompt, direct=False)
    np.testing.assert_array_equal(direct, cases)
    assert cycles < most
    assert text.count("=> {") < before.count("=> {")


@pytest.mark.slow
def test_turning_both_ways_saves_cycles_and_changes_no_bit(tmp_path, monkeypatch):
    """Left operands and cached rows turn by the shorter way around their rings."""
    request = {"device": "wse2", "dtype": "f16", "phase": "prefill"}
    source = LAYER.format(sums="f16")
    shifted = {"mesh": "4x4", "seq": 24, "compile_to": "mesh", "algo": ("gemm=cyclic_shift",)}
    (module,) = compiled(source, tmp_path, **request, **shifted).values()
    found = {}
    for both_ways in (True, False):
        SelectCollective(both_ways=both_ways).run(module, Diagnostics())
        turned = [o.axis for o in module.walk() if getattr(o, "both_ways", False)]
        assert len(turned) == (6 if both_ways else 0)
        files = emitted(compiled(print_module(module), tmp_path, "turned.meshir", device="wse2"))
        report = json.loads(files["report.json"])
        rng = np.random.default_rng(3)
        given = {
            name: (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float16)
            for name, shape in report["inputs"].items()
        }
        given["x"] = given["x"][:, :21]
        folder = tmp_path / str(both_ways)
        folder.mkdir()
        options = ("--len", "21")
        results, cycles = run_files(files, given, folder, monkeypatch, options=options)
        (result,) = report["outputs"]
        found[both_ways] = results[result], cycles, report["predicted_cycles"]
    np.testing.assert_array_equal(found[True][0], found[False][0])
    assert found[True][1] < found[False][1] and found[True][2] < found[False][2]


PROMPT = {
    "products in blocks": ([SelectCslProducts(blocks=False)], {}),
    "registers rebased": ([SelectCslProducts(rebased=False)], {}),
    "registers of functions": ([AssignCslRegisters(functions=False)], {}),
    "turns in half": ([SelectCslFunctions(narrow=False)], {}),
    "functions in blocks": ([SelectCslFunctions(blocks=False)], {}),
    "angles kept": ([SelectCslFunctions(kept=False)], {}),
    "cases in groups": ([], {"grouped": False}),
    "waits that lead to the next round": ([], {"direct": False}),
}


@pytest.mark.parametrize(
    ("sums", "length"),
    [
        pytest.param("f16", "24", marks=pytest.mark.slow),
        pytest.param("f32", "15", marks=pytest.mark.slow),
        pytest.param("f16", "15", marks=pytest.mark.slow),
        pytest.param("f32", "24", marks=pytest.mark.slow),
    ],
)
def test_each_choice_saves_cycles_of_a_prompt(sums, length, tmp_path, monkeypatch):
    """A prompt as long as there is room for, and one that leaves rows behind the blocks."""
    prompt = (sums, "prefill", ("--len", length))
    result, cycles, text = layer(tmp_path / "usual", monkeypatch, [], "wse2", *prompt)
    for name, (choices, options) in PROMPT.items():
        folder = tmp_path / name.replace(" ", "_")
        plain, most, before = layer(folder, monkeypatch, choices, "wse2", *prompt, **options)
        np.testing.assert_allclose(result, plain, 0, 8e-3)
        assert before != text and most > cycles, name


@pytest.mark.slow
def test_sharing_memory_takes_no_cycles(tmp_path, monkeypatch):
    prompt = ("f16", "prefill", ("--len", "24"))
    apart, shared = ([PlanCslMemory(share=share)] for share in ("never", "always"))
    result, cycles, text = layer(tmp_path / "apart", monkeypatch, apart, "wse2", *prompt)
    same, least, other = layer(tmp_path / "shared", monkeypatch, shared, "wse2", *prompt)
    np.testing.assert_array_equal(result, same)
    assert other != text and abs(least - cycles) <= 0.01 * cycles


@pytest.mark.parametrize("position", [0, 1, 127, 4095, 32767])
def test_sines_and_cosines_are_right_to_a_millionth(position, tmp_path, monkeypatch):
    """Of 48 frequencies of heads of 96 lanes: the first lanes are turned from (1, 0)."""
    module = tile_text(
        """\
module @angles level(tile) holds(channels_matched) {
  dims G = 1, R = 1, C = 96, F = 48
  scalars pos = 0..32767
  mesh y = 1, x = 1
  buffer %a : f32[1, 1, 96] {role = in}
  buffer %f : f32[48] {role = in}
  buffer %b : f32[1, 1, 96] {role = out}
  port @a in f32[G, R, C] : %a {lanes = [h, i, j], element = [h, i, j]}
  port @f in f32[F] : %f {lanes = [i], element = [i]}
  port @b out f32[G, R, C] : %b {lanes = [h, i, j], element = [h, i, j]}
  program @main {
    tile.rope %b, %a, %f {position = "pos", step = 1}
  }
}
""",
        "wse2",
    )
    a = np.tile(np.array([1, 0], np.float32), 48).reshape(1, 1, 96)
    f = (500000.0 ** (-np.arange(48) / 48)).astype(np.float32)
    files = emitted({"main": module}, USUAL)
    options = ("--pos", str(position))
    found, _ = run_files(files, {"a": a, "f": f}, tmp_path, monkeypatch, options=options)
    angle = position * f.astype(np.float64)
    assert np.abs(found["b"][0, 0, ::2] - np.cos(angle)).max() <= 1e-6
    assert np.abs(found["b"][0, 0, 1::2] - np.sin(angle)).max() <= 1e-6
