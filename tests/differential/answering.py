"""Continuing prompts with a compiled language model, whichever target and options it has: by the
host's choice of tokens or the program's own, with drafts or as requests of a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import meshc
from meshc.backends.cuda import CpuMachine, CpuNode, LanguageModel, Nodes, PagedModel, from_json
from meshc.backends.cuda.drafted import DraftedModel
from meshc.backends.cuda.executor import QUICK, SCHEDULES, Mode
from meshc.backends.cuda.mixed import MixedModel
from meshc.backends.cuda.program import StepProgram
from meshc.backends.hosts import PythonHost, WaferHost
from meshc.backends.python import load_program
from meshc.serving.engines import MixingEngine
from meshc.support.output import write_directory

Rows = list[list[np.ndarray]]
"""For each prompt the logits behind each of its tokens; none where the program gives none."""
Prompts = Sequence[Sequence[int]]


class Asked(Protocol):
    """What a case says of the prompts that a program continues."""

    target: str
    options: dict[str, Any]
    steps: int
    seed: int
    order: bool

    def prompts(self) -> list[list[int]]: ...

    def given(self) -> Mapping[str, np.ndarray]: ...


def answers(case: Asked, compiled: meshc.Compiled, folder: Path) -> tuple[Rows, list[int]]:
    """The logits of each step, of all prompts side by side, and the tokens in the same order.

    Raises AssertionError for tokens that are not those of the logits in front of them.
    """
    place = folder / "program"
    write_directory(place, compiled.files, compiled.facts)
    rows, tokens = _CONTINUED[case.target](case, compiled, place)
    for logits, own in zip(rows, tokens, strict=True):
        assert len(own) == case.steps, f"{len(own)} tokens, not {case.steps}"
        chosen = [int(row.argmax()) for row in logits]
        assert not logits or chosen == own, f"tokens {own}, but logits say {chosen}"
    steps = range(case.steps)
    found = [[own[step].reshape(1, 1, -1) for own in rows] for step in steps if all(rows)]
    return found, [own[step] for step in steps for own in tokens]


Continued = tuple[Rows, list[list[int]]]
"""Logits and tokens of each prompt."""


def _python(case: Asked, compiled: meshc.Compiled, folder: Path) -> Continued:
    if case.options.get("serving"):
        host = PythonHost(folder, case.given())
        return _served(case, host, host._program.begin, _layers(compiled))
    order = None
    if case.order:
        columns, rows = map(int, case.options["mesh"].split("x"))
        order = np.random.default_rng(case.seed).permutation(columns * rows)
    model = load_program(folder).load(case.given(), order)
    return _in_batches(case, model.generate_all)


def _csl(case: Asked, compiled: meshc.Compiled, folder: Path) -> Continued:
    host = WaferHost(folder, case.given())
    return _in_batches(
        case, lambda prompts, count, tell: host.generate_all(prompts, count, tell, (), _likeliest)
    )


def _likeliest(number: int, row: np.ndarray) -> int:
    return int(row.argmax())


def _in_batches(case: Asked, generate_all: Any) -> Continued:
    """All prompts together, or one after the other where a step has one request."""
    prompts = case.prompts()
    size = int(case.options.get("batch", 1))
    rows: Rows = [[] for _ in prompts]
    tokens: list[list[int]] = []
    for first in range(0, len(prompts), size):

        def tell(number: int, token: int, row: np.ndarray | None, first: int = first) -> None:
            if row is not None and np.size(row) > 1:  # more than a token that cores chose
                rows[first + number].append(np.array(row, np.float64).ravel())

        tokens += generate_all(prompts[first : first + size], case.steps, tell)
    return rows, tokens


def _cuda(case: Asked, compiled: meshc.Compiled, folder: Path) -> Continued:
    program = from_json(compiled.files["manifest.json"])
    random = np.random.default_rng([case.seed, 11])
    mode = Mode(str(random.choice(SCHEDULES)), bool(random.integers(2)), case.seed)
    given = program, _machine(program, compiled.files, mode), case.given()
    if case.options.get("serving"):
        paged = (MixedModel if program.mixes else PagedModel)(*given)
        each = min(-(-paged.capacity // paged.page), paged.pages // paged.requests)
        pages = random.permutation(paged.pages)[: each * paged.requests].reshape(-1, each)

        def begin(request: int) -> None:
            paged.lay(request, pages[request].tolist())

        return _served(case, paged, begin, _layers(compiled))
    model = (DraftedModel if program.columns > 1 else LanguageModel)(*given)
    pages = random.permutation(model.machine.read("pages").ravel())
    model.machine.write("pages", pages.reshape(program.batch, -1))
    if isinstance(model, DraftedModel) and random.integers(4):
        _, plain = _in_batches(case, model.generate_all)
        drafter = _Drafter(case.prompts(), plain, program.vocabulary, random)
        return _in_batches(
            case,
            lambda prompts, count, tell: model.generate_drafted(
                prompts, count, tell, (), _likeliest, drafter.of(prompts)
            ),
        )
    if model.most_steps and random.integers(3) == 0:
        steps = int(random.integers(1, model.most_steps + 1))
        return _in_batches(
            case,
            lambda prompts, count, tell: model.generate_chosen(
                prompts, count, lambda number, token: tell(number, token, None), (), steps
            ),
        )
    return _in_batches(case, model.generate_all)


def _machine(program: StepProgram, texts: Mapping[str, str], mode: Mode) -> Any:
    """The executor of one GPU, or of all that the program is dealt to."""
    if program.ranks is not None:
        return CpuNode(program.kernels, texts, program.ranks.count, mode, QUICK)
    first = CpuMachine(program.kernels, texts, mode, QUICK)
    if program.nodes is None:
        return first
    return Nodes(program, [first, *(first.twin() for _ in range(program.nodes.count - 1))])


class _Drafter:
    """Guesses right tokens and wrong ones, of texts whose tokens are known."""

    def __init__(
        self, prompts: Prompts, tokens: Prompts, vocabulary: int, random: np.random.Generator
    ) -> None:
        self._texts = [[*prompt, *own] for prompt, own in zip(prompts, tokens, strict=True)]
        self._vocabulary, self._random = vocabulary, random
        self._now: list[list[int]] = []

    def of(self, prompts: Prompts) -> _Drafter:
        """The same for some of the prompts, which are numbered anew."""
        self._now = [
            next(text for text in self._texts if text[: len(prompt)] == [*prompt])
            for prompt in prompts
        ]
        return self

    def draft(self, texts: Mapping[int, tuple[Sequence[int], int]]) -> dict[int, list[int]]:
        """See :class:`meshc.backends.cuda.drafted.Drafter`."""
        found = {}
        for request, (text, most) in texts.items():
            own = self._now[request][len(text) : len(text) + most]
            own += self._random.integers(0, self._vocabulary, most - len(own)).tolist()
            wrong = self._random.integers(0, self._vocabulary, most).tolist()
            right = int(self._random.integers(0, most + 1))
            drafts = own[:right] + wrong[right:]
            found[request] = drafts[: int(self._random.integers(0, most + 1))]
        return found


def _layers(compiled: meshc.Compiled) -> int:
    """Layers that a program which serves may let prompts pass in groups."""
    return len(compiled.facts["serving"]["layer_costs"])


def _served(case: Asked, engine: Any, begin: Any, layers: int) -> Continued:
    """Each prompt is read by pieces of any length, perhaps by groups of layers, between steps of
    those that are read, or beside them where the engine mixes tokens; in each step goes on who
    happens to."""
    random = np.random.default_rng([case.seed, 17])
    prompts = case.prompts()
    places = random.permutation(engine.requests)[: len(prompts)].tolist()
    rows: Rows = [[] for _ in prompts]
    texts = [list(prompt) for prompt in prompts]
    reading = dict.fromkeys(range(len(prompts)), 0)
    for place in places:
        begin(place)
    while any(len(own) < case.steps for own in rows):
        beside: dict[int, tuple[list[int], int]] = {}
        for number in sorted(reading):
            left = len(prompts[number]) - 1 - reading[number]
            if left and random.integers(2):
                size = min(left, _piece(engine, left, random))
                first = reading[number]
                part = prompts[number][first : first + size]
                reading[number] += size
                if isinstance(engine, MixingEngine) and random.integers(4):
                    beside[places[number]] = [*part], first
                    continue
                values = engine.embedded(part, first)
                for group in _groups(engine, layers, random):
                    values = engine.read(places[number], values, first, group)
            if reading[number] == len(prompts[number]) - 1:
                del reading[number]
        ready = [
            number
            for number in range(len(prompts))
            if number not in reading and len(rows[number]) < case.steps and random.integers(4)
        ]
        asked = {places[n]: (texts[n][-1], len(texts[n]) - 1) for n in ready}
        if beside:
            found = engine.mix(beside | {p: ([own], at) for p, (own, at) in asked.items()}, asked)
        else:
            found = engine.step(asked) if asked else {}
        for place, logits in found.items():
            number = places.index(place)
            rows[number].append(np.array(logits, np.float64).ravel())
            texts[number].append(int(rows[number][-1].argmax()))
    tokens = [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]
    return rows, tokens


def _piece(engine: Any, left: int, random: np.random.Generator) -> int:
    """Tokens of a piece: whole multiples of what a run reads, or all that are left."""
    most = min(left, engine.most)
    whole = most // engine.multiple
    if not whole or (most == left and random.integers(3) == 0):
        return most
    return int(random.integers(1, whole + 1)) * engine.multiple


def _groups(engine: Any, layers: int, random: np.random.Generator) -> Iterator[range]:
    """All layers, or groups of them one behind the other."""
    cuts = [n for n in range(1, layers) if engine.grouped and random.integers(2)]
    for first, end in zip([0, *cuts], [*cuts, layers], strict=True):
        yield range(first, end)


_CONTINUED = {"python": _python, "csl": _csl, "cuda": _cuda}
