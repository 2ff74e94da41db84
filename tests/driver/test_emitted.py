"""Programs are compiled once, and again when anything they were made from is another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from reduced import only

from meshc import devices
from meshc.cli import main
from meshc.cli.commands import run
from meshc.driver import emitted

pytestmark = pytest.mark.models

TINY = Path(__file__).parents[1] / "data" / "tiny" / "qwen2-7h1"
LINE = ["--max-tokens", "2", "--prompt-ids", "3,7,11"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "meshc" / "programs"


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that the command compiled, in order."""
    found: list[str] = []
    compile_loaded = run.compile_loaded

    def noted(loaded: Any, *rest: Any) -> Any:
        found.append(loaded.name)
        return compile_loaded(loaded, *rest)

    monkeypatch.setattr(run, "compile_loaded", noted)
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of a checkpoint, to be changed."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((TINY / name).read_bytes())
    return folder


def said(model: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[str, str]:
    assert main(["run", str(model), *LINE, *flags]) == 0
    found = capsys.readouterr()
    return found.out, found.err


def test_a_second_run_compiles_nothing_and_says_the_same(
    model: Path, compiles: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    first = said(model, capsys, "--remarks")
    assert said(model, capsys, "--remarks") == first
    assert "library" in first[1] and len(compiles) == 1


@pytest.mark.parametrize("at", [0, 1000, -1])
def test_a_damaged_program_is_compiled_again(
    at: int,
    model: Path,
    compiles: list[str],
    own_cache: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = said(model, capsys)
    (file,) = own_cache.glob("*/*.json")
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    assert [said(model, capsys) for _ in range(2)] == [first, first]
    assert len(compiles) == 2


@pytest.mark.parametrize("flags", [["--seq", "48"], ["--mesh", "2x2"], ["--kv", "shift"]])
def test_another_request_is_another_program(
    flags: list[str], model: Path, compiles: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for given in ([], flags, flags, []):
        said(model, capsys, *given)
    assert len(compiles) == 2


def test_a_device_file_that_changed_is_another_device(
    model: Path, compiles: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.toml"
    text = (Path(devices.__file__).parent / "data" / "ideal.toml").read_text()
    for cycles in (24, 25):
        own.write_text(
            text.replace("route_cycles = {value = 24", f"route_cycles = {{value = {cycles}")
        )
        said(model, capsys, "--device", str(own))
    assert len(compiles) == 2


def test_another_model_is_another_program(
    model: Path, compiles: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for eps in (1e-5, 1e-2):
        facts = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**facts, "rms_norm_eps": eps}))
        said(model, capsys)
    assert len(compiles) == 2


def test_without_cache_nothing_is_kept_or_looked_for(
    model: Path, compiles: list[str], own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = said(model, capsys, "--no-cache")
    assert not own_cache.exists()
    assert [said(model, capsys), said(model, capsys, "--no-cache")] == [first, first]
    assert len(compiles) == 3


@pytest.mark.parametrize(
    "flag", only(["--stats", "--time-passes", "--check", "--print-ir-after-all"], "--stats")
)
def test_who_looks_at_passes_has_them_run(
    flag: str, model: Path, compiles: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said(model, capsys)
    said(model, capsys, flag)
    assert len(compiles) == 2


def test_all_programs_together_are_bounded(
    model: Path,
    compiles: list[str],
    own_cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said(model, capsys)
    (file,) = own_cache.glob("*/*.json")
    monkeypatch.setattr(emitted, "MOST_BYTES", 3 * file.stat().st_size // 2)
    said(model, capsys, "--seq", "48")
    said(model, capsys)
    assert len(compiles) == 3 and len(list(own_cache.iterdir())) == 1


def test_a_cache_that_cannot_be_used_costs_time_alone(
    model: Path, compiles: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").write_text("no folder")
    assert said(model, capsys) == said(model, capsys)
    assert len(compiles) == 2
