"""An endpoint over books for tests, in threads of this process, and what is asked of it."""

import http.client
import json
import socket
import threading
import time
from itertools import product

from books import VOCAB, continued, server_of

from meshc.serving.loop import MOST_WAITING, Loop
from meshc.serving.policies import policy
from meshc.serving.replaying import Entry
from meshc.support.diagnostics import fail

LIMIT_S = 60
EOS = (3,)


class Letters:
    """Tokens are the letters from ``a`` on."""

    def encode(self, text, room=None):
        return [ord(letter) - ord("a") for letter in text]

    def continuation(self, prompt, ids):
        return "".join(chr(ord("a") + token) for token in ids)

    def control_text(self, token):
        return ""

    def token_texts(self, ids):
        return [self.continuation((), [token]) for token in ids]


def spoken(messages, room):
    """Token ids of messages: their letters. A system message is refused."""
    if any(message["role"] == "system" for message in messages):
        fail("chat-refused", "no system messages")
    return Letters().encode("".join(message["content"] for message in messages))


LONG = next(
    list(prompt)
    for prompt in product(range(VOCAB), repeat=3)
    if len(continued(Entry(0, 0.0, prompt, 40, EOS))) == 40
)
"""A prompt whose most likely answer does not end by itself; a drawn one (temperature 1) may."""


def wait_until(holds):
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end, "that took too long"
        time.sleep(0.01)


class Served:
    """An endpoint over books, or over another ``server``, in threads of this process. A step takes
    ``pause`` seconds, and takes one of ``steps`` where there are such, for which it waits;
    ``limits`` are those that are others than usual, ``waiting`` is how many requests may wait."""

    steps: threading.Semaphore | None = None

    def __init__(
        self,
        tokenizer,
        waiting=MOST_WAITING,
        model="books",
        speller=None,
        access=None,
        server=None,
        eos=EOS,
        **limits,
    ):
        import uvicorn

        from meshc.serving.endpoint.app import Endpoint
        from meshc.serving.endpoint.connections import protocol_of
        from meshc.serving.endpoint.limits import Limits

        self.pause, self.tokenizer = 0.001, tokenizer
        self.server = server or server_of(policy("chunked", 8))
        self.inner, self.server.engine.step = self.server.engine.step, self.step
        self.loop, bounds = Loop(self.server, waiting), Limits(**limits)
        app = Endpoint(model, self.loop, tokenizer, eos, spoken, speller, bounds, access).app()
        http = protocol_of(bounds)
        config = uvicorn.Config(app, port=0, http=http, log_level="error", lifespan="off")
        self.uvicorn = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.uvicorn.run, daemon=True)
        self.fails, self.clients = False, []

    def step(self, tokens):
        if self.steps is not None:
            self.steps.acquire(timeout=LIMIT_S)
        time.sleep(self.pause)
        if self.fails:
            raise RuntimeError("the cores are on fire")
        return self.inner(tokens)

    def __enter__(self):
        self.loop.start()
        self.thread.start()
        wait_until(lambda: self.uvicorn.started)
        self.port = self.uvicorn.servers[0].sockets[0].getsockname()[1]
        return self

    def __exit__(self, *error):
        for client in self.clients:
            client.close()
        self.uvicorn.should_exit = True
        self.thread.join(LIMIT_S)
        assert self.loop.close(LIMIT_S) and not self.thread.is_alive()

    def client(self):
        import openai

        address = f"http://127.0.0.1:{self.port}/v1"
        how = {"api_key": "none", "max_retries": 0, "timeout": LIMIT_S}
        self.clients.append(openai.OpenAI(base_url=address, **how))
        return self.clients[-1]

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    def connect(self):
        """A bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S)

    def begun(self, value, body=None):
        """A connection over which a completion was asked for; ``body`` is what is sent of it."""
        whole = json.dumps(value).encode()
        found = self.connect()
        head = f"Host: 127.0.0.1\r\nContent-Length: {len(whole)}\r\n\r\n"
        found.sendall(b"POST /v1/completions HTTP/1.1\r\n" + head.encode())
        found.sendall(whole if body is None else body)
        return found

    def empty(self):
        books = self.server.scheduler
        return books.idle and books.held_tokens == 0 and self.server.free == 3


def wanted(prompt, most):
    """Tokens that are shown, and why the answer ends."""
    tokens = continued(Entry(0, 0.0, tuple(prompt), most, EOS))
    return tokens, "stop" if tokens[-1] in EOS else "length"
