"""``meshc estimate MODEL --kv``: what it prints, and what it refuses."""

import json
from importlib import import_module
from pathlib import Path

import pytest

import meshc
from meshc.cli import main
from meshc.cli.capacities import capacity_object, capacity_tables
from meshc.driver import CompileRequest, load_any
from meshc.driver.capacity import capacities, capacity
from meshc.support.diagnostics import Diagnostics

ROOT = Path(__file__).parents[2]
TINY = str(ROOT / "tests" / "data" / "tiny" / "llama-3h1")


def cores_without_csl(folder):
    """A mesh of cores with 4 KiB, for which no CSL is emitted."""
    text = (ROOT / "meshc" / "devices" / "data" / "ideal.toml").read_text()
    lines = [
        line for line in text.splitlines() if not line.startswith(("memory_bytes", "enforced"))
    ]
    first = next(at for at, line in enumerate(lines) if line.startswith("cores_x"))
    lines[first:first] = ["memory_bytes = 4096"]
    path = folder / "small.toml"
    path.write_text("\n".join(lines).replace('name = "ideal"', 'name = "small"'))
    return str(path)


def test_tables_and_json_of_a_device_without_csl(tmp_path):
    device = cores_without_csl(tmp_path)
    request = CompileRequest(device=device, mesh="r=1,y=3,x=2", dtype="f16")
    capacities_of = capacities(load_any(TINY, Diagnostics()), request)
    found = json.loads(json.dumps(capacity_object("tiny", request, capacities_of)))
    by_policy = {name: one for one in found["policies"] for name in one["policies"]}
    assert by_policy.keys() == {"shift", "cyclic", "concat"}
    shift, concat = by_policy["shift"], by_policy["concat"]
    assert shift["tokens"] == 3 * shift["slots"] and concat["tokens"] == concat["slots"]
    assert concat["overflow"] == {"y": 1, "x": 0} and concat["cores"] == 2
    for one in (shift, concat):
        assert sum(one["bytes"].values()) == 4096
        assert one["refused"]["code"] == "does-not-fit" and one["unreached"] is None
    out = "\n".join(capacity_tables("tiny", request, capacities_of))
    assert "decode steps on 2x3 cores of " in out and "bytes of a core, of 4096" in out
    (row,) = [line.split() for line in out.splitlines() if line.startswith("concat  ")][:1]
    assert row[1:3] == [str(concat["tokens"]), str(concat["slots"])]
    assert f"a token more: {concat['refused']['message']}" in out


def test_what_memory_holds_but_no_program_reaches_is_said(monkeypatch):
    """A cache of more tokens than the positions that CSL counts, were these fewer."""
    monkeypatch.setattr(import_module("meshc.backends.csl.emit"), "_MOST", 100)
    request = CompileRequest(device="wse3", mesh="r=1,y=2,x=2", kv="concat")
    found = capacity(load_any(TINY, Diagnostics()), request)
    assert found.tokens > 100 and found.unreached.code == "csl-extent"


def test_capacity_beside_weights_that_stay_quantised(tmp_path):
    """What it says of memory is what a compile reserves: the last token fits, one more does not."""
    device, model = cores_without_csl(tmp_path), str(tmp_path / "wider.mesh")
    Path(device).write_text(Path(device).read_text().replace("= 4096", "= 400000"))
    text = (ROOT / "examples" / "tiny_llama.mesh").read_text()
    Path(model).write_text(text.replace("E=48, H=6", "E=64, H=8"))
    mesh = {"device": device, "mesh": "r=1,y=1,x=1", "dtype": "f16", "phase": "decode"}
    fits = {}
    for formats in ((), ("all=q8_0",)):
        request = CompileRequest(**mesh, kv="concat", keep_quantised=formats)
        fits[formats] = found = capacity(load_any(model, Diagnostics()), request)
        options = {**mesh, "kv": "concat", "keep_quantised": formats, "compile_to": "tile"}
        module = meshc.compile(model, **options, seq=found.tokens).modules["decode"]
        for role, use in (("weight", "weights"), ("state", "caches")):
            reserved = sum(b.type.bytes for b in module.buffers if b.role == role)
            assert reserved == found.fit.uses[use]
        with pytest.raises(meshc.MeshcError) as refusal:
            meshc.compile(model, **options, seq=found.tokens + 1)
        assert refusal.value.diagnostics[0].code == "does-not-fit"
    decoded, kept = fits.values()
    assert kept.tokens > decoded.tokens
    assert kept.fit.uses["weights"] < 0.6 * decoded.fit.uses["weights"]
    (title, *_) = capacity_tables("tiny", request, [kept])
    assert " buffers of weights quantised: " in title and ", no buffers" not in title


@pytest.mark.parametrize(
    ("words", "code", "help"),
    [
        ([str(ROOT / "examples" / "mlp.mesh")], "no-kv-cache", "append(cache.NAME"),
        ([str(ROOT / "examples" / "mlp.meshir")], "bad-argument", "name the model"),
        ([TINY, "--device", "ideal"], "unlimited-memory", "--device wse2"),
        ([TINY, "--mesh", "800x800"], "mesh-too-large", "--mesh 755x1170"),
        ([TINY, "--mesh", "0x3"], "bad-mesh", ""),
        ([TINY, "--layers", "0"], "bad-argument", ""),
        ([TINY, "another"], "bad-argument", ""),
        (["nowhere"], "unknown-model", ""),
    ],
)
def test_refusals(words, code, help, capsys):
    assert main(["estimate", *words, "--kv"]) == 1
    said = capsys.readouterr().err
    assert f"error[{code}]" in said and help in said
    if code == "no-kv-cache":
        assert "mlp.mesh:7:3" in said


def test_sizes_of_a_product_are_three_numbers(capsys):
    for words in (["8", "8"], ["8", "8", "x"], ["8", "8", "8", "8"]):
        assert main(["estimate", "--plmr", *words]) == 1
        assert "three, M K N" in capsys.readouterr().err


def test_quantised_weights_are_those_of_models(capsys):
    assert main(["estimate", "--plmr", "--keep-quantised", "q4_0", "8", "8", "8"]) == 1
    assert "it is of MODEL" in capsys.readouterr().err


def test_a_model_that_fits_no_core_holds_nothing(capsys):
    assert main(["estimate", "llama-3-8b", "--kv", "--mesh", "16x16", "--layers", "2"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[2].split()[:4] == ["shift", "and", "cyclic", "0"]
    assert "shift and cyclic, a single token: " in out
