"""``meshc estimate MODEL``: tables and JSON, and what strangers type."""

import json
from pathlib import Path

import pytest
from strangers import ends_in_words

from meshc.cli import main
from meshc.cli.plan_objects import PROVENANCE, unexplained
from meshc.devices import KINDS, device, device_names
from meshc.frontend.checkpoints import catalogue_names

TINY = str(Path(__file__).parents[1] / "data" / "tiny" / "llama-9h3-tied")
MLP = "examples/mlp.mesh"
ON_A_WAFER = ["--device", "wse2", "--mesh", "4x4", "--seq", "32"]


def told(capsys, *arguments):
    assert main(["estimate", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(ON_A_WAFER, marks=pytest.mark.slow),
        ["--device", "h200", "--seq", "64"],
        ["--device", "h100x4", "--seq", "64"],
    ],
)
def test_every_number_has_provenance(capsys, where):
    model = "smollm2-135m" if "h100x4" in where else TINY
    found = told(capsys, model, *where)
    assert list(unexplained(found)) == [] and found["provenance"] == PROVENANCE
    (one,) = found["plans"]
    for phase in one["phases"]:
        if phase["predicted_by"] is None:
            assert phase["not_predicted"]
            continue
        assert phase["predicted_by"] in found["models"]
        spent = phase["mechanisms"]
        assert sum(spent.values()) == pytest.approx(phase["total"])
        assert sum(part["total"] for part in phase["parts"]) == pytest.approx(phase["total"])
        assert phase["inputs"] and {one["kind"] for one in phase["inputs"]} <= {*KINDS}
        assert all(one["source"] for one in phase["inputs"])


def test_a_number_without_provenance_is_noticed():
    assert list(unexplained({"plans": [{"memory": {"left": 1}, "secret": [2.5, "text"]}]})) == [
        ("plans", "secret")
    ]


def test_the_table_of_one_model(capsys):
    assert main(["estimate", TINY, *ON_A_WAFER]) == 0
    out = capsys.readouterr().out
    heads, prefill, decode = (line.split() for line in out.splitlines()[:3])
    assert heads[:4] == ["model", "device", "phase", "on"]
    assert prefill[2:5] == ["prefill", "4x4", "yes"] and decode[2:5] == ["decode", "4x4", "yes"]
    assert "decode, what takes most" in out and "colors at the busiest router" in out
    assert "search: costs by which passes choose" in out
    assert "calibrated: route_cycles" in out and "from prefill to decode" in out


def test_models_devices_and_meshes_stand_side_by_side(capsys):
    plain = [TINY, "smollm2-135m", "--device", "h200", "--device", "h100x4", "--phase", "decode"]
    assert main(["estimate", *plain, "--seq", "64"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in out[1:5]] == ["h200", "h100x4"] * 2
    assert "what takes most" not in "".join(out)
    mixed = ["--device", "wse2", "--device", "h200", "--mesh", "2x2", "--mesh", "4x4"]
    found = told(capsys, TINY, *mixed, "--gpus", "1", "--phase", "prefill", "--seq", "16")
    assert [one["device"] for one in found["plans"]] == ["wse2", "wse2", "h200"]
    assert [one["phases"][0]["mesh"] for one in found["plans"]] == ["2x2", "4x4", None]
    assert [one["gpus"] for one in found["plans"]] == [None, None, 1]


def test_what_does_not_fit_says_by_how_much_and_what_would(capsys):
    assert main(["estimate", "llama-3.3-70b", "--device", "h200", "--phase", "decode"]) == 0
    out = capsys.readouterr().out
    assert "decode does not fit" in out and "bytes short" in out and "--gpus 2 fits" in out


STRANGERS = [
    [],
    ["llama-9"],
    ["Llama-3-8B-instruct"],
    ["/no/such/model.gguf"],
    ["pyproject.toml"],
    [MLP],
    ["examples/mlp.meshir"],
    ["8", "8", "8"],
    [TINY, "nonsense"],
    [TINY, "--device", "wse9"],
    [TINY, "--device", "h200x9"],
    [TINY, "--device", "/no/such/device.toml"],
    [TINY, "--device", "wse2", "--mesh", "0x4"],
    [TINY, "--device", "wse2", "--mesh", "best"],
    [TINY, "--device", "wse2", "--mesh", "4"],
    [TINY, "--device", "wse2", "--mesh", "x=4,z=4"],
    [TINY, "--device", "wse2", "--mesh", "2000x4"],
    [TINY, "--device", "wse2", "--mesh", "99999x99999"],
    [TINY, "--device", "h200", "--mesh", "4x4"],
    [TINY, "--device", "h100x8", "--mesh", "gpu=8"],
    [TINY, "--device", "wse2", "--gpus", "2"],
    [TINY, "--device", "h200", "--gpus", "0"],
    [TINY, "--device", "h200", "--gpus", "17"],
    [TINY, "--device", "h100x2", "--gpus", "3"],
    [TINY, "--device", "h200", "--gpus", "two"],
    [TINY, "--device", "wse2", "--mesh", "4x4", "--nodes", "2"],
    [TINY, "--device", "h100x8", "--nodes", "2"],
    [TINY, "--device", "h200", "--nodes", "0"],
    [TINY, "--device", "h200", "--nodes", "2", "--gpus", "2"],
    ["--plmr", "8", "8", "8", "--nodes", "2"],
    [TINY, "--device", "h200", "--batch", "17"],
    [TINY, "--device", "wse2", "--mesh", "4x4", "--batch", "65"],
    [TINY, "--device", "h100x8", "--batch", "-1"],
    [TINY, "--device", "h200", "--clock"],
    [TINY, "--device", "h100x8", "--clock"],
    [TINY, "--device", "wse2", "--mesh", "4x4", "--seq", "0"],
    [TINY, "--device", "h200", "--seq", "99999999"],
    [TINY, "--phase", "training"],
    [TINY, "--device", "wse2", "--mesh", "4x4", "--dtype", "int4"],
    [TINY, "--device", "h200", "--dtype", "fp8"],
    [TINY, "--device", "wse2", "--mesh", "4x4", "--layers", "0"],
    [TINY, "--device", "wse2", "--mesh", "4x4", "--algo", "gemm=fast"],
    [TINY, "--device", "h200", "--algo", "gemm=cannon"],
    [TINY, "--device", "h200", "--keep-quantised", "q4_0"],
    [TINY, "--device", "wse2", "--mesh", "4x4", "--keep-quantised", "q3"],
    [TINY, "--device", "wse2", "--mesh", "4x4", "--accumulate", "f16"],
    [TINY, "--device", "wse2", "--mesh", "4x4", "--chunk", "8"],
    [TINY, "--weights", "/no/such/weights"],
    [TINY, "--plmr"],
    [TINY, "--kv", "--phases"],
    [TINY, "--kv", "--gpus", "2"],
    [TINY, "--phases", "--clock"],
    [TINY, "--kv", "--mesh", "2x2", "--mesh", "4x4"],
    ["--plmr", "8", "8", "8", "--batch", "2"],
    [TINY, "--plan"],
    [TINY, "--device", "h200", "--plot", "plans.svg"],
    [TINY, "--device", "h200", "--plot", "/no/such/folder/plans.png"],
    [TINY, "--kv", "--device", "h200"],
    [TINY, "--phases", "--device", "h100x8"],
    ["", "--device", "h200"],
    ["--plmr", "8", "8", "8", "--plot", "plans.png"],
]


@pytest.mark.parametrize("arguments", STRANGERS, ids=" ".join)
def test_what_strangers_type_ends_in_words(capsys, arguments):
    ends_in_words(capsys, ["estimate", *arguments])


@pytest.mark.slow
@pytest.mark.parametrize("where", device_names())
@pytest.mark.parametrize("model", catalogue_names())
def test_every_model_has_an_answer_on_every_device(capsys, model, where):
    mesh = ["--mesh", "360x360"] if device(where).kind == "mesh" else []
    code = main(["estimate", model, "--device", where, *mesh, "--seq", "4096", "--json"])
    out = capsys.readouterr().out
    assert code in (0, 1)
    found = json.loads(out)
    assert (code == 1) == ("errors" in found)
    assert code or list(unexplained(found)) == []


def test_a_picture_of_plans(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    several = [TINY, *ON_A_WAFER, "--device", "h200", "--phase", "prefill"]
    pictures = [tmp_path / "first.png", tmp_path / "second.png"]
    for file in pictures:
        assert main(["estimate", *several, "--plot", str(file)]) == 0
    first, second = (file.read_bytes() for file in pictures)
    assert first == second and first.startswith(b"\x89PNG") and len(first) > 5000
    other = [TINY, "--device", "h200", "--plot", str(tmp_path / "no" / "such.png")]
    assert main(["estimate", *other]) == 1 and "unwritable" in capsys.readouterr().err
