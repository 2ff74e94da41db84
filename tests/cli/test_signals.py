"""A command that is stopped by a signal leaves nothing behind, and says so by its exit code."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from meshc.cli import main
from meshc.cli.signals import Signals, Stopped
from meshc.support import scratch

HERE = Path(__file__).parent
MATMUL = str(HERE.parents[1] / "examples" / "matmul.mesh")
WORDS = ("compile", MATMUL, "--mesh", "2x2", "-o", "out")
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
NUMBERS = [str(int(number)) for number in CODES]

START = """
import sys
from meshc.cli import entry

class Ready(entry.Signals):
    def install(self):
        super().install()
        print("ready", flush=True)

entry.Signals = Ready
sys.argv = ["meshc", *sys.argv[1:]]
sys.exit(entry.main())
"""


def files(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def sweep(folder, step):
    """What runs leave that are stopped at every ``step``-th change of the file system."""
    command = [sys.executable, HERE / "stopped_runs.py", folder, str(step), *NUMBERS, "--", *WORDS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500)
    *parts, whole = map(json.loads, done.stdout.splitlines())
    assert whole["code"] == 0
    assert len(parts) == -(-whole["seen"] // step) and whole["seen"] > 20
    for part in parts:
        assert part["code"] == CODES[part["signal"]], part
        assert part["printed"] == "", part
        assert not any(name.startswith(scratch.PREFIX) for name in part["folders"]), part
    return parts, whole


STEPS = [9, pytest.param(1, marks=pytest.mark.slow)]


@pytest.mark.parametrize("step", STEPS)
def test_a_new_directory_is_there_whole_or_not_at_all(tmp_path, step):
    (tmp_path / "before").mkdir()
    parts, whole = sweep(tmp_path, step)
    assert all(part["left"] in ([], whole["left"]) for part in parts)
    assert [] in [part["left"] for part in parts]


@pytest.mark.parametrize("step", STEPS)
def test_a_directory_written_again_is_the_old_or_the_new_one(tmp_path, step, monkeypatch, capsys):
    before = tmp_path / "before"
    before.mkdir()
    monkeypatch.chdir(before)
    assert main([*WORDS[:-2], "--compile-to", "mesh", *WORDS[-2:]]) == 0
    (before / "out" / "data").mkdir()
    (before / "out" / "data" / "yours.npy").write_bytes(b"yours")
    parts, whole = sweep(tmp_path, step)
    assert "out/data/yours.npy" in whole["left"] and "out/main.py" in whole["left"]
    assert all(part["left"] in (files(before), whole["left"]) for part in parts)


@pytest.mark.parametrize("tries", [3, pytest.param(80, marks=pytest.mark.slow)])
def test_no_moment_of_a_run_gives_a_traceback(tmp_path, tries):
    """Signals by the clock, from the moment that they are handled until the process has ended.

    The interpreter itself gives handlers up at its very end, when all is written: a signal then
    kills the process, which a shell shows as the same code.
    """
    begin = time.perf_counter()
    assert stopped(tmp_path / "whole", None, None)[0] == 0
    length = time.perf_counter() - begin
    for number in range(tries):
        wanted = list(CODES)[number % len(CODES)]
        folder = tmp_path / str(number)
        code, printed = stopped(folder, wanted, length * number / tries)
        assert printed in ("", "matmul on ideal")
        assert code in (0, CODES[wanted], -wanted)
        left, whole = files(folder), files(tmp_path / "whole")
        assert left == whole or (left == [] and code == CODES[wanted])
        assert list(folder.glob(f"{scratch.PREFIX}*")) == []


def stopped(folder, number, delay):
    """Exit code and the first words of a run that gets a signal after ``delay`` seconds."""
    folder.mkdir()
    command = [sys.executable, "-c", START, *WORDS]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        if number is not None:
            time.sleep(delay)
            process.send_signal(number)
        printed = process.stdout.read()
    return process.returncode, printed.partition(",")[0]


@pytest.mark.parametrize("number", CODES)
def test_a_signal_while_a_command_works_ends_it_in_order(number):
    """The first one is raised, what is under way is cleaned up, and handlers are as before."""
    before = signal.getsignal(number)
    signals = Signals()
    signals.install()
    try:
        with pytest.raises(Stopped) as stop, signals.raised(), scratch.scratch_folder() as folder:
            assert folder.is_dir()
            os.kill(os.getpid(), number)
            time.sleep(5)
    finally:
        signals.restore()
    assert stop.value.code == CODES[number]
    assert not folder.exists()
    assert signal.getsignal(number) is before


def test_a_signal_waits_for_what_must_not_be_interrupted():
    """Also when the system hands it to another thread than the one that works."""
    begin, sent = threading.Event(), threading.Event()

    def send():
        begin.wait(10)
        os.kill(os.getpid(), signal.SIGTERM)
        sent.set()

    sender = threading.Thread(target=send)
    sender.start()
    signals, finished = Signals(), False
    signals.install()
    try:
        with pytest.raises(Stopped) as stop, signals.raised(), scratch.uninterrupted():
            begin.set()
            sent.wait(10)
            time.sleep(0.01)
            finished = True
    finally:
        signals.restore()
        sender.join()
    assert finished and stop.value.code == CODES[signal.SIGTERM]


def test_a_second_signal_ends_the_process_at_once(tmp_path):
    """Also when the first one was swallowed by what the command calls."""
    text = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from meshc.cli.signals import Signals\n"
        "from meshc.support.scratch import scratch_folder\n"
        "signals = Signals()\n"
        "signals.install()\n"
        "with signals.raised(), scratch_folder(Path('.')) as folder:\n"
        "    for turn in range(2):\n"
        "        try:\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "        except KeyboardInterrupt:\n"
        "            print('swallowed', flush=True)\n"
        "print('not reached')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (143, "swallowed\n", "")
    assert list(tmp_path.iterdir()) == []


def test_an_ignored_signal_stays_ignored():
    """A command that the shell runs in the background, or under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals = Signals()
    signals.install()
    try:
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signals.restore()
        signal.signal(signal.SIGHUP, before)
