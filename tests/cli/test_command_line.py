"""Commands as a person types them: output, exit codes, JSON."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import meshc
from meshc.cli import main
from meshc.cli.commands import opt
from meshc.support.diagnostics import known_codes

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TINY = ROOT / "tests" / "data" / "tiny"
TWO_PROMPTS = ("--prompt-ids", "5,17,42", "--prompt-ids", "9")
ATTENTION = str(EXAMPLES / "attention.mesh")
MATMUL = str(EXAMPLES / "matmul.mesh")

MESSAGE_KEYS = {"severity", "code", "message", "place", "notes", "help"}
IR = """module @m level(graph) {
  dims L = 3, E = 4, F = 5
  func @main(in %x: f32[L, E], weight %w: f32[F, E]) -> (f32[L, F]) {
    %t = graph.transpose %w {dims = [E, F]} : f32[E, F]
    %y = graph.matmul %x, %t {contract = [E]} : f32[L, F]
    graph.return %y
  }
}
"""


@pytest.fixture
def command(capsys, tmp_path, monkeypatch):
    """Runs a command line in an empty directory; exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        try:
            code = main([str(word) for word in words])
        except SystemExit as usage:
            code = usage.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_help_and_version(command):
    code, out, _ = command("--help")
    assert code == 0
    for name in ("compile", "run", "opt", "devices", "passes", "explain"):
        assert f"\n    {name} " in out
        assert command(name, "--help")[0] == 0
    assert command("--version")[1] == f"meshc {meshc.__version__}\n"


@pytest.mark.every_case
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("compyle",),
        ("compile",),
        ("compile", MATMUL, "--unknown"),
        ("run", "smollm2-135m"),
        ("run", "smollm2-135m", "--prompt", "a", "--prompt-ids", "1"),
        ("run", "smollm2-135m", "--prompt", "a", "--prompt", "b", "--prompt-ids", "1"),
        ("run", "smollm2-135m", "--prompt-ids", "1,x"),
        ("run", "smollm2-135m", "--prompt-ids", "-1"),
        ("compile", MATMUL, "--seq", "many"),
    ],
)
def test_usage_errors_leave_with_2(command, words):
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert "usage: meshc" in err


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("compile", "no-such-model"), "unknown-model"),
        (("compile", MATMUL, "--mesh", "3by4"), "bad-mesh"),
        (("compile", MATMUL, "--mesh", "0x4"), "bad-mesh"),
        (("compile", MATMUL, "--mesh", "99999x99999"), "bad-mesh"),
        (("compile", MATMUL, "--device", "wse9"), "unknown-device"),
        (("compile", MATMUL, "--dtype", "f64"), "bad-argument"),
        (("compile", MATMUL, "--target", "verilog"), "bad-argument"),
        (("compile", MATMUL, "--compile-to", "metal"), "bad-argument"),
        (("compile", ATTENTION, "--phase", "training"), "bad-argument"),
        (("compile", ATTENTION, "--seq", "0"), "bad-argument"),
        (("compile", ATTENTION, "--kv", "sideways"), "bad-argument"),
        (("compile", MATMUL, "--layers", "0"), "bad-argument"),
        (("compile", MATMUL, "--print-ir-after", "nothing"), "unknown-pass"),
        (("compile", MATMUL, "--device", "toy", "--mesh", "17x17"), "mesh-too-large"),
        (("compile", "llama-3-8b", "--device", "toy", "--mesh", "4x4"), "does-not-fit"),
        (("compile", "llama-3-8b", "--phase", "prefill", "--check"), "check-too-large"),
        (("run", MATMUL, "--prompt-ids", "1"), "no-tokens"),
        (("compile", ATTENTION), "no-phase"),
        (("run", ATTENTION, "--prompt-ids", "1"), "no-phase"),
        (("run", EXAMPLES / "tiny_llama.mesh", "--prompt-ids", "1"), "weights-not-found"),
        (("run", TINY / "llama-3h1", "--prompt-ids", "1", "--max-tokens", "0"), "bad-argument"),
        (("run", TINY / "llama-3h1", "--prompt-ids", "1", "--backend", "abacus"), "bad-argument"),
        (("run", TINY / "llama-3h1", "--prompt-ids", "1000000"), "run-refused"),
        (("run", TINY / "llama-3h1", *TWO_PROMPTS, "--batch", "1"), "bad-argument"),
        (("run", TINY / "llama-3h1", *TWO_PROMPTS, "--batch", "257"), "bad-argument"),
        (("compile", TINY / "llama-3h1", "--target", "csl", "--batch", "65"), "bad-argument"),
        (("compile", EXAMPLES / "mlp.mesh", "--batch", "2"), "unsupported-batch"),
        (("opt", "missing.meshir"), "unreadable"),
        (("passes", "canonicalise"), "unknown-pass"),
        (("explain", "no-such-code"), "unknown-code"),
        (("devices", "wse9"), "unknown-device"),
    ],
)
def test_mistakes_leave_with_1_and_a_code(command, words, code):
    status, out, err = command(*words)
    assert (status, out) == (1, "")
    assert f"error[{code}]: " in err
    assert "Traceback" not in err
    assert code in known_codes()


def test_compile_without_output_prints_a_summary(command):
    tiny = EXAMPLES / "tiny_llama.mesh"
    code, out, err = command("compile", tiny, "--mesh", "3x2", "--seq", "8")
    assert (code, err) == (0, "")
    assert out.startswith("tiny_llama on ideal, mesh 3x2\n  prefill: tile level, ")
    assert "\n  decode: tile level, " in out


def test_compile_json(command):
    words = ("compile", MATMUL, "--mesh", "2x2", "-o", "out", "--json")
    code, out, err = command(*words)
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert set(found) == {"files", "seconds", "passes", "remarks", "warnings"}
    assert "main.py" in found["files"]
    assert sorted(found["files"]) == found["files"]
    assert all(Path("out", name).is_file() for name in found["files"])
    assert [p["pass"] for p in found["passes"]][:2] == ["canonicalize", "eliminate-transpose"]
    assert set(found["remarks"][0]) == MESSAGE_KEYS


def test_errors_as_json(command):
    code, out, err = command("compile", "no-such-model", "--json")
    assert code == 1
    assert json.loads(out)["errors"][0]["code"] == "unknown-model"
    assert "error[unknown-model]" in err


def test_json_of_errors_has_place_notes_and_help(command):
    Path("wrong.meshir").write_text(IR.replace("graph.matmul %x, %t", "graph.matmul %x, %u"))
    code, out, err = command("opt", "wrong.meshir", "--json")
    assert code == 1
    (error,) = json.loads(out)["errors"]
    assert set(error) == MESSAGE_KEYS
    assert (error["severity"], error["place"]) == ("error", "wrong.meshir:5:27")
    assert f"error[{error['code']}]: {error['message']}" in err
    _, out, err = command("passes", "partitoin", "--json")
    (error,) = json.loads(out)["errors"]
    assert error["place"] is None and error["help"] == "did you mean 'partition'?"
    assert f"  note: {error['notes'][0]}\n  help: {error['help']}\n" in err


def test_opt_prints_json(command):
    Path("m.meshir").write_text(IR)
    words = ("opt", "m.meshir", "--passes", "canonicalize,eliminate-transpose", "--json")
    found = json.loads(command(*words)[1])
    assert list(found) == ["module", "files", "seconds", "passes", "remarks", "warnings"]
    assert found["module"] == command(*words[:-1])[1]
    assert [p["pass"] for p in found["passes"]] == ["canonicalize", "eliminate-transpose"]
    written = json.loads(command(*words, "-o", "n.meshir")[1])
    assert (written["module"], written["files"]) == (None, ["n.meshir"])
    assert Path("n.meshir").read_text() == found["module"]


def test_compile_to_prints_ir(command):
    for level in ("graph", "mesh", "tile"):
        mesh = () if level == "graph" else ("--mesh", "2x2")
        code, out, _ = command("compile", MATMUL, *mesh, "--compile-to", level, "-o", "-")
        assert code == 0
        assert meshc.parse(out).level == level


def test_compile_refuses_a_foreign_directory(command):
    Path("out").mkdir()
    Path("out/mine").write_text("x")
    code, _, err = command("compile", MATMUL, "-o", "out")
    assert code == 1
    assert "error[output-exists]" in err
    assert command("compile", MATMUL, "--mesh", "2x2", "-o", "out", "--force")[0] == 0
    assert Path("out/mine").read_text() == "x"


def test_compile_again_keeps_your_files_and_warns_of_edited_ones(command):
    again = ("compile", MATMUL, "--mesh", "2x2", "-o", "out")
    assert command(*again)[0] == 0
    Path("out/data").mkdir()
    Path("out/data/x.npy").write_bytes(b"x")
    assert command(*again)[0] == 0
    Path("out/main.py").write_text("edited")
    code, out, err = command(*again)
    assert (code, out) == (1, "")
    assert "error[output-edited]" in err and "  note: main.py\n" in err
    code, _, err = command(*again, "--force")
    assert code == 0
    assert "warning[output-edited]: 'out/main.py' is now 'out/main.py.orig'" in err
    assert Path("out/main.py.orig").read_text() == "edited"
    assert Path("out/data/x.npy").read_bytes() == b"x"


def test_looking_at_passes(command):
    flags = ("--time-passes", "--stats", "--remarks", "--check")
    code, _, err = command("compile", MATMUL, "--mesh", "2x2", *flags)
    assert code == 0
    assert "\ntotal " in err
    assert "main eliminate-transpose: graph: 2 ops" in err
    assert "remark[routes]" in err
    assert "checked: 13 passes compute what they were given" in err


def test_print_ir_after(command):
    code, _, err = command("compile", MATMUL, "--mesh", "2x2", "--print-ir-after-all")
    assert (code, err.count("\n# after ")) == (0, 12)
    code, _, err = command(
        "compile", MATMUL, "--mesh", "2x2", "--print-ir-after", "partition", "--print-ir-after",
        "plan-memory",
    )  # fmt: skip
    heads = [line for line in err.splitlines() if line.startswith("# after ")]
    assert heads == ["# after partition{grid=2x2} (main)", "# after plan-memory (main)"]


def test_a_program_of_arrays_runs_by_itself(command):
    shape = {"M": 64, "K": 96, "N": 48}
    random = np.random.default_rng(0)
    x = random.standard_normal((shape["M"], shape["K"]), np.float32)
    w = random.standard_normal((shape["K"], shape["N"]), np.float32)
    Path("weights").mkdir()
    np.save("weights/w.npy", w)
    np.save("x.npy", x)
    code, _, err = command("compile", MATMUL, "--mesh", "3x2", "--weights", "weights", "-o", "out")
    assert (code, err) == (0, "")
    words = [sys.executable, "out/main.py", "--input", "x=x.npy", "--output", "y.npy"]
    subprocess.run(words, check=True, capture_output=True)
    np.testing.assert_allclose(np.load("y.npy"), x @ w, rtol=1e-4, atol=1e-4)


def test_missing_and_damaged_weights(command):
    Path("weights").mkdir()
    code, _, err = command("compile", MATMUL, "--weights", "weights", "-o", "out")
    assert (code, Path("out").exists()) == (1, False)
    assert "error[weights-missing-tensor]: there are no weights for 'w'" in err
    for damaged in (b"", b"\x93NUMPY\x01\x00", b"x" * 100):
        Path("weights/w.npy").write_bytes(damaged)
        code, _, err = command("compile", MATMUL, "--weights", "weights", "-o", "out")
        assert (code, Path("out").exists()) == (1, False)
        assert "error[bad-npy]" in err
    np.save("weights/w.npy", np.array([{}]), allow_pickle=True)
    assert "error[bad-npy]" in command("compile", MATMUL, "--weights", "weights", "-o", "out")[2]


def test_opt_prints_canonical_text(command):
    Path("m.meshir").write_text(IR.replace("  ", " ").replace("\n\n", "\n"))
    code, out, err = command("opt", "m.meshir")
    rows = "  rows dim = L, capacity = L\n  func"  # a graph without this section gets it
    assert (code, out, err) == (0, IR.replace("  func", rows), "")


def test_opt_runs_passes_from_stdin_to_a_file(command, monkeypatch):
    monkeypatch.setattr(opt.sys, "stdin", io.TextIOWrapper(io.BytesIO(IR.encode())))
    code, out, err = command("opt", "-", "--passes", "eliminate-transpose", "-o", "n.meshir",
                             "--remarks")  # fmt: skip
    assert (code, out) == (0, "")
    assert "remark[transpose-eliminated]" in err
    assert meshc.load("n.meshir").holds == {"transpose_free"}


def test_opt_checks_what_a_text_claims(command):
    Path("m.meshir").write_text(IR.replace("level(graph)", "level(graph) holds(transpose_free)"))
    code, _, err = command("opt", "m.meshir")
    assert code == 1
    assert "error[transposes-left]" in err


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"module", b"{" * 10_000, bytes(1000)])
def test_opt_refuses_what_is_no_module(command, data):
    Path("m.meshir").write_bytes(data)
    code, out, err = command("opt", "m.meshir")
    assert (code, out) == (1, "")
    assert "error[" in err
    assert "Traceback" not in err


def test_devices(command):
    code, out, _ = command("devices")
    assert code == 0
    names = [line.split()[0] for line in out.splitlines()]
    assert {"ideal", "toy", "wse2", "wse3", "h100", "h200", "h100x8"} <= set(names)
    assert set(json.loads(command("devices", "--json")[1])["devices"]) == set(names)
    assert json.loads(command("devices", "toy", "--json")[1])["cores_x"] == 16
    assert "colors" in command("devices", "toy")[1]


def test_passes(command):
    code, out, _ = command("passes")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [p.NAME for p in meshc.PASSES]
    for cls in meshc.PASSES:
        assert "levels" in command("passes", cls.NAME)[1]
    found = json.loads(command("passes", "--json")[1])["passes"]
    assert found[2]["requires"] == ["transpose_free"]
    assert json.loads(command("passes", "partition", "--json")[1])["options"] == {
        "grid": "",
        "gemm": "auto",
        "align": "",
        "result": "everywhere",
        "kv": "auto",
        "forms": [],
    }


def test_explain(command):
    code, out, _ = command("explain")
    assert code == 0
    assert len(out.splitlines()) == len(known_codes())
    assert "an all-to-all" in command("explain", "transpose-kept")[1]
    assert command("explain", "error[transpose-kept]")[0] == 0
    assert json.loads(command("explain", "bad-mesh", "--json")[1])["code"] == "bad-mesh"


def test_internal_errors_leave_with_3_and_a_reproducer(command, monkeypatch):
    def broken(self, module, report):
        raise RuntimeError("a fault")

    Path("m.meshir").write_text(IR)
    with monkeypatch.context() as patch:
        patch.setattr(meshc.EliminateTranspose, "run", broken)
        code, out, err = command("opt", "m.meshir", "--passes", "canonicalize,eliminate-transpose")
    assert (code, out) == (3, "")
    assert "internal error: eliminate-transpose: RuntimeError: a fault" in err
    assert "Traceback" not in err
    text = Path("meshc-reproducer.meshir").read_text()
    assert "--passes 'eliminate-transpose'" in text
    words = ("opt", "meshc-reproducer.meshir", "--passes", "eliminate-transpose")
    assert command(*words)[0] == 0


def test_a_fault_outside_the_passes_leaves_with_3(command, monkeypatch):
    def broken(text, report):
        raise RuntimeError("a fault")

    monkeypatch.setattr("meshc.cli.commands.compile.load_any", broken)
    code, _, err = command("compile", MATMUL)
    assert code == 3
    assert "internal error: RuntimeError: a fault" in err
    assert "Traceback" not in err
    assert f"# meshc compile {MATMUL}" in Path("meshc-reproducer.meshir").read_text()


def test_no_progress_where_stderr_is_no_terminal(command):
    assert command("compile", MATMUL, "--mesh", "2x2")[2] == ""


def test_passes_explains_what_an_op_declares(command):
    code, out, _ = command("passes", "tile.rope")
    assert code == 0
    assert out.startswith("tile.rope out b[*heads, rows, 2*pairs], a[*heads, rows, 2*pairs], freq")
    assert "{position: affine, step: int}" in out
    _, out, _ = command("passes", "mesh.append", "--json")
    found = json.loads(out)
    assert found["form"].endswith("{dim, rows, policy: shift | concat | cyclic}")
