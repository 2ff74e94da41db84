"""Runs on a Dask cluster of the loopback address: the results of processes, and how it ends when
scheduler or workers fail. Nothing here waits without a limit."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from meshc.cli import main
from meshc.support.diagnostics import MeshcError, fail
from meshc.support.workers import Processes, unwatched

pytestmark = pytest.mark.cluster

HERE = Path(__file__).parent
LIMIT_S = 60
WORDS = ["schedule", "qwen3-30b-a3b", "--rate", "1.3", "--requests", "12", "--seeds", "3", "--json"]


@contextmanager
def cluster(workers=2):
    """A cluster in a process of its own, and the address of its scheduler."""
    with subprocess.Popen(
        [sys.executable, HERE / "cluster_process.py", str(workers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
    ) as process:
        guard = threading.Timer(LIMIT_S, process.kill)
        guard.start()
        try:
            yield process, process.stdout.readline().strip()
        finally:
            guard.cancel()
            process.kill()


@pytest.fixture(scope="module")
def address():
    with cluster() as (_, found):
        yield found


def on(address, limit_s=10.0):
    from meshc.support.cluster import Cluster

    return Cluster(address, limit_s)


def codes(caught):
    return [diagnostic.code for diagnostic in caught.value.diagnostics]


# --- jobs, which workers import from this file


def squared(number):
    time.sleep(0.05 * (number % 3))
    return number * number


def refused_from_five(number):
    if number >= 5:
        fail("bad-argument", f"{number} is too much")
    return number


def broken(number):
    raise ZeroDivisionError("no such share")


def slow(number):
    time.sleep(1)
    return number


# --- what it gives


@pytest.mark.parametrize(
    "more",
    [["--policy", "chunked", "--policy", "layered"], ["--auto"]],
    ids=["policies", "auto"],
)
def test_a_cluster_gives_what_processes_give(capsys, address, more):
    words = [*WORDS, *more]
    assert main(words) == 0
    alone = capsys.readouterr().out
    assert main([*words, "--scheduler", address]) == 0
    assert capsys.readouterr() == (alone, "")
    assert json.loads(alone)["requests"] == 12


def test_results_keep_the_order_of_jobs(address):
    jobs, told = list(range(20)), []
    found = on(address).results(squared, jobs, lambda done, count: told.append((done, count)))
    assert found == Processes(1).results(squared, jobs, unwatched)
    assert told == [(done, 20) for done in range(1, 21)]


def test_an_error_of_a_job_is_that_of_the_first(address):
    for workers in (on(address), Processes(1), Processes(2)):
        with pytest.raises(MeshcError, match="5 is too much"):
            workers.results(refused_from_five, list(range(12)), unwatched)


def test_another_error_of_a_job_is_said_in_words(address):
    with pytest.raises(MeshcError, match="ZeroDivisionError: no such share") as caught:
        on(address).results(broken, [1, 2], unwatched)
    assert codes(caught) == ["cluster-failed"]


def test_results_of_other_code_are_refused(address, monkeypatch):
    from meshc.support import cluster as module

    monkeypatch.setattr(module, "code_here", lambda: "meshc 9.9")
    with pytest.raises(MeshcError, match=r"this process with meshc 9\.9") as caught:
        on(address).results(squared, [1, 2], unwatched)
    assert codes(caught) == ["cluster-differs"]


def test_a_cluster_tunes_as_processes_do(capsys):
    tiny = str(HERE.parent / "data" / "tiny" / "llama-9h3-tied")
    words = ["tune", tiny, "--device", "wse2", "--phase", "decode", "--mesh", "3x3", "--seq", "64"]
    words += ["--algo", "all_reduce=k_tree:1", "--json"]
    assert main(words) == 0
    alone = capsys.readouterr().out
    with cluster() as (_, address):
        assert main([*words, "--scheduler", address]) == 0
    assert capsys.readouterr() == (alone, "")
    assert json.loads(alone)["phases"][0]["fits"]


# --- how it ends when there is no cluster, or none any more


@pytest.mark.parametrize("wrong", ["nothing", "", "foo://127.0.0.1:1", "tcp://127.0.0.1:port"])
def test_an_address_that_is_none_is_refused(capsys, wrong):
    assert main([*WORDS, "--scheduler", wrong]) == 1
    assert "error[cluster-unreachable]" in capsys.readouterr().err


def test_nobody_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        begin = time.monotonic()
        with pytest.raises(MeshcError) as caught:
            on(where, limit_s=1).results(squared, [1], unwatched)
        assert codes(caught) == ["cluster-unreachable"] and time.monotonic() - begin < 10


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9, b""])
def test_something_else_listens(says):
    """A server of another protocol, and one that never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def answer():
            while True:
                try:
                    held.append(server.accept()[0])
                    held[-1].sendall(says)
                except OSError:
                    return

        threading.Thread(target=answer, daemon=True).start()
        begin = time.monotonic()
        with pytest.raises(MeshcError) as caught:
            where = f"tcp://127.0.0.1:{server.getsockname()[1]}"
            on(where, limit_s=1).results(squared, [1], unwatched)
        assert codes(caught) == ["cluster-unreachable"] and time.monotonic() - begin < 15
        server.shutdown(socket.SHUT_RDWR)
        for connection in held:
            connection.close()


def test_a_scheduler_without_workers():
    with cluster(workers=0) as (_, where):
        begin = time.monotonic()
        with pytest.raises(MeshcError, match="has no worker") as caught:
            on(where, limit_s=1).results(squared, [1], unwatched)
        assert codes(caught) == ["cluster-unreachable"] and time.monotonic() - begin < 15


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_a_cluster_that_dies_or_freezes_is_noticed(number):
    with cluster() as (process, where):
        ended = []

        def hit(done, count):
            if done == 2:
                ended.append(time.monotonic())
                process.send_signal(number)

        with pytest.raises(MeshcError) as caught:
            on(where, limit_s=3).results(slow, list(range(20)), hit)
        assert codes(caught) == ["cluster-unreachable"] and time.monotonic() - ended[0] < 25


def test_an_interrupt_ends_the_command_and_its_runs(address):
    from distributed import Client

    with Client(address, timeout=LIMIT_S, set_as_default=False) as observer:
        many = {"12": "100", "3": "200"}  # requests and seeds
        words = [many.get(word, word) for word in WORDS]
        command = [sys.executable, "-m", "meshc", *words, "--scheduler", address]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            wait_until(lambda: sum(map(len, observer.processing().values())))
            begin = time.monotonic()
            process.send_signal(signal.SIGINT)
            printed = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, *printed) == (130, "", "")
        assert time.monotonic() - begin < 15
        wait_until(lambda: not sum(map(len, observer.processing().values())))


def wait_until(holds):
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end, "that took too long"
        time.sleep(0.05)
