"""Libraries compiled with the system's compiler, and what several of them have in common."""

import ctypes
import shutil
from dataclasses import replace

import pytest

from meshc.support.native import BuildError, Common, Toolchain, _is_gcc

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
HEADERS = {"common.h": "int base(void);\n"}


def common(value):
    text = f'#include "common.h"\nint base(void) {{ return {value}; }}\n'
    return Common("common.c", text, HEADERS)


def adding(value):
    return {"adding.c": f'#include "common.h"\nint add(void) {{ return base() + {value}; }}\n'}


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """A toolchain with an empty cache, and the lines of its calls that compile something."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    log, script = tmp_path / "log", tmp_path / "counted-cc"
    script.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {COMPILER} "$@"\n')
    script.chmod(0o755)

    def calls():
        lines = log.read_text(encoding="utf-8").splitlines()
        kinds = {" -c ": "object", "-header ": "header"}
        return [
            next((kind for mark, kind in kinds.items() if mark in line), "library")
            for line in lines
            if "-o" in line
        ]

    return Toolchain("C", "NO_SUCH_VARIABLE", (str(script),), ("-O1", "-fPIC", "-w")), calls


def result(path):
    return ctypes.CDLL(str(path)).add()


def test_what_is_common_is_compiled_once(counted):
    toolchain, calls = counted
    built = [toolchain.build(adding(n), HEADERS, "test", common(40)) for n in (1, 2, 1)]
    assert [result(path) for path in built] == [41, 42, 41]
    assert calls() == ["object", "library", "library"]


def test_what_is_common_belongs_to_the_key(counted):
    toolchain, calls = counted
    for value in (40, 50):
        assert result(toolchain.build(adding(1), HEADERS, "test", common(value))) == value + 1
    other = replace(toolchain, flags=("-O2", "-fPIC", "-w"))
    assert result(other.build(adding(1), HEADERS, "test", common(40))) == 41
    assert calls() == ["object", "library"] * 3


@pytest.mark.skipif(COMPILER is None or not _is_gcc(COMPILER), reason="the compiler is not GCC")
def test_a_header_is_parsed_once(counted):
    toolchain, calls = counted
    first, second = (
        toolchain.build(adding(n), HEADERS, "test", common(40), "common.h") for n in (1, 2)
    )
    assert [result(first), result(second)] == [41, 42]
    assert calls() == ["object", "header", "library", "library"]
    changed = {"common.h": "int base(void);\n#define base() 7\n"}
    assert result(toolchain.build(adding(1), changed, "test", common(40), "common.h")) == 8
    assert calls()[4:] == ["header", "library"]
    others = HEADERS | {"not_included.h": "#define MORE 1\n"}
    assert result(toolchain.build(adding(3), others, "test", common(40), "common.h")) == 43
    assert calls()[6:] == ["library"]


def test_a_refusal_of_what_is_common_has_its_words(counted):
    toolchain, _ = counted
    with pytest.raises(BuildError, match="error"):
        toolchain.build(adding(1), HEADERS, "test", Common("common.c", "int base(", HEADERS))
