"""How ``meshc serve`` ends: signals while clients are there, exit codes, its port afterwards."""

import asyncio
import json
import signal
import socket

import pytest
from books import CAPACITY
from served import EOS, LIMIT_S, LONG, Served, wait_until
from serving_process import ServingProcess, endless

from meshc.serving.endpoint.answers import Answers
from meshc.serving.endpoint.asked import asked as asked_of
from meshc.serving.endpoint.refusals import Refused
from meshc.serving.endpoint.threads import Worker

pytestmark = [pytest.mark.serve, pytest.mark.models]

PROMPT = [1, 2, 3]


def asked(server, whole=True, **more):
    """A connection over which a completion is asked for, all of it or half."""
    value = {"model": server.name, "prompt": PROMPT, "max_tokens": 190, "temperature": 0, **more}
    body = json.dumps(value).encode()
    found = socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S)
    head = f"Host: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    found.sendall(b"POST /v1/completions HTTP/1.1\r\n" + head + (body if whole else body[:9]))
    return found


def rest(connection):
    """All that comes until the connection ends."""
    with connection:
        return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()


def test_a_signal_does_not_wait_for_half_a_request_and_the_port_is_free_again():
    with ServingProcess() as server:
        idle, half = (
            socket.create_connection(("127.0.0.1", server.port)),
            asked(server, whole=False),
        )
        whole = asked(server, max_tokens=2)
        assert whole.recv(1 << 16).startswith(b"HTTP/1.1 200")
        server.process.send_signal(signal.SIGTERM)
        assert rest(half).startswith("HTTP/1.1 503")
        assert rest(idle) == ""
        assert server.stopped() == (0, "")
        # The server has ended connections, which linger on its side.
        with ServingProcess(port=server.port) as again:
            assert again.port == server.port and again.idle()
            again.process.send_signal(signal.SIGINT)
            assert again.stopped() == (0, "")
        whole.close()


@pytest.mark.parametrize("signals", [1, 2])
def test_requests_that_are_cut_are_told_so_and_so_is_the_shell(signals, tmp_path):
    """By time, or by a second signal."""
    model, finish_s = endless(tmp_path / "endless"), 0 if signals == 1 else 1000
    with ServingProcess(model, batch=1, seq=4000, finish_s=finish_s) as server:
        running = asked(server, max_tokens=3900, stream=True)
        begin = running.recv(1 << 16)
        assert begin.startswith(b"HTTP/1.1 200")
        waiting = [asked(server, stream=stream) for stream in (False, True)]
        wait_until(lambda: '"waiting":2' in server.health())
        for _ in range(signals):
            server.process.send_signal(signal.SIGTERM)
            if signals == 2:  # the first one has been seen
                wait_until(lambda: refused(server.port))
        text = rest(running)
        assert '"the server is stopping"' in text and "[DONE]" not in text
        for connection in waiting:
            answer = rest(connection)
            assert answer.startswith("HTTP/1.1 503") and '"the server is stopping"' in answer
        assert server.stopped() == (1, "requests that were cut: 3\n")


def test_what_is_cut_is_told_so_before_tokens_that_wait():
    """A loop may be many tokens ahead of who writes them, and there is little time at the end."""
    body = json.dumps({"model": "books", "prompt": LONG, "max_tokens": 40, "temperature": 0})
    with Served(None) as served:
        wanted = asked_of(body.encode(), "books", None, CAPACITY, 99)
        answers = Answers(served.loop, None, Worker(), EOS, wanted)

        async def cut_behind():
            pieces = answers.pieces()
            await anext(pieces)
            while answers.news.qsize() < 39:
                await asyncio.sleep(0.01)
            answers.cut()
            with pytest.raises(Refused, match="the server is stopping"):
                await anext(pieces)

        asyncio.run(asyncio.wait_for(cut_behind(), LIMIT_S))


def refused(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S).close()
    except ConnectionRefusedError:
        return True
    return False
