"""A tokenizer in a process of its own with limits of time and memory."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from meshc.frontend.checkpoints.missing_packages import fail_missing_extra
from meshc.support.diagnostics import fail

PROCESSOR_SECONDS = 20
"""For one text; published tokenizers read a megabyte or more in a second."""
MEMORY_BYTES = 2 << 30
"""For the tokenizer and the work on a text; the largest published ones take a quarter of it."""
MOST_TOKENS = 1 << 22
MOST_CHARACTERS = 16 << 20
_CHARACTERS_A_TOKEN = 16
"""Far more than texts have on average."""
_PATIENCE_MS = 120_000  # for a machine on which seconds of a processor take long
_MOMENT_S = 10
_OVER = {
    "time": lambda: f"takes more than {PROCESSOR_SECONDS} seconds of a processor",
    "memory": lambda: f"takes more than {_memory() >> 20} MiB",
    "tokens": lambda: f"makes more than {MOST_TOKENS} tokens",
    "characters": lambda: f"makes more than {MOST_CHARACTERS} characters",
}
_ENDED_BY = {
    -signal.SIGXCPU: "time",
    -signal.SIGKILL: "time",
    -signal.SIGABRT: "memory",  # how Rust code ends where it gets none
}


@dataclass(frozen=True)
class Opening:
    """A tokenizer: its ``json`` as the ``tokenizers`` package has it, and what other files of a
    model say of its tokens.

    ``declared`` are tokens with their flags, by their ids; those of the JSON stay as they are if
    ``own_first``. ``named`` and ``further`` tokens are special ones, which are added where they are
    missing; a declared token is special if it is a named one. ``last`` are tokens whose flags stand
    before all others.
    """

    json: str
    declared: Sequence[tuple[int, Mapping[str, object]]] = ()
    named: Sequence[Mapping[str, object]] = ()
    further: Sequence[Mapping[str, object]] = ()
    own_first: bool = False
    last: Sequence[Mapping[str, object]] = ()


class TokenizerProcess:
    """The tokenizer of ``opening``, which lies at ``label``.

    One text at a time, from any thread. A text that is too much for it costs the process, and the
    next one starts another. Raises ``missing-extra``, ``tokenizer-invalid``, ``tokenizer-costly``.
    """

    def __init__(self, opening: Opening, label: str) -> None:
        if find_spec("tokenizers") is None:
            fail_missing_extra("tokenizers", f"tokenizing with '{label}'")
        self._opening, self._label = opening, label
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._ended: weakref.finalize[Any, Any] | None = None
        with self._lock:
            opened = self._opened()
        self.largest = int(opened["largest"])
        """The largest id of the vocabulary without added tokens."""
        self.ids: dict[str, int | None] = opened["ids"]
        """The ids of declared and named tokens."""
        special: dict[str, str] = opened["special"]
        self.special = {int(number): text for number, text in special.items()}
        """The texts of special tokens, by their ids."""

    def encode(self, text: str, around: bool, room: int | None = None) -> list[int]:
        """The ids of ``text``, with what the tokenizer puts around a text if ``around``.

        Raises ``tokenizer-failed`` and ``tokenizer-costly``; ``prompt-too-long``, early, for a text
        that is much longer than ``room`` tokens.
        """
        what = f"a text of {len(text)} characters"
        if room is not None and len(text) > _CHARACTERS_A_TOKEN * (room + 1):
            # Another cut at the end of a part changes few tokens, and twice the room is more.
            part = text[: _CHARACTERS_A_TOKEN * (room + 1)]
            if len(self._ids(part, False, what)) > 2 * (room + 1):
                fail(
                    "prompt-too-long",
                    f"{what} has far more tokens than the {room} tokens that there is room for",
                    help="give a shorter text",
                )
        return self._ids(text, around, what)

    def _ids(self, text: str, around: bool, what: str) -> list[int]:
        question = {"do": "encode", "text": text, "around": around, "most": MOST_TOKENS}
        return list(self._asked(question, what)["ids"])

    def decode(self, lists: Sequence[Sequence[int]]) -> list[str]:
        """The texts of lists of ids without special tokens. Raises ``tokenizer-failed`` and
        ``tokenizer-costly``."""
        question = {"do": "decode", "lists": list(map(list, lists)), "most": MOST_CHARACTERS}
        answer = self._asked(question, f"{sum(map(len, lists))} tokens")
        return list(answer["texts"])

    def described(self) -> str:
        """The tokenizer, with all added tokens, in the JSON of the ``tokenizers`` package. Raises
        ``tokenizer-failed`` and ``tokenizer-costly``."""
        return str(self._asked({"do": "describe"}, "its own description")["json"])

    def _asked(self, question: Mapping[str, object], what: str) -> dict[str, Any]:
        with self._lock:
            if self._running is None:
                self._opened()
            answer = self._exchanged(question)
        if "fault" in answer:
            self._fail(answer, f" for {what}", "tokenizer-failed")
        return answer

    def _opened(self) -> dict[str, Any]:
        """The answer of a process that was started now."""
        # -P keeps the folder of the script, and with it our own modules, from being imported.
        self._running = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},  # threads take memory
            start_new_session=True,  # an interrupt of the terminal is for us
        )
        self._ended = weakref.finalize(self, _end, self._running)
        opening = self._opening
        answer = self._exchanged(
            {
                "do": "open",
                "json": opening.json,
                "declared": list(opening.declared),
                "named": list(opening.named),
                "further": list(opening.further),
                "own_first": opening.own_first,
                "last": list(opening.last),
                "bytes": _memory(),
            }
        )
        if "fault" in answer:
            if self._running is not None:
                self._close()
            self._fail(answer, "", "tokenizer-invalid")
        return answer

    def _exchanged(self, question: Mapping[str, object]) -> dict[str, Any]:
        """The answer to ``question``; a fault where the process ended instead."""
        running = self._running
        assert running is not None and running.stdin is not None and running.stdout is not None
        asked = json.dumps({**question, "seconds": PROCESSOR_SECONDS}).encode()
        ready = select.poll()
        ready.register(running.stdout, select.POLLIN)
        line = b""
        try:
            with suppress(BrokenPipeError):  # it ended while it read
                running.stdin.write(asked + b"\n")
                running.stdin.flush()
            if ready.poll(_PATIENCE_MS):
                line = running.stdout.readline()
        except BaseException:
            self._close()  # an interrupt: the answer would be taken for that of the next question
            raise
        if line.endswith(b"\n"):
            return dict(json.loads(line))
        with suppress(subprocess.TimeoutExpired):
            running.wait(_MOMENT_S)  # it ends by itself, unless it was too slow
        code = self._close()
        words = f"its process ended with {code}"
        return {"fault": _ENDED_BY.get(code, "failed"), "words": words}

    def _close(self) -> int:
        """End the process; what it ended with."""
        assert self._running is not None and self._ended is not None
        running, self._running = self._running, None
        self._ended.detach()
        return _end(running)

    def _fail(self, answer: Mapping[str, Any], what: str, code: str) -> NoReturn:
        fault, words = answer["fault"], str(answer.get("words", ""))
        name = f"the tokenizer in '{self._label}'"
        if fault in _OVER:
            help = "no published tokenizer does; get the file again, or give shorter texts"
            fail("tokenizer-costly", f"{name} {_OVER[fault]()}{what}", help=help)
        if code == "tokenizer-invalid":
            fail(code, f"{name} is not valid: {words}", help="get the file again")
        fail(code, f"{name} fails{what}: {words}", help="get the file again, or give other texts")


def _memory() -> int:
    """Bytes that a process may take: those of the limit that meshc itself has, where it is less."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return MEMORY_BYTES if limit == resource.RLIM_INFINITY else min(MEMORY_BYTES, limit)


def _end(running: subprocess.Popen[bytes]) -> int:
    """End ``running``, which has ended, waits for a question or works on one whose answer nobody
    takes; what it ended with."""
    if running.poll() is None:
        running.kill()
    for stream in (running.stdin, running.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):  # a question that was not read
                stream.close()
    return running.wait()
