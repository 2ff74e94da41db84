"""Golden tests: real command lines, everything they print and every file they write.

A case is a folder with ``command`` (the arguments; {here} is the folder, {examples} that of the
examples, {out} an output directory) and ``expected`` (exit code, stdout, stderr, and out/ with the
files). Missing, surplus and changed files fail. ``--update-golden`` rewrites ``expected``.

Files of the library that programs carry (the run-time package, the headers of kernels) are not
stored: they must equal their source. Nor are the hashes of a manifest: they must be those of the
files.
"""

import hashlib
import json
import shlex
import shutil
from importlib import resources
from pathlib import Path

import pytest

from meshc.cli import main

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
CASES = sorted(path.parent for path in HERE.glob("*/command"))
# Where programs carry files of the library, and where those come from.
CARRIED = {
    "out/mesh_runtime": resources.files("meshc.backends.python.runtime"),
    "out": resources.files("meshc.backends.cuda.library"),
}


def outcome(case, folder, capsys):
    """Every expected file by its path, with its text."""
    out = folder / "out"
    names = {"here": case, "examples": EXAMPLES, "out": out}
    words = shlex.split((case / "command").read_text(encoding="utf-8"))
    code = main([word.format(**names) for word in words])
    assert code in (0, 1), "a fault of meshc is no golden"
    printed = capsys.readouterr()
    found = {"exit": f"{code}\n", "stdout": printed.out, "stderr": printed.err}
    for name, place in names.items():
        for stream in ("stdout", "stderr"):
            found[stream] = found[stream].replace(str(place), "{" + name + "}")
    for path in sorted(out.rglob("*")):
        if path.is_file():
            found[f"out/{path.relative_to(out).as_posix()}"] = path.read_text(encoding="utf-8")
    if "out/meshc.json" in found:
        found["out/meshc.json"] = without_hashes(found)
    return found


def without_hashes(found):
    """The manifest without the hashes of files, which are compared with the files here."""
    manifest = json.loads(found["out/meshc.json"])
    hashes = manifest.pop("sha256")
    assert sorted([*hashes, "meshc.json"]) == manifest["files"]
    for name, digest in hashes.items():
        assert digest == hashlib.sha256(found[f"out/{name}"].encode()).hexdigest(), name
    return json.dumps(manifest, indent=2, sort_keys=True) + "\n"


def stored(case):
    root = case / "expected"
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {p.relative_to(root).as_posix(): p.read_text(encoding="utf-8") for p in files}


def sources():
    """The text of every file of the library, by the name under which programs carry it."""
    return {
        f"{place}/{path.name}": path.read_text(encoding="utf-8")
        for place, folder in CARRIED.items()
        for path in folder.iterdir()
        if path.is_file()
    }


def rewrite(case, found):
    shutil.rmtree(case / "expected", ignore_errors=True)
    for name, text in found.items():
        path = case / "expected" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_golden(case, tmp_path, capsys, monkeypatch, update_golden):
    monkeypatch.chdir(tmp_path)
    found = outcome(case, tmp_path, capsys)
    source = sources()
    for name in found.keys() & source.keys():
        assert found.pop(name) == source[name], name
    expected = stored(case)
    if update_golden and found != expected:
        rewrite(case, found)
        pytest.fail("rewritten; look at the difference and run again")
    assert sorted(found) == sorted(expected)
    for name, text in found.items():
        assert text == expected[name], name


def test_no_file_of_the_library_is_stored():
    source = {text for text in sources().values() if text}
    copies = [
        f"{case.name}: {name}"
        for case in CASES
        for name, text in stored(case).items()
        if text in source
    ]
    assert copies == []


def test_there_are_enough_cases():
    assert len(CASES) >= 6
