"""Where an output takes nothing more or memory is used up, meshc says so and leaves with 1: that is
no fault of meshc."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import meshc
from meshc.cli import main

MATMUL = Path(__file__).parents[2] / "examples" / "matmul.mesh"
FULL = Path("/dev/full")
full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


def printed(folder, *words, unbuffered=False, **streams):
    """Exit code and stderr of the command in a process of its own."""
    own = {**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""}
    command = [sys.executable, "-m", "meshc", *words]
    done = subprocess.run(command, cwd=folder, env=own, text=True, timeout=120, **streams)
    return done.returncode, done.stderr


@full
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize(
    "words", [("devices", "--json"), ("compile", "no-such-model", "--json"), ("explain",)]
)
def test_a_full_disk_behind_stdout_is_an_error_in_words(tmp_path, words, unbuffered):
    with FULL.open("w") as output:
        code, err = printed(
            tmp_path, *words, unbuffered=unbuffered, stdout=output, stderr=subprocess.PIPE
        )
    assert code == 1
    last = "error[unwritable]: what is printed cannot be written: No space left on device\n"
    assert err.endswith(last) and "internal error" not in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@full
@pytest.mark.parametrize("unbuffered", [False, True])
def test_a_help_that_cannot_be_written_is_one_too(tmp_path, unbuffered):
    with FULL.open("w") as output:
        code, err = printed(
            tmp_path, "--help", unbuffered=unbuffered, stdout=output, stderr=subprocess.PIPE
        )
    assert code == 1 and err.startswith("error[unwritable]")


def test_streams_that_are_closed_take_nothing_and_break_nothing(tmp_path):
    """Nor do files that are opened get their numbers, and with them what is said."""
    compiling = ["compile", str(MATMUL), "--mesh", "2x2", "-o"]
    for streams, words, wanted in (
        ("2>&-", ["compile", "no-such-model"], 1),
        ("<&- >&- 2>&-", [*compiling, "closed"], 0),
    ):
        command = ["sh", "-c", f'exec "$0" "$@" {streams}', sys.executable, "-m", "meshc", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, check=False)
        assert (done.returncode, done.stdout) == (wanted, b""), words
    assert main([*compiling, str(tmp_path / "open")]) == 0
    closed, whole = (
        {f.relative_to(folder): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
        for folder in (tmp_path / "closed", tmp_path / "open")
    )
    assert closed == whole and {f.name for f in tmp_path.iterdir()} == {"closed", "open"}


@full
def test_where_nothing_can_be_said_the_exit_code_says_it(tmp_path):
    with FULL.open("w") as output:
        assert printed(tmp_path, "devices", stdout=output, stderr=output)[0] == 1
        assert printed(tmp_path, "compile", "none", stdout=output, stderr=output)[0] == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOMEM, "out-of-memory"), (errno.EMFILE, "out-of-files")]
)
def test_what_the_system_has_no_more_of_is_named(capsys, monkeypatch, tmp_path, number, code):
    """Processes that cannot be started, and files that cannot be opened."""

    def broken(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("meshc.cli.commands.compile.load_any", broken)
    assert main(["compile", str(MATMUL), "--mesh", "2x2"]) == 1
    said = capsys.readouterr().err
    assert f"error[{code}]" in said and f"note: {os.strerror(number)}" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["command", "pass"])
def test_memory_that_is_used_up_is_no_fault_of_meshc(capsys, monkeypatch, tmp_path, place):
    def broken(*arguments):
        raise MemoryError("Unable to allocate 2.00 TiB\nfor an array")

    monkeypatch.chdir(tmp_path)
    if place == "command":
        monkeypatch.setattr("meshc.cli.commands.compile.load_any", broken)
    else:
        monkeypatch.setattr(meshc.EliminateTranspose, "run", broken)
    assert main(["compile", str(MATMUL), "--mesh", "2x2", "--json"]) == 1
    found = capsys.readouterr()
    assert "error[out-of-memory]" in found.err and "Unable to allocate 2.00 TiB" in found.err
    (error,) = json.loads(found.out)["errors"]
    assert (error["code"], error["notes"]) == ("out-of-memory", ["Unable to allocate 2.00 TiB"])
    assert list(tmp_path.iterdir()) == []
