"""Programs without an end are stopped, and scripts of others fail as Python's scripts do."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from csl_runner import single

from meshc.cli import main
from meshc.sim.host import host_operations
from meshc.support.diagnostics import MeshcError

TASKS = """
const id = @get_local_task_id(9);
task spin() void { @activate(id); }
comptime { @bind_local_task(spin, id); }
"""


@pytest.mark.parametrize("backend", ["python", "c"])
@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("@activate(id);", "csl-endless", "latest task is 'spin'"),
        ("while (true) {}", "csl-run", ""),
    ],
)
def test_endless_programs_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, body: str, code: str, words: str
) -> None:
    bounded = dataclasses.replace(host_operations.OPTIONS[0], backend=backend, max_cycles=20_000)
    monkeypatch.setattr(host_operations, "OPTIONS", [bounded])
    pe = f"{TASKS} fn run() void {{ {body} }} comptime {{ @export_symbol(run); }}"
    program = single(tmp_path, pe, run="fn()void")
    with pytest.raises(MeshcError) as caught:
        program.launch("run")
    (found,) = caught.value.diagnostics
    assert found.code == code
    assert any(words in note and "(0, 0)" in note for note in found.notes)


def test_an_exception_of_the_script_is_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.py").write_text("def f():\n    raise ValueError('mine')\n\nf()\n")
    assert main(["sim", "run", "run.py"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback") and shown.endswith("ValueError: mine\n")
    assert "cs_python" not in shown and "fault of meshc" not in shown
    assert [p.name for p in tmp_path.iterdir()] == ["run.py"]


@pytest.mark.parametrize("cycles", ["0", "-1", "many"])
def test_a_limit_is_a_positive_number(cycles: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "run", f"--max-cycles={cycles}", "run.py"]) == 2
    assert "not a positive number" in capsys.readouterr().err
