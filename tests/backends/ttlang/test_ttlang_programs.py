"""What is emitted, and what is refused in words."""

import ast
import json
import re
from pathlib import Path

import pytest
from ttlang_cases import TILE, drawn, llama

import meshc
from meshc.cli import main
from meshc.support.diagnostics import MeshcError

ROOT = Path(__file__).parents[3]
MODEL = """model one(M={M}, K={K}, N={N}) {{
  weights f32  accumulate f32
  param w[K, N], g[K]
  main(x[M, K]) -> [M, N] {{ return {body} }}
}}
"""


def compiled(tmp_path, body="x @ w", mesh="2x2", M=64, K=64, N=64, **flags):
    model = tmp_path / "one.mesh"
    model.write_text(MODEL.format(M=M, K=K, N=N, body=body))
    return meshc.compile(str(model), target="ttlang", mesh=mesh, **flags)


def test_a_product_is_one_operation_and_its_call(tmp_path):
    text = compiled(tmp_path).files["main.py"]
    tree = ast.parse(text)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert len(functions) == 2
    assert "def program(x, w):\n    result = empty(2, 2)\n" in text
    assert text.count("ttl.PipeNet([") == 4
    assert "if a_of_step0.is_src():" in text


def test_the_same_compile_gives_the_same_bytes(tmp_path):
    assert compiled(tmp_path).files == compiled(tmp_path).files


def test_equal_operations_are_written_once(tmp_path):
    text = compiled(tmp_path, body="silu(silu(x)) @ w").files["main.py"]
    assert text.count("ttl.math.silu(a_block)") == 1
    assert text.count("silu_op(") == 3


def test_a_block_of_weights_lies_as_the_left_side_asks(tmp_path):
    """Heads lie over columns lane by lane; what multiplies them is given in that order."""
    sizes = {"E": 64, "H": 2, "G": 1, "D": 64, "F": 64, "layers": 1}
    llama(0, "2x2", 64, **sizes).compiled(tmp_path)
    given = json.loads((tmp_path / "layouts.json").read_text())["given"]
    (wo,) = (entry for entry in given if entry["name"] == "wo")
    assert wo["rows"] == ["H", "D"]
    assert [node["rows"] for node in wo["nodes"]] == 2 * [[[0, 32, 1], [64, 96, 1]]] + 2 * [
        [[32, 64, 1], [96, 128, 1]]
    ]


@pytest.mark.parametrize(("change", "code", "words"), [
    ({"N": 48}, "ttlang-tiles", "a tile has 32"),
    ({"M": 48}, "ttlang-tiles", "a node has 24 M"),
    ({"K": 65}, "ttlang-tiles", ""),
    ({"M": 8192, "mesh": "1x1"}, "ttlang-memory", "a product of 256 rows of tiles"),
    ({"dtype": "f16"}, "bad-argument", "--dtype is f16"),
    ({"algo": ("gemm=cannon",)}, "bad-argument", "--algo is gemm=cannon"),
    ({"algo": ("all_reduce=ring",)}, "bad-argument", "--algo is all_reduce=ring"),
    ({"align": "host"}, "bad-argument", "--align is host"),
    ({"kv": "shift"}, "bad-argument", "--kv is shift"),
    ({"chunk": 64}, "bad-argument", "--chunk is 64"),
    ({"device": "wse3"}, "bad-argument", "do not run on wse3"),
    ({"device": "h100x8"}, "bad-argument", "do not run on h100x8"),
    ({"result": "roots", "body": "softmax(x) @ w", "M": 65}, "ttlang-tiles", ""),
    ({"body": "top_k(x, 2) @ w"}, "ttlang-op", "mesh.all_gather: there are no operations"),
])  # fmt: skip
def test_what_is_refused(change, code, words, tmp_path):
    with pytest.raises(MeshcError, match=code) as refusal:
        compiled(tmp_path, **change)
    assert words in str(refusal.value)
    assert all(one.code == code for one in refusal.value.diagnostics)


@pytest.mark.parametrize(("model", "words"), [
    ("qwen3-30b-a3b", "error[ttlang-op]: programs for --target ttlang do not compute this"),
    ("llama-3-8b", "error[ttlang-memory]: buffers of the operation"),
])  # fmt: skip
def test_models_that_are_refused(model, words, tmp_path, capsys):
    flags = ["--phase", "prefill", "--seq", "64", "--layers", "1", "--mesh", "2x2"]
    assert main(["compile", model, "--target", "ttlang", *flags, "-o", str(tmp_path / "o")]) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("level", "flags", "words"), [
    ("tile", {}, "is at the tile level"),
    ("mesh", {}, "nodes are one plane in natural order"),
    ("mesh", {"algo": ("gemm=summa",), "dtype": "f16"}, "compute in f32, and %x is f16"),
])  # fmt: skip
def test_given_modules_that_are_refused(level, flags, words, tmp_path):
    model = tmp_path / "one.mesh"
    model.write_text(MODEL.format(M=64, K=64, N=64, body="x @ w"))
    usual = {"mesh": "2x2", "device": "blackhole", "dtype": "f32", "compile_to": level}
    (module,) = meshc.compile(str(model), **usual | flags).modules.values()
    with pytest.raises(MeshcError, match="ttlang-op") as refusal:
        given = tmp_path / "given.meshir"
        given.write_text(meshc.print_module(module))
        meshc.compile(str(given), target="ttlang", mesh="2x2", device="blackhole")
    assert words in str(refusal.value)


def test_a_decode_step_has_one_row(tmp_path, capsys):
    command = ["compile", "examples/tiny_llama.mesh", "--target", "ttlang", "-o", str(tmp_path)]
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "error[bad-phase]" in said and "has one row, and a tile 32" in said
    assert "--phase prefill" in said


def test_the_command_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "ttlang.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^meshc (compile .*)$", page, re.M)
    assert main(command.split()) == 0
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"prefill.py", "layouts.json", "tiles.py", "run.py", "meshc.json"}


def test_nothing_runs_programs(tmp_path, capsys):
    case = drawn(0)
    model = tmp_path / "model.mesh"
    model.write_text(case.text)
    command = ["run", str(model), "--target", "ttlang", "--mesh", case.mesh, "--prompt", "a"]
    assert main(command) != 0
    assert "error[" in capsys.readouterr().err


def test_drawn_extents_are_tiles():
    assert all(len(case.tensors["x"]) % TILE == 0 for case in map(drawn, range(8)))
