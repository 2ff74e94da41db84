"""The extra ``torch`` is imported where it is used, and asked for in words where it is missing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import meshc
from meshc.support import extras
from meshc.support.diagnostics import MeshcError

ROOT = Path(__file__).parents[2]


def said(program):
    known = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=known, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_importing_meshc_imports_neither_package():
    program = (
        "import sys, meshc.api, meshc.torch; print({'torch', 'transformers'} & {*sys.modules})"
    )
    assert said(program) == "set()"


@pytest.mark.parametrize("name", meshc.torch.__all__)
def test_a_missing_package_is_named(name, monkeypatch):
    for each in [each for each in sys.modules if each.startswith("meshc.torch.")]:
        monkeypatch.delitem(sys.modules, each)
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MeshcError, match="missing-extra") as refusal:
        getattr(meshc.torch, name)
    assert re.search("needs the Python package '(torch|transformers)'", str(refusal.value))
    assert "pip install 'meshc[torch]'" in str(refusal.value)


def test_a_missing_module_of_meshc_is_no_missing_package():
    with pytest.raises(ModuleNotFoundError, match=r"meshc\.torch\.compyling"):
        extras.module_of_extra("meshc.torch.compyling", "torch", "meshc.torch")


def test_a_package_that_does_not_fit_is_told_in_its_own_words(monkeypatch):
    def refuse(name):
        raise ImportError("tokenizers 1 is required, but found 2.\nTry another one")

    monkeypatch.setattr(extras, "import_module", refuse)
    with pytest.raises(MeshcError, match=r"tokenizers 1 is required, but found 2\.\n"):
        meshc.torch.compile("model")


def test_names_are_those_that_the_page_gives():
    assert set(meshc.torch.__all__) <= set(dir(meshc.torch))
    with pytest.raises(AttributeError, match="no attribute 'compyle'"):
        _ = meshc.torch.compyle
