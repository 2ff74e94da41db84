"""Forms, families, devices and functions of elements of other packages: the packages of
``examples/`` pass their tests, and what is wrong with one is said of it."""

from pathlib import Path

import pytest
from offered import offer

import meshc
from meshc.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"
PACKAGES = {
    "own_device": ("meshc.devices", "pocket", "own_device:POCKET"),
    "own_family": ("meshc.families", "glm", "own_family:FOLDER"),
    "own_form": ("meshc.forms", "gathered", "own_form.gathered:GATHERED"),
}


@pytest.fixture
def bring(monkeypatch, tmp_path):
    """Offers an object as ``name`` in a group: that of an example, or of a module with a text."""

    def brought(group, name, value, text=""):
        monkeypatch.syspath_prepend(str(EXAMPLES / value.partition(":")[0].partition(".")[0]))
        monkeypatch.syspath_prepend(str(tmp_path))
        module = value.partition(":")[0]
        if text:
            (tmp_path / f"{module}.py").write_text(text)
        offer(monkeypatch, group, (name, value))

    return brought


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_the_tests_of_an_example_pass(bring, package):
    """With what its own pyproject.toml offers."""
    group, name, value = PACKAGES[package]
    said = (EXAMPLES / package / "pyproject.toml").read_text()
    assert f'[project.entry-points."{group}"]\n' in said and f'{name} = "{value}"\n' in said
    bring(group, name, value)
    folder = str(EXAMPLES / package / "tests")
    assert pytest.main(["-q", "-p", "no:cacheprovider", "-n0", folder]) == 0


def refused(call):
    with pytest.raises(meshc.MeshcError) as caught:
        call()
    (problem,) = caught.value.diagnostics
    assert problem.code == "bad-plugin"
    return problem


ASKED = {
    "meshc.devices": lambda: main(["devices", "mine"]),
    "meshc.families": lambda: meshc.compile("x.mesh", mesh="2x2"),
    "meshc.forms": lambda: main(["opt", "m.meshir", "--passes", PINNED]),
}
PINNED = 'canonicalize,eliminate-transpose,partition{grid=2x2,forms=["y=mine"]}'
MODULE = """module @m level(graph) {
  dims E = 4
  func @main(in %x: f32[E]) -> (f32[E]) {
    %y = graph.scale %x {factor = 0.5} : f32[E]
    graph.return %y
  }
}
"""
