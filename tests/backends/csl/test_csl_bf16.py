"""Programs in bf16: the device's operations on 16-bit floats, in the format that is chosen."""

import json
import math

import numpy as np
import pytest
from csl_runs import emit, run_files, tile_text
from test_csl_codes import tile_program

from meshc.backends.csl.kernels.shared_code import literal
from meshc.backends.csl.tree.printed import spelled
from meshc.ir.types import DType
from meshc.support.diagnostics import MeshcError

ROWS, LANES = 4, 96


def functions(statement, source="bf16"):
    """A tile module of one core that computes a function of ``ROWS`` rows."""
    return f"""\
module @functions level(tile) holds(channels_matched) {{
  dims R = {ROWS}, C = {LANES}
  mesh y = 1, x = 1
  buffer %a : {source}[{ROWS}, {LANES}] {{role = in}}
  buffer %most : {source}[{ROWS}] {{role = in}}
  buffer %b : bf16[{ROWS}, {LANES}] {{role = out}}
  port @a in {source}[R, C] : %a {{lanes = [i, j], element = [i, j]}}
  port @most in {source}[R] : %most {{lanes = [i], element = [i]}}
  port @b out bf16[R, C] : %b {{lanes = [i, j], element = [i, j]}}
  program @main {{
    {statement}
  }}
}}
"""


def in_bf16(numbers):
    """The nearest bf16 numbers, ties to even, without NumPy's bits: 8 digits of a mantissa."""
    fraction, exponent = np.frexp(np.asarray(numbers, np.float64))
    return np.ldexp(np.rint(fraction * 256), exponent - 8)


def exact_silu(x, most):
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def exact_gelu(x, most):
    return x * np.vectorize(math.erfc)(-x / np.sqrt(2)) / 2


def exact_exp(x, most):
    with np.errstate(over="ignore"):
        return np.exp(x - most[:, None])


@pytest.mark.parametrize(
    ("statement", "function", "units"),
    [
        ("tile.exp_sub %b, %a, %most", exact_exp, 0.55),
        ("tile.silu %b, %a", exact_silu, 0.6),
        ("tile.gelu %b, %a {form = erf}", exact_gelu, 0.55),
    ],
    ids=["exp", "silu", "gelu"],
)
def test_functions_miss_less_than_what_bf16_resolves(
    statement, function, units, tmp_path, monkeypatch
):
    """Also where f16 would be zero or infinite; what is left of SiLU and GELU below 3e-8 is not
    told from it. Half a unit is the rounding of the result."""
    a = in_bf16(np.linspace(-95, 85, ROWS * LANES).reshape(ROWS, LANES)).astype(np.float32)
    most = np.array([-3, 0, 1.5, 2], np.float32)
    files = emit({"main": tile_text(functions(statement), "wse3")})
    assert "math." not in files["main.csl"].replace("<math>", "")
    found, _ = run_files(files, {"a": a, "most": most}, tmp_path, monkeypatch)
    exact = function(a.astype(np.float64), most.astype(np.float64))
    unit = 2.0 ** (np.frexp(exact)[1] - 8)
    small = 0 if "exp" in statement else 3e-8
    normal = np.abs(exact) >= 2.0**-126
    apart = np.abs(found["b"] - exact)[normal]
    assert (apart <= np.maximum(units * unit[normal], small)).all()
    assert (np.abs(found["b"])[~normal] <= max(small, 2.0**-125)).all()


def test_infinite_elements_have_the_exponential_of_infinities(tmp_path, monkeypatch):
    """Slots that nothing fills yet are minus infinity, and have no weight."""
    a = np.resize(np.array([0, -np.inf, np.inf, -1e38], np.float32), (ROWS, LANES))
    files = emit({"main": tile_text(functions("tile.exp_sub %b, %a, %most"), "wse2")})
    tensors = {"a": a, "most": np.zeros(ROWS, np.float32)}
    found, _ = run_files(files, tensors, tmp_path, monkeypatch)
    assert np.array_equal(found["b"][0, :4], [1, 0, np.inf, 0])


def test_the_host_packs_and_unpacks_bf16(tmp_path, monkeypatch):
    """Copies of numbers between two of bf16, infinities, what is too large and no number; files
    hold float32."""
    files = emit({"main": tile_text(functions("tile.copy %b, %a"), "wse3")})
    assert "--fp16-format=bf16 " in files["commands_wse3.sh"]
    given = [1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, -np.inf, np.nan, -0.0, 2.0**-140, 65520.0, 1 / 3]
    a = np.resize(np.array(given, np.float32), (ROWS, LANES))
    tensors = {"a": a, "most": np.zeros(ROWS, np.float32)}
    found, _ = run_files(files, tensors, tmp_path, monkeypatch)
    wanted = [1, 1 + 2**-6, np.inf, -np.inf, np.nan, -0.0, 0, 65536.0, 0.333984375]
    first = found["b"][0, : len(wanted)]
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first[:6], wanted[:6])
    assert np.signbit(first[5]) and first[6] in (2.0**-133, 0)
    np.testing.assert_array_equal(first[7:], wanted[7:])


def test_constants_beyond_bf16_are_infinities():
    """bf16 has the largest numbers of f32, but for what rounds up from them."""
    assert spelled(literal(-1e30, DType.BF16)) == "-1e+30"
    assert spelled(literal(3.4e38, DType.BF16)) == "@bitcast(bf16, @as(u16, 0x7f80))"
    assert spelled(literal(-math.inf, DType.BF16)) == "@bitcast(bf16, @as(u16, 0xff80))"
    assert spelled(literal(-math.inf, DType.F16)) == "@bitcast(f16, @as(u16, 0xfc00))"


def test_a_program_has_one_format_of_16_bit_floats():
    text = tile_program("    tile.copy %h, %a\n", "  buffer %h : f16[4]\n", dtype="bf16")
    with pytest.raises(MeshcError, match="not both f16 and bf16") as caught:
        emit({"main": tile_text(text, "wse3")})
    assert {one.code for one in caught.value.diagnostics} == {"csl-dtype"}


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_cycles_are_predicted(arch, tmp_path, monkeypatch):
    """Of a norm, exponentials and products into f32, within 10 %."""
    text = functions("tile.exp_sub %b, %a, %most").replace(
        "  program", f"  buffer %c : f32[{ROWS}, {ROWS}]\n  program"
    )
    facts = "{accumulate = false, transposed = false}"
    more = f"    tile.gemm %c, %a, %b as [{LANES}, {ROWS}] {facts}\n"
    text = text.replace("%most\n", f"%most\n{more}")
    files = emit({"main": tile_text(text, arch)})
    tensors = {"a": np.ones((ROWS, LANES), np.float32), "most": np.zeros(ROWS, np.float32)}
    _, cycles = run_files(files, tensors, tmp_path, monkeypatch)
    predicted = json.loads(files["report.json"])["predicted_cycles"]
    assert predicted == pytest.approx(cycles, rel=0.1)
