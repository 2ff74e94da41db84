"""No option of a compile is passed over in silence: it changes what comes, or is refused."""

from pathlib import Path

import pytest

import meshc
from meshc.backends.request import flag_of
from meshc.backends.target import usual_target
from meshc.backends.target_options import OWN as RECORDS
from meshc.cli import main
from meshc.driver import CompileRequest

EXAMPLES = Path(__file__).parents[2] / "examples"
LLAMA, MLP = EXAMPLES / "tiny_llama.mesh", EXAMPLES / "mlp.mesh"
OTHERS = {
    "mesh": "2x1", "kv": "concat", "algo": ("gemm=summa",), "align": "device", "result": "roots",
    "choose": "cores", "portable": True, "phases": "one", "cluster": 2, "dataflow": "split_head",
    "page": 1, "gpus": 2, "collectives": "peers", "overlap": "auto", "persistent": True,
    "cache_tokens": 16, "drafts": 2, "nodes": 2, "kv_layout": "nhd", "kv_dtype": "fp8_e4m3",
    "form": ("q=gemv_y",), "cut": "all", "batch_tokens": 8,
}  # fmt: skip
"""Of each option of a target another value than the usual one."""


def refused(**options):
    """What is said of a compile of ``tiny_llama.mesh``."""
    model = options.pop("model", LLAMA)
    with pytest.raises(meshc.MeshcError) as caught:
        meshc.compile(model, seq=8, **options)
    return str(caught.value)


def test_all_options_have_another_value():
    assert set(OTHERS) == {name for record in RECORDS.values() for name in record.names()}


@pytest.mark.parametrize("target", RECORDS)
def test_options_of_other_targets_are_refused_by_name(target):
    foreign = OTHERS.keys() - RECORDS[target].names()
    assert foreign
    for name in foreign:
        with pytest.raises(meshc.MeshcError) as caught:
            CompileRequest(target=target, **{name: OTHERS[name]}).check()
        others = [other for other in RECORDS if name in RECORDS[other].names()]
        words = f"but programs for --target {target} do not take it"
        (one,) = [one for one in caught.value.diagnostics if words in one.message]
        assert one.message.startswith(f"{flag_of(name)} is ")
        assert one.help == f"those for --target {' and '.join(others)} do"


@pytest.mark.parametrize("name", ["mesh", "kv", "algo", "form", "align", "result"])
@pytest.mark.parametrize("target", ["python", "csl"])
def test_a_graph_lies_on_no_cores(target, name):
    said = refused(target=target, compile_to="graph", **{name: OTHERS[name]})
    assert f"{flag_of(name)} is" in said and "graph level lies on no cores yet" in said


@pytest.mark.parametrize("target", ["python", "cuda"])
def test_no_weight_of_a_graph_stays_quantised(target):
    said = refused(target=target, compile_to="graph", keep_quantised=("all=q8_0",))
    assert "--keep-quantised is given" in said


def test_one_gpu_has_no_collectives():
    assert "--collectives is peers, but one GPU has none" in refused(
        target="cuda", collectives="peers"
    )


def test_steps_of_gpus_alone_come_without_what_reads_prompts():
    made = meshc.compile(LLAMA, target="cuda", phase="decode", seq=64)
    assert "prompt.cu" not in made.files and not made.prompts
    both = meshc.compile(LLAMA, target="cuda", seq=64)
    assert "prompt.cu" in both.files and both.files["step.cu"] == made.files["step.cu"]


@pytest.mark.parametrize("target", ["csl", "cuda"])
def test_steps_alone_read_no_chunks(target):
    assert "--chunk is 16, but steps of decoding" in refused(
        target=target, phase="decode", chunk=16
    )


def test_a_model_without_phases_has_none_of_them():
    assert "'mlp' has no phase 'decode'" in refused(model=MLP, phase="decode")


@pytest.mark.parametrize(
    ("device", "target"),
    [("wse3", "csl"), ("h200", "cuda"), ("ideal", "python"), ("h100x8", "python")],
)
def test_a_device_says_which_target_is_meant(device, target):
    assert usual_target(device) == target and usual_target(device, "tile") == "python"


def test_the_target_that_is_meant_is_compiled_for():
    asked = {"device": "wse3", "mesh": "4x4", "seq": 8, "phase": "decode"}
    made = meshc.compile(LLAMA, **asked)
    assert "report.json" in made.files
    assert made.files == meshc.compile(LLAMA, target="csl", **asked).files


def test_a_device_says_nothing_of_a_level(capsys):
    words = ["compile", str(LLAMA), "--device", "wse3", "--compile-to", "graph", "--batch", "100"]
    assert main(words) == 0  # CSL takes up to 64
    assert main(words[:4] + words[6:]) == 1
    assert "--batch is 100, not 1 to 64" in capsys.readouterr().err
