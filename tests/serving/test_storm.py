"""Many clients of all kinds at once before ``meshc serve``: those who behave are served, nobody who
asks for its health waits, memory comes back, and a signal in the midst ends it in order."""

import asyncio
import contextlib
import json
import signal
import threading
import time
import urllib.error
import urllib.request

import pytest
from served import LIMIT_S, wait_until
from serving_process import ServingProcess, endless

pytestmark = [pytest.mark.serve, pytest.mark.models]

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ "
MOST = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The tiny model with a tokenizer, whose tokens are letters."""
    from tokenizers import Tokenizer, decoders, models

    folder = endless(tmp_path_factory.mktemp("letters") / "letters")
    vocabulary = {letter: number for number, letter in enumerate(LETTERS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


class Clients:
    """What clients do, each over a connection of its own."""

    def __init__(self, server):
        self.server = server

    def head(self, length):
        return (
            f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.server.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        ).encode()

    def request(self, **more):
        value = {"model": self.server.name, "prompt": "abc", "max_tokens": MOST, "temperature": 0}
        body = json.dumps({**value, "stream": True, **more}).encode()
        return self.head(len(body)) + body

    @contextlib.asynccontextmanager
    async def connected(self, sent):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        try:
            writer.write(sent)
            await writer.drain()
            yield reader
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def stream(self):
        """The tokens of a whole stream."""
        async with self.connected(self.request()) as reader:
            lines = [line.decode() async for line in reader]
        assert any("[DONE]" in line for line in lines), lines[:12]
        events = [json.loads(part[6:]) for part in lines if part.startswith("data: {")]
        return [token for event in events for token in event["choices"][0]["token_ids"]]

    async def slow_reader(self):
        """The same, by a client that takes little at a time."""
        text = b""
        async with self.connected(self.request()) as reader:
            while b"[DONE]" not in text:
                text += await reader.read(400)
                await asyncio.sleep(0.01)

    async def huge(self):
        """A text of eight megabytes, which is refused."""
        async with self.connected(self.request(prompt="hello " * 1_390_000)) as reader:
            assert (await reader.readline()).startswith(b"HTTP/1.1 400")

    async def hangs_up(self, sent, after):
        """Send something, wait for something, and leave."""
        async with self.connected(sent) as reader:
            await after(reader)

    def leaving(self):
        """Hang-ups: in the head, in the body, while waiting or being read, after the first token,
        and of an answer in one piece."""
        whole, once = self.request(), self.request(stream=False)
        moment, event = (
            lambda reader: asyncio.sleep(0.05),
            lambda reader: reader.readuntil(b"data:"),
        )
        yield from ((whole[:40], moment), (whole[:-9], moment), (whole, moment))
        yield from ((whole, event), (once, moment))

    async def storm(self, streams, huge, others):
        """All of them at once; the tokens of the streams."""
        half_open = [self.hangs_up(b"", lambda reader: asyncio.sleep(3)) for _ in range(others)]
        leaving = [self.hangs_up(*one) for _ in range(others) for one in self.leaving()]
        rude = [*(self.huge() for _ in range(huge)), *half_open, *leaving]
        rude += [self.slow_reader() for _ in range(others)]
        served = [self.stream() for _ in range(streams)]
        async with asyncio.timeout(20 * LIMIT_S):
            found = await asyncio.gather(*rude, *served)
        return found[len(rude) :]


class Prober(threading.Thread):
    """Asks for the health of a server all the time; ``waits`` are the seconds that it took."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.ended, self.waits = server, threading.Event(), []

    def run(self):
        while not self.ended.wait(0.05):
            begin = time.monotonic()
            self.server.health()
            self.waits.append(time.monotonic() - begin)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self.ended.set()
        self.join(LIMIT_S)


@pytest.mark.slow
def test_a_stream_loads_nothing_once_the_port_is_open(model):
    with ServingProcess(model, environment={"PYTHONPROFILEIMPORTTIME": "1"}) as server:
        wait_until(lambda: "import time:" in server.complaints())
        before = server.complaints()
        assert len(asyncio.run(Clients(server).stream())) == MOST
        server.process.kill()
        _, after = server.stopped()
    assert after == before


@pytest.mark.parametrize(
    ("streams", "huge", "others", "within_s"),
    [(6, 1, 2, 5.0), pytest.param(200, 4, 10, 0.5, marks=pytest.mark.slow)],
)
def test_a_storm_passes(model, streams, huge, others, within_s):
    with ServingProcess(model, seq=4000, finish_s=0) as server:
        clients = Clients(server)

        def stormed():
            with Prober(server) as prober:
                found = asyncio.run(clients.storm(streams, huge, others))
            assert max(prober.waits) < within_s, sorted(prober.waits)[-5:]
            wait_until(server.idle)
            return found

        first = stormed()  # on a server that nobody has asked for anything
        time.sleep(1)  # in which it gives memory back
        before = server.resident_bytes()
        second = stormed()
        wait_until(lambda: server.resident_bytes() < 1.1 * before)
        (alone,) = asyncio.run(clients.storm(1, 0, 0))
        assert len(alone) == MOST
        assert first == second == [alone] * streams

        with contextlib.ExitStack() as stack:
            bodies = [clients.request(max_tokens=3900) for _ in range(4)]
            for body in bodies:
                url = f"{server.address}/completions"
                asking = urllib.request.Request(url, body.partition(b"\r\n\r\n")[2])
                asking.add_header("Content-Type", "application/json")
                stack.enter_context(Asking(asking))
            wait_until(lambda: '"decoding":3,"waiting":1' in server.health())
            server.process.send_signal(signal.SIGTERM)
            assert server.stopped() == (1, "requests that were cut: 4\n")


class Asking(threading.Thread):
    """A client that waits for its answer in a thread."""

    def __init__(self, asking):
        super().__init__(daemon=True)
        self.asking = asking

    def run(self):
        with contextlib.suppress(urllib.error.URLError):
            urllib.request.urlopen(self.asking, timeout=LIMIT_S).read()

    def __enter__(self):
        self.start()

    def __exit__(self, *error):
        self.join(LIMIT_S)
