"""One program for both phases in emitted CSL: its logits are those of two programs to the last bit,
and those of the interpreter within the bound of rounding."""

import json
from pathlib import Path

import numpy as np
import pytest
from csl_prompts import MODEL, Conversation
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshc.cli import main
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics, MeshcError

SIZES = {"E": 12, "H": 4, "G": 2, "D": 4, "F": 10, "layers": 2}
FORMS = ("copied", "moved")
EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama-3h1"


def written(folder, **sizes):
    """A file with a model of these sizes."""
    path = folder / "drawn.mesh"
    path.write_text(MODEL.format(**SIZES | {"dtype": "f32"} | sizes))
    return path


def check(folder, form, lengths, sizes, **options):
    """One program gives the logits of the interpreter, behind prompts that follow each other."""
    path = written(folder, **sizes)
    talk = Conversation(path, folder, phases=form, seq=9, **options)
    (report,) = talk.reports
    assert report["phases"]["form"] == form
    assert report["memory"]["left"] == report["phases"][form]["left"] >= 0
    for length, count in lengths:
        found = talk.compare(length, count)
        assert found.agrees, (length, count, found)
    return talk, report


def test_weights_move_between_the_phases(tmp_path):
    """Behind a prompt, behind a single token, and back for the next prompt; cycles of the
    transition, in which all weights move, are predicted."""
    lengths, shifted = ((5, 2), (1, 2), (3, 1)), ("gemm=cyclic_shift",)
    sizes = {"layers": 1}
    talk, report = check(tmp_path, "moved", lengths, sizes, mesh="2x2", device="wse3", algo=shifted)
    predicted = report["predicted_cycles"]
    assert [*predicted] == ["prefill", "decode", "transition"]
    assert abs(predicted["transition"] / talk.model.moving - 1) < 0.1
    told = report["phases"]["moved"]
    assert told["moved_bytes"] > 0 and told["copied_bytes"] == 0


@pytest.mark.parametrize("mesh", ["2x1", pytest.param("3x1", marks=pytest.mark.slow)])
def test_a_row_of_cores_without_rotations(mesh, tmp_path):
    """On one row only rotations read the position of a step, since caches are counted there."""
    path = written(tmp_path)
    plain = "gqa_attention(h @ wq, h @ wk, h @ wv, 0, 1) @ wo"
    text = path.read_text().replace(", theta=100.0", "")
    rotated = "x = llama_attention(x, attn_norm, wq, wk, wv, wo, eps, theta)"
    path.write_text(
        text.replace(rotated, f"h = rms_norm(x, attn_norm, eps)\n      x = x + {plain}")
    )
    talk = Conversation(path, tmp_path, phases="auto", seq=9, mesh=mesh, device="wse3")
    (report,) = talk.reports
    assert report["phases"]["form"] in FORMS
    for length, count in ((5, 2), (1, 2), (9, 1)):
        found = talk.compare(length, count)
        assert found.agrees, (length, count, found)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "options",
    [
        {"mesh": "3x3", "device": "wse2", "dtype": "f16"},
        {"mesh": "2x2", "device": "wse3", "chunk": 3},
        {"mesh": "3x3", "device": "wse3", "kv": "shift"},
        {"mesh": "3x3", "device": "wse3", "algo": ("gemm=cannon",)},
        {"mesh": "3x3", "device": "wse3", "algo": ("gemm=allgather",)},
        {"mesh": "r=2,y=2,x=2", "device": "wse3"},
        {"mesh": "r=2,y=2,x=1", "device": "wse3"},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_forms(form, options, tmp_path):
    check(tmp_path, form, ((5, 2), (9, 1), (1, 3), (2, 2)), {}, **options)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_segments_of_heads(form, tmp_path):
    """Rings, chains and multicasts of rows, columns and segments take more queues than there are,
    unless chains are parts of rings."""
    sizes = {"E": 24, "F": 20, "dtype": "f16"}
    options = {"mesh": "4x4", "device": "wse3"}
    with pytest.raises(MeshcError) as refusal:
        check(tmp_path, form, (), sizes, **options)
    (said,) = refusal.value.diagnostics
    assert said.code == "one-program"
    assert "8 input queues" in said.notes[0] and "gemm=cannon" in said.notes[0]
    check(tmp_path, form, ((5, 2), (1, 2), (9, 1)), sizes, algo=("gemm=cannon",), **options)


SIZE = st.integers(1, 4)


@st.composite
def models(draw):
    """Sizes of a model, and how it is compiled."""
    groups = draw(st.integers(1, 3))
    sizes = {
        "E": draw(st.integers(2, 14)),
        "H": groups * draw(st.integers(1, 3)),
        "G": groups,
        "D": 2 * draw(st.integers(1, 3)),
        "F": draw(st.integers(2, 14)),
        "layers": draw(st.integers(1, 3)),
        "dtype": draw(st.sampled_from(["f32", "f16"])),
    }
    side = draw(SIZE)
    options = {
        "mesh": f"{side}x{draw(st.one_of(st.just(side), SIZE))}",
        "device": draw(st.sampled_from(["wse2", "wse3"])),
        "seq": draw(st.integers(2, 9)),
        "kv": draw(st.sampled_from(["auto", "shift", "cyclic"])),
        "chunk": draw(st.sampled_from([None, None, 4])),
    }
    return sizes, options


def check_any_model(folder, drawn, form, portions):
    """A drawn model in one program, beside the same in two."""
    sizes, options = drawn
    path = written(folder, **sizes)
    try:
        one = Conversation(path, folder / "one", phases=form, **options)
    except (MeshcError, AssertionError) as refusal:
        assert not isinstance(refusal, MeshcError) or {d.code for d in refusal.diagnostics} <= {
            "one-program",
            "does-not-fit",
        }, refusal
        assume(False)
    two = Conversation(path, folder / "two", **options)
    for portion in portions:
        length = 1 + portion * (one.room - 1) // 10
        count = 1 + (one.room - length) // 2
        found, wanted = one.continued(length, count), two.continued(length, count)
        assert found[:2] == wanted[:2]
        np.testing.assert_array_equal(found[2], wanted[2])
        assert one.compare(length, count).agrees


PORTIONS = st.lists(st.integers(0, 10), min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[*HealthCheck])
@given(models(), st.sampled_from(FORMS), PORTIONS)
def test_many_models(tmp_path_factory, drawn, form, portions):
    check_any_model(tmp_path_factory.mktemp("drawn"), drawn, form, portions)


@pytest.mark.slow
@pytest.mark.models
def test_prompts_of_one_command_follow_each_other(capfd):
    """A step of one program takes one request, so several prompts are no batch, unless a flag asks
    for one, which is refused."""
    words = ["run", str(Path(__file__).parents[1] / "data" / "tiny" / "llama-3h1")]
    words += ["--prompt-ids", "5,17", "--prompt-ids", "9", "--max-tokens", "2", "--seq", "4"]
    words += ["--ignore-eos", "--mesh"]
    assert main([*words, "1x1", "--dtype", "f32"]) == 0
    wanted = capfd.readouterr().out
    words += ["1x2", "--target", "csl", "--dtype", "f16", "--phases", "copied"]
    assert main(words) == 0
    assert capfd.readouterr().out == wanted
    assert main([*words, "--batch", "2"]) == 1
    assert "steps take several requests, and one program takes one" in capfd.readouterr().err


@pytest.mark.slow
def test_auto_takes_what_fits(tmp_path):
    """Copies where there is room, moves where there is not, and otherwise a program each, whose
    reports say what was short."""
    large = {"E": 24, "F": 80}
    for mesh, sizes, seq, form in (
        ("2x2", {}, 4, "copied"),
        ("2x2", large, 4, "moved"),
        ("2x3", large, 40, "two"),
    ):
        path = written(tmp_path, **sizes)
        request = CompileRequest(target="csl", mesh=mesh, seq=seq, phases="auto")
        compiled = compile_loaded(load_any(str(path), Diagnostics()), request)
        reports = [n for n in compiled.files if n.endswith("report.json")]
        told = [json.loads(compiled.files[name])["phases"] for name in reports]
        assert [one["form"] for one in told] == [form] * len(reports)
        assert len(reports) == (2 if form == "two" else 1)
        (remark,) = (m.message for m in compiled.remarks if m.code == "one-program")
        assert ("one program" in remark) == (form != "two")


def test_prompts_without_room_are_why_no_program_holds_both_phases(capfd):
    words = ["compile", str(TINY), "--target", "csl", "--mesh", "1x1", "--seq", "64"]
    assert main([*words, "--phases", "one"]) == 1
    said = capfd.readouterr().err
    assert "error[one-program]: no program holds both phases" in said
    assert "not even one layer fits (does-not-fit)" in said and "or say more cores (--mesh)" in said


def test_what_has_no_phases_is_refused(capfd):
    """A product has no prompt and no step, and other targets have no such choice."""
    with pytest.raises(MeshcError, match="--phases is one, but programs for --target python"):
        CompileRequest(phases="one").check()
    words = ["estimate", str(EXAMPLES / "matmul.mesh"), "--phases", "--mesh", "2x2"]
    assert main(words) == 1
    assert "error[one-program]" in capfd.readouterr().err


@pytest.mark.slow
def test_estimate_says_which_form_is_taken(capfd):
    words = ["estimate", str(EXAMPLES / "tiny_llama.mesh"), "--phases", "--mesh", "4x4", "--device"]
    words += ["wse3", "--seq", "32", "--dtype", "f16"]
    assert main(words) == 0
    page = (Path(__file__).parents[2] / "docs" / "csl.md").read_text(encoding="utf-8")
    assert capfd.readouterr().out in page
    assert main([*words, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    forms = {form["name"]: form for form in found["forms"]}
    assert found["taken"] == "moved" and "short" in found["why"]
    assert forms["copied"]["left"] < 0 <= forms["moved"]["left"]
    # Each element of weights and, twice, of caches is a word.
    assert found["host_words"] == forms["two"]["between"]
