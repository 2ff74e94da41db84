"""``meshc estimate``: tables and JSON."""

import json

import pytest

from meshc.backends.target import target_named
from meshc.cli import main
from meshc.cost.terms import MECHANISMS
from meshc.devices import device


def test_the_table(capsys):
    assert main(["estimate", "--plmr", "--mesh", "4x4", "--device", "wse2", "64", "64", "64"]) == 0
    out = capsys.readouterr().out
    assert "GEMM [64, 64] x [64, 64] on 4x4 cores of wse2" in out
    assert "GEMV [1, 64] x [64, 64]" in out
    assert "GEMM on P x P cores" in out and "O(a P + b P^(1/2))" in out
    row = next(line for line in out.splitlines() if line.startswith("cannon "))
    assert "3a + 1b" in row and row.endswith("L")
    assert "GEMM: cycles of emitted CSL by what they are spent on" in out
    heads = [line.split() for line in out.splitlines() if line.startswith("algorithm  ")]
    assert ["algorithm", "compute", "waits", "total"] in heads
    assert "numbers of wse2 in it" in out
    (fitted, *_) = [line for line in out.splitlines() if line.startswith("  calibrated: ")]
    assert "task_cycles" in fitted and "step_cycles" not in fitted


@pytest.mark.parametrize("device_name", ["wse2", "ideal"])
def test_both_tables_have_the_same_cycles(capsys, device_name):
    assert main(["estimate", "--plmr", "--mesh", "4x4", "--device", device_name, *("24",) * 3]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    for algo in ("cyclic_shift", "ring"):
        counted, spent, _ = [row for row in rows if row[:1] == [algo]]
        assert counted[-2] == spent[-1] and float(spent[-1]) > 0


def test_where_all_cores_reach_each_other_products_send_nothing(capsys):
    words = ["estimate", "--plmr", "--mesh", "8x1", "--device", "b200x8", "--json", *("64",) * 3]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)["algorithms"]
    gemms = {e["algo"]: e["routing_paths"] for e in found if e["kind"] == "gemm"}
    assert list(gemms) == ["whole", "transposed"] and gemms["whole"] == 0
    assert main([*words[:3], "8x8", *words[4:]]) == 1
    assert "--mesh is 8x8, and b200x8 has 8x1 cores" in capsys.readouterr().err


def test_json(capsys):
    arguments = [
        "estimate",
        "--plmr",
        "--json",
        "--mesh",
        "4x6",
        "--dtype",
        "f16",
        "--device",
        "ideal",
    ]
    assert main([*arguments, "24", "24", "24"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["m"], found["mesh"], found["dtype"]) == (24, "4x6", "f16")
    first = found["algorithms"][0]
    assert first["algo"] == "cyclic_shift" and first["step"] == {"alpha": 2, "beta": 1}
    assert all(e["cycles"] > 0 for e in found["algorithms"])
    numbers = device("ideal").numbers
    for one in found["algorithms"]:
        parts = one["breakdown"]
        total = parts.pop("total")
        assert list(parts) == list(MECHANISMS) and sum(parts.values()) == pytest.approx(total)
        assert one["cycles_of"] == "tile program" and one["cycles"] == round(total)
        assert list(one["inputs"]) == ["assumed"]
        assert {"hop_cycles", "route_cycles"} <= set(one["inputs"]["assumed"]) <= numbers.keys()
    assert first["growth"]["step"] == "a + b" and first["growth"]["bytes"] == "1/P^2"


def test_what_to_estimate_must_be_said(capsys):
    assert main(["estimate", "8", "8", "8"]) == 1
    assert "--plmr" in capsys.readouterr().err
    assert main(["estimate", "--plmr", "--device", "nowhere", "8", "8", "8"]) == 1


def test_the_device_is_that_of_compile_for_wafers_unless_it_is_named(capsys):
    assert main(["estimate", "--plmr", "--mesh", "2x2", "--json", "8", "8", "8"]) == 0
    assert json.loads(capsys.readouterr().out)["device"] == target_named("csl").USUAL_DEVICE
