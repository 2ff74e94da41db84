"""Clients that hang up, send or take nothing, or ask for too much: they get what is theirs, and
others do not notice."""

import contextlib
import http.client
import json
import logging
import socket
import threading

import numpy as np
import pytest
from books import VOCAB
from served import LIMIT_S, LONG, Letters, Served, wait_until, wanted

from meshc.support.diagnostics import fail

pytestmark = pytest.mark.serve

POST = ("POST", "/v1/completions")
STREAM = {"model": "books", "prompt": LONG, "max_tokens": 40, "temperature": 0, "stream": True}


def completion(served, prompt=(1, 2, 10), **more):
    """Status and answer of a completion."""
    body = {"model": "books", "prompt": prompt, "max_tokens": 5, "temperature": 0, **more}
    status, answer = served.ask(*POST, json.dumps(body))
    return status, json.loads(answer)


def words(answer):
    return answer["error"]["message"]


def ends(connection):
    """Whether the other side ends the connection, whatever it says before."""
    with connection, contextlib.suppress(ConnectionResetError):
        while connection.recv(1 << 16):
            pass
    return True


def received(connection):
    """The answer on a connection, as text in lower case."""
    with http.client.HTTPResponse(connection) as answer:
        answer.begin()
        head = "".join(f"{name}: {value}\n" for name, value in answer.getheaders())
        return f"{answer.status}\n{head}\n{answer.read().decode()}".lower()


@pytest.fixture
def served():
    with Served(Letters()) as found:
        yield found


@pytest.fixture
def complaints(caplog):
    """What servers have to say of themselves, which is nothing."""
    caplog.set_level(logging.INFO, "uvicorn.error")
    yield lambda: [r for r in caplog.records if r.levelno >= logging.ERROR]
    said = caplog.get_records("call")  # of the test; ``records`` are those of its end by now
    assert not [record for record in said if record.levelno >= logging.ERROR]


# --- who hangs up


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_while_it_waits_is_forgotten(served, stream, complaints):
    served.pause = 0.05
    running = [served.begun(STREAM) for _ in range(3)]
    books = served.server.scheduler
    wait_until(lambda: books.decoding == 3)
    waiting = served.begun({**STREAM, "stream": stream})
    wait_until(lambda: books.waiting == 1)
    waiting.close()
    wait_until(lambda: books.waiting == 0)
    assert books.decoding == 3
    for connection in running:
        connection.close()
    wait_until(served.empty)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_while_its_prompt_is_read_is_forgotten(stream, complaints):
    with Served(Letters()) as served:
        reading, go_on = threading.Event(), threading.Event()
        read = served.server.engine.read

        def slowly(*arguments):
            reading.set()
            assert go_on.wait(LIMIT_S)
            return read(*arguments)

        served.server.engine.read = slowly
        connection = served.begun({**STREAM, "prompt": [1] * 24, "stream": stream})
        assert reading.wait(LIMIT_S)
        connection.close()
        wait_until(lambda: not served.loop._live)
        go_on.set()
        wait_until(served.empty)
        assert served.server.engine.steps == []


def test_a_client_that_leaves_while_it_uploads_leaves_nothing(served, complaints):
    for sent in (b"", b'{"model"'):
        served.begun(STREAM, sent).close()
    assert completion(served)[0] == 200
    wait_until(served.empty)


# --- who sends or takes nothing


def test_connections_that_ask_for_nothing_end(complaints):
    with Served(Letters(), head_s=0.3) as served:
        silent, half = served.connect(), served.connect()
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127")
        again = served.connect()
        again.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert received(again).startswith("200")
        again.sendall(b"GET /hea")
        assert ends(silent) and ends(half) and ends(again)
        wait_until(lambda: not served.uvicorn.server_state.connections)


@pytest.mark.parametrize("path", ["/nowhere", "/health", "/v1/completions"])
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_a_body_that_is_no_http_ends_in_words(served, path, kind, complaints):
    """At once, or behind an answer that did not wait for it."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n"
    with served.connect() as at_once:
        at_once.sendall(f"{head}zz\r\nabc".encode())
        assert received(at_once).startswith("400")
    later = served.connect()
    later.sendall(f"{head}1\r\n{{\r\n".encode())
    answered = (path == "/v1/completions" and kind == "application/json") or later.recv(1 << 16)
    later.sendall(b"zz\r\nabc")
    assert answered and ends(later)
    wait_until(lambda: not served.uvicorn.server_state.connections)


def test_a_body_that_does_not_come_is_answered_with_408(complaints):
    with Served(Letters(), body_s=0.3) as served:
        half = served.begun(STREAM, b'{"model"')
        answer = received(half)
        assert answer.startswith("408") and "within 0.3 seconds" in answer
        assert ends(half)


class Loud(Letters):
    """Every token is a long text."""

    def continuation(self, prompt, ids):
        return "".join("abc"[token % 3] * 400_000 for token in ids)


def test_a_client_that_takes_nothing_is_left(complaints):
    with Served(Loud(), write_s=0.3) as served:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", served.port))
        body = json.dumps(STREAM).encode()
        head = f"Host: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\n" + head + body)
        wait_until(lambda: len(served.server.engine.steps) == 40)
        wait_until(lambda: not served.uvicorn.server_state.tasks)
        assert not served.uvicorn.server_state.connections
        slow.close()


def test_connections_beyond_the_limit_are_closed():
    with Served(Letters(), connections=2) as served:
        kept = [served.connect(), served.connect()]
        wait_until(lambda: len(served.uvicorn.server_state.connections) == 2)
        assert ends(served.connect())
        for connection in kept:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert received(connection).startswith("200")
            connection.close()


# --- who asks for much


def test_who_finds_all_places_to_wait_taken_comes_again():
    with Served(Letters(), waiting=1) as served:
        served.pause = 0.05
        running = [served.begun(STREAM) for _ in range(4)]
        wait_until(lambda: served.server.scheduler.waiting == 1)
        connection = served.begun(STREAM)
        answer = received(connection)
        assert answer.startswith("429") and "\nretry-after: 1\n" in answer
        connection.close()
        running.pop().close()
        wait_until(lambda: served.server.scheduler.waiting == 0)
        assert completion(served, [[1], [2]])[0] == 429  # one may wait, two may not
        for connection in running:
            connection.close()
        wait_until(served.empty)
        assert completion(served)[0] == 200


def test_bodies_are_held_within_a_bound():
    with Served(Letters(), bodies_bytes=3000, body_bytes=2000) as served:
        value = {**STREAM, "user": "a" * 1800}
        first = served.begun(value, json.dumps(value).encode()[:-1])
        wait_until(lambda: served.uvicorn.server_state.tasks)
        found = []  # the first part of the one before may still be on its way
        wait_until(lambda: found.append(completion(served, user="a" * 1800)) or found[-1][0] != 200)
        ((status, answer),) = found[-1:]
        assert status == 429
        assert words(answer) == "other requests are being read"
        first.sendall(b"}")
        assert first.recv(1 << 10).startswith(b"HTTP/1.1 200")
        first.close()
        assert completion(served, user="a" * 2000)[0] == 413
        assert completion(served, user="a" * 1800)[0] == 200


def test_a_body_of_many_small_values_is_not_read(served):
    for many in ("[" * 1_200_000, "[1" + ",1" * 1_200_000, '[{"a":1}' + ',{"a":1}' * 600_000):
        status, answer = served.ask(*POST, f'{{"model": "books", "prompt": {many}')
        assert status == 413 and words(json.loads(answer)) == "a request has at most 1048576 values"


class Waiting(Letters):
    """What takes its time until it is told to go on."""

    def __init__(self, *slow):
        self.slow, self.begun, self.go_on = slow, threading.Event(), threading.Event()

    def encode(self, text, room=None):
        return self.waited("encode", super().encode(text))

    def continuation(self, prompt, ids):
        return self.waited("continuation", super().continuation(prompt, ids))

    def waited(self, name, found):
        if name in self.slow:
            self.begun.set()
            assert self.go_on.wait(LIMIT_S)
        return found


@pytest.mark.parametrize("slow", ["encode", "continuation"])
def test_a_tokenizer_that_takes_its_time_holds_up_nobody_else(slow):
    tokenizer = Waiting(slow)
    with Served(tokenizer, speller=tokenizer if slow == "continuation" else Letters()) as served:
        found = []
        texts = threading.Thread(target=lambda: found.append(completion(served, "bck")))
        texts.start()
        assert tokenizer.begun.wait(LIMIT_S)
        assert served.ask("GET", "/health")[0] == 200
        if slow == "encode":  # others are read and answered meanwhile
            assert completion(served)[0] == 200
        tokenizer.go_on.set()
        texts.join(LIMIT_S)
        ((status, answer),) = found
        assert status == 200 and answer["choices"][0]["token_ids"] == wanted([1, 2, 10], 5)[0]


class Failing(Letters):
    def encode(self, text, room=None):
        if len(text) > room:
            fail("prompt-too-long", f"far more than {room} tokens")
        return super().encode(text)

    def continuation(self, prompt, ids):
        if prompt[0] == 9:
            fail("tokenizer-failed", "it panicked")
        return super().continuation(prompt, ids)


def test_what_a_tokenizer_refuses_is_said():
    with Served(Failing()) as served:
        status, answer = completion(served, "b" * 65)
        assert status == 400 and words(answer) == "far more than 64 tokens"
        assert answer["error"]["param"] == "prompt"
        status, answer = completion(served, [9, 1])
        assert status == 500 and words(answer) == "it panicked"
        assert completion(served, "b")[0] == 200
        wait_until(served.empty)


# --- who is wrong here


def test_pages_of_other_origins_are_refused(served):
    body = json.dumps({"model": "books", "prompt": [1]})
    own = f"http://127.0.0.1:{served.port}"
    for origin in ("http://evil.example", "null", "http://127.0.0.1", "http://localhost:1", ""):
        assert served.ask(*POST, body, Origin=origin)[0] == 403
    for content in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert served.ask(*POST, body, **{"Content-Type": content})[0] == 415
    assert served.server.engine.steps == []
    json_type = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert served.ask(*POST, body, Origin=own, **json_type)[0] == 200
    assert served.ask(*POST, body)[0] == 200


def test_a_method_that_is_not_there_is_told_which_are(served):
    for path, method, allowed in (
        ("/v1/completions", "GET", {"POST"}),
        ("/v1/chat/completions", "DELETE", {"POST"}),
        ("/health", "POST", {"GET", "HEAD"}),
    ):
        connection = served.connect()
        connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = received(connection)
        assert answer.startswith("405")
        allow = next(line for line in answer.splitlines() if line.startswith("allow: "))
        assert {name.strip().upper() for name in allow[7:].split(",")} == allowed
        connection.close()


LONE = "\ud800"


@pytest.mark.every_case
@pytest.mark.parametrize(
    "value",
    [
        {LONE: 1},
        {"prompt": LONE},
        {"prompt": [LONE]},
        {"stop": LONE},
        {"stop": [LONE, "a"]},
        {"max_tokens": LONE},
        {"temperature": [LONE]},
        {"logprobs": LONE},
        {"stream_options": LONE},
        {"model": LONE},
    ],
)
def test_lone_surrogates_are_refused_in_json(served, value):
    body = json.dumps({"model": "books", "prompt": [1], **value})
    status, answer = served.ask(*POST, body)
    assert status == (404 if "model" in value else 400)
    answer.decode("utf-8")
    assert words(json.loads(answer))


def test_a_model_whose_name_is_no_unicode_is_served():
    name = "b\udcff"
    with Served(Letters(), model=name) as served:
        assert json.loads(served.ask("GET", "/v1/models")[1])["data"][0]["id"] == name
        for stream in (False, True):
            body = json.dumps({"model": name, "prompt": [1], "stream": stream})
            status, answer = served.ask(*POST, body)
            assert status == 200 and b'"b\\udcff"' in answer


def test_a_request_without_numbers_fails_beside_others(served):
    inner = served.server.engine.step

    def step(tokens):
        found = inner(tokens)
        for request, (token, _) in tokens.items():
            if token == 9:
                found[request] = np.full(VOCAB, np.nan)
        return found

    served.server.engine.step = step
    good = [LONG] if 9 not in wanted(LONG, 20)[0] else [[1, 2, 10]]
    stream = {**STREAM, "prompt": good[0], "max_tokens": 20}
    connection = served.begun(stream)
    for _ in range(3):
        status, answer = completion(served, [1, 9])
        assert status == 500 and "no largest number" in words(answer)
    text = b""
    while b"[DONE]" not in text:
        text += connection.recv(1 << 16)
    connection.close()
    events = [json.loads(line[6:]) for line in text.split(b"\n") if line.startswith(b"data: {")]
    assert [t for e in events for t in e["choices"][0]["token_ids"]] == wanted(good[0], 20)[0]
    assert completion(served)[0] == 200
