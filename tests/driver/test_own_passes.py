"""Passes of one's own inside a whole compile: they run where they are asked for, on all phases."""

import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from offered import offer

import meshc
from meshc.cli import main

ROOT = Path(__file__).parents[2]
LLAMA = ROOT / "examples" / "tiny_llama.mesh"
SCALED = """model scaled(M=4, K=16, N=8) {
  weights f32  accumulate f32
  param w[K, N]
  main(x[M, K]) -> [M, N] { return (x * 0.5) @ w }
}"""
WATCHING = """
from dataclasses import dataclass
from typing import ClassVar

import meshc

SEEN = []


@dataclass(frozen=True)
class Watching(meshc.Pass):
    NAME: ClassVar[str] = "watching"

    def run(self, module, report):
        SEEN.append((module.name, module.level))
        return module
"""


@pytest.fixture
def offered(monkeypatch, tmp_path):
    """Offers the pass of the example package, and one that notes what it is given."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "own_pass"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "watching.py").write_text(WATCHING)
    sys.modules.pop("watching", None)
    places = {"sink-scales": "own_pass.sink_scales:SinkScales", "watching": "watching:Watching"}
    offer(monkeypatch, "meshc.passes", *places.items())
    return lambda: sys.modules["watching"].SEEN


@pytest.fixture
def scaled(tmp_path):
    path = tmp_path / "scaled.mesh"
    path.write_text(SCALED)
    return path


def test_a_pass_of_a_package_is_part_of_a_compile(offered, scaled):
    asked = {"passes_before": ("canonicalize=sink-scales",)}
    made = meshc.compile(scaled, mesh="2x2", **asked)
    assert "scale-sunk" in {remark.code for remark in made.remarks}
    random = np.random.default_rng(3)
    x, w = random.standard_normal((4, 16)), random.standard_normal((16, 8))
    (found,) = made.load({"w": w}).run({"x": x}).values()
    np.testing.assert_allclose(found, 0.5 * x @ w, rtol=1e-5, atol=1e-5)
    assert "scale-sunk" not in {r.code for r in meshc.compile(scaled, mesh="2x2").remarks}


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (
            {"mesh": "2x2", "passes_after": ("partition=watching",)},
            {("tiny_llama_prefill", "mesh"), ("tiny_llama_decode", "mesh")},
        ),
        (
            {"target": "cuda", "passes_after": ("canonicalize=watching",)},
            {("tiny_llama_prefill", "graph"), ("tiny_llama_decode", "graph")},
        ),
        (
            {"mesh": "2x2", "compile_to": "tile", "passes_before": ("plan-memory=watching",)},
            {("tiny_llama_prefill", "tile"), ("tiny_llama_decode", "tile")},
        ),
    ],
    ids=["python", "cuda", "tile"],
)
def test_all_phases_go_through_it(offered, options, seen):
    made = meshc.compile(LLAMA, seq=16, **options)
    assert set(offered()) == seen
    others = {k: v for k, v in options.items() if not k.startswith("passes")}
    assert made.files == meshc.compile(LLAMA, seq=16, **others).files


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--passes-after=nothing=watching", "no pass 'nothing' runs there"),
        ("--passes-after=partition", "--passes-after is partition, not PASS=PIPELINE"),
        ("--passes-before=partition=wathing", "unknown-pass"),
        ("--passes-before=partition=expand-programs", "wrong-level"),
    ],
)
def test_other_places_and_passes_are_refused(offered, scaled, flag, said, capsys):
    assert main(["compile", str(scaled), "--mesh", "2x2", flag]) == 1
    assert said in capsys.readouterr().err


def test_a_kept_program_is_none_with_other_passes(offered, tmp_path, monkeypatch, capsys):
    """What a package's pass does may change without meshc's code changing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = str(ROOT / "tests" / "data" / "tiny" / "llama-3h1")
    words = ["run", model, "--mesh", "2x2", "--prompt-ids", "1,2", "--max-tokens", "1"]
    for _ in range(2):
        assert main([*words, "--passes-after", "canonicalize=watching"]) == 0
    assert len(offered()) == 4


BROKEN = """
from dataclasses import dataclass
from typing import ClassVar

import meshc


@dataclass(frozen=True)
class Broken(meshc.Pass):
    NAME: ClassVar[str] = "broken"

    def run(self, module, report):
        return halved(module)


def halved(module):
    return len(module.functions) // (module.level == "graph")
"""


def test_a_pass_that_breaks_inside_a_compile_shows_it_again(monkeypatch, tmp_path, capsys):
    """Its own lines are named from the innermost one on, and the reproducer breaks the same way."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_pass.py").write_text(BROKEN)
    sys.modules.pop("broken_pass", None)
    offer(monkeypatch, "meshc.passes", ("broken", "broken_pass:Broken"))
    asked = ["--mesh", "2x2", "--passes-after", "select-gemm=broken"]
    assert main(["compile", str(LLAMA), *asked]) == 1
    said = capsys.readouterr().err
    assert "error[bad-plugin]: pass 'broken' of package-0 1.0 (broken_pass:Broken) failed" in said
    places = [f"{tmp_path / 'broken_pass.py'}:{line}" for line in (17, 13)]
    assert said.index(places[0]) < said.index(places[1])
    command = said.strip().splitlines()[-1].split("again: meshc ")[1]
    assert shlex.split(command)[-1].startswith("broken,")
    assert main(shlex.split(command)) == 1
    assert "(broken_pass:Broken) failed: ZeroDivisionError" in capsys.readouterr().err
