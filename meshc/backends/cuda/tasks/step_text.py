"""The text of a kernel that is made of a placed program of tasks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from meshc.analysis.cuda.blocks import THREADS
from meshc.analysis.tasks.tiles import MOST_VECTORS
from meshc.backends.cuda.gpu_shares import TRANSPORTS
from meshc.backends.cuda.launches import OF_ALL, OF_EACH
from meshc.backends.cuda.launches import RANK as RANK_NUMBER
from meshc.backends.cuda.program import (
    AHEAD_OF,
    OWNERS,
    TASKS,
    Buffer,
    Kernel,
)
from meshc.backends.cuda.tasks import groups
from meshc.backends.cuda.tasks.attending import Attention
from meshc.backends.cuda.tasks.chosen_experts import HEAR, Choosing
from meshc.backends.cuda.tasks.clusters import LEAVE, MEET, clusters_of
from meshc.backends.cuda.tasks.elements import Elements
from meshc.backends.cuda.tasks.families import (
    Loop,
    Phase,
    Placed,
    folds,
    phases_of,
    streamed_products,
)
from meshc.backends.cuda.tasks.kernel_parts import KernelPart
from meshc.backends.cuda.tasks.neighbours import Neighbours
from meshc.backends.cuda.tasks.products import Product, multiplied_alike
from meshc.backends.cuda.tasks.ring_room import Form, Room, has_columns
from meshc.backends.cuda.tasks.statements import OVER, SYNC, Locals, Text
from meshc.backends.cuda.tasks.storage import CHOSEN, LOGITS, OF_GPUS, RUNS_BEFORE, Storage
from meshc.backends.cuda.tasks.streamed_products import (
    HEAR as HEAR_OF_COLUMNS,
)
from meshc.backends.cuda.tasks.streamed_products import (
    TELL,
    CopiedProduct,
    StreamedProduct,
    of_memory,
)
from meshc.backends.templates import render
from meshc.ir.batch import LENGTH, POSITION
from meshc.ir.brought_functions import texts_of
from meshc.ir.module import Module
from meshc.ir.ops import task
from meshc.ir.ranks import RANK
from meshc.support.diagnostics import fail

_HALVES = {
    task.COUNTER: ("arrive(met, target, me);", "wait(met, target, me);"),
    task.RANKS: ("arrive_ranks(met, target, told_of, heard, me);", "wait_ranks(told, heard, me);"),
}
"""The two halves of a meeting of all blocks, of this GPU or of all."""
_PACED = frozenset({task.COUNTER, task.TAGS, task.RANKS})
"""Meetings in front of which fewer tiles are asked for at a time, so that they do not wait."""
PACE = "pace.meet();"
"""What both sides of a ring do at each of these that is in front of a phase that brings tiles."""

MOST_STEPS, MOST_ENDS = 64, 16
"""Steps of a launch, and tokens that end a text, of which a program takes notice itself."""
_GOING_ON = ("tokens", "cached", "left", "stream", "chosen")
"""Buffers that a choice writes, with which the next step goes on."""
_GO_ON = (
    "if (me == 0)  // the thread that has given the token",
    f"    mc::go_on<{MOST_ENDS}>({CHOSEN}[b], {LOGITS} + b * {{words}}, tokens + b, cached + b,",
    "        left + b, stream + b * 4, ends, chosen + row * BATCH + b);",
)
"""What follows the choice of a token, one of so many words, in the task of its request."""

_ELEMENT = (
    "    const int b = me / 16;  // request of this thread's element of a task",
    "    const int i = me % 16;  // its lane",
)
"""What products begin with whose sums a thread has one of."""
_WORDS = ("met", "runs", "told", "told_before")
"""Buffers of one word that counts."""
OWN = ("tokens", "cached", "pages", "count", groups.LAYERS, "runs")
"""Buffers of which a kernel that reads prompts has its own, called after it."""

_NAME = re.compile(r"\b[A-Za-z_]\w*")

_TYPES = {"f32": "float", "i32": "int", "e4m3": "mc::u8"}
"""What elements of buffers are in C, of those of other types the type of the kernel."""
_KINDS = {
    "ASKED": "T",
    "FRESH": "T",
    "NEW_ROWS": "mc::u8",
    "JOINED": "float",
    "STATISTICS": "float",
    "WORK": "unsigned char",
}
"""What attention keeps in its parts of shared memory."""


@dataclass
class StepText:
    """Writes the kernel of the module whose memory is ``storage``; what ranks give each other goes
    by ``transport``. One that reads prompts is called ``reader``. Of a module that is cut it writes
    the kernel of one ``part``."""

    storage: Storage
    transport: str = ""
    reader: str = TASKS
    part: KernelPart | None = None
    locals: Locals = field(default_factory=Locals)
    attending: Locals = field(default_factory=Locals)

    def __post_init__(self) -> None:
        self.forms: list[Form] = []
        self.meetings = self.of_ranks = self.paced = 0
        self.ranks = 0 if self.module.ranks is None else self.module.ranks.count
        self.device = self.module.the_device()
        self.bring, self.compute = Text(2), Text(1)
        self.blocks = 1
        self.choosing = Choosing(self.storage)
        self.made: Sequence[str] = ()  # how the columns were made that all blocks have
        self.clusters = clusters_of(self.module)
        body = phases_of(self.module) if self.part is None else self.part.phases
        rounds = {} if self.part is None else self.part.rounds
        ranges = self.storage.scalars | {var: (0, count - 1) for var, count in rounds.items()}
        ranges |= {RANK: (0, self.ranks - 1)} if self.ranks else {}
        source = self.storage.source
        self.nodes = int(source.option(groups.NODES, 1))
        self.grouped = self.nodes > 1 or bool(source.option(groups.LAYER_GROUPS, False))
        self._walk(body, ranges, some=self.grouped)
        self.layers, self.parts_of_layers = 0, dict[str, int]()
        if self.nodes > 1:
            self.layers, self.parts_of_layers = groups.of_layers(self.storage, body, self.nodes)
        self._check_tokens()
        if self.products:
            self.compute.lines[:0] = _ELEMENT
        self._leave()
        if self.clusters.size > 1:
            self.compute.add(*LEAVE)

    @property
    def module(self) -> Module:
        """The placed program."""
        return self.storage.module

    @property
    def products(self) -> bool:
        """Whether blocks have left sides of products for themselves."""
        return any(map(has_columns, self.forms))

    def _check_tokens(self) -> None:
        """Raise ``cuda-shape`` for more tokens than a thread has elements of."""
        count, of_requests = self.storage.tokens, "requests"
        if self.storage.together > 1:
            of_requests = "tokens of requests"
        what = "tokens" if self.storage.of_prompt else of_requests
        if count > MOST_VECTORS and self.products:
            words = (
                f"{count} {what}, and a thread has an element of one of {MOST_VECTORS} at the most"
            )
            more = f"--batch-tokens {MOST_VECTORS}, or fewer" if self.storage.owned else None
            fail("cuda-shape", f"a step has {words}", help=more)

    def _leave(self) -> None:
        """The last block keeps what the next run must know of this one."""
        runs, kept = self.storage.runs_apart, []
        leave = "mc::grid_leave(met, target + mc::blocks())"
        if runs:
            kept.append(f"runs[0] = ({RUNS_BEFORE} + 1) % {runs};")
        if self.of_ranks:
            kept.append("told_before[0] = heard;")
        if len(kept) > 1:
            with self.compute.within(f"if (me == 0 && {leave}) {{"):
                self.compute.add(*kept)
        elif kept:
            self.compute.add(f"if (me == 0 && {leave}) {kept[0]}")
        elif self.meetings:
            self.compute.add(f"if (me == 0) {leave};")

    @property
    def name(self) -> str:
        """What the kernel is called."""
        if self.storage.choices:
            return "choose"
        if self.part is not None:
            return self.part.name
        return self.reader if self.storage.of_prompt else "step"

    # --- phases

    def _walk(
        self,
        body: Sequence[Phase | Loop],
        ranges: dict[str, tuple[int, int]],
        times: int = 1,
        some: bool = False,
    ) -> None:
        """Write ``body``, which is done so many ``times``; of ``some`` layers only, if asked."""
        before = 0
        for one in body:
            if isinstance(one, Phase):
                self.of_ranks += times * (one.meets == task.RANKS)
                self._phase(one, ranges, groups.there(before) if some else "")
                continue
            inner = {**ranges, one.var: (0, one.count - 1)}
            head = groups.rounds(one, before if some else None)
            with self.bring.within(head), self.compute.within(head):
                self.choosing.gates, self.made = None, ()
                self._walk(one.body, inner, times * one.count)
                self.choosing.gates, self.made = None, ()
            before += one.count
        if some:
            groups.keep_rows(self.storage, body)

    def _phase(self, phase: Phase, ranges: dict[str, tuple[int, int]], when: str = "") -> None:
        self.locals.restart()
        forms = [self._form(family, ranges, phase) for family in phase.families]
        self.forms += forms
        self.blocks = max(self.blocks, phase.tasks) if not self.clusters.size else 1
        names = ", ".join(family.op.name for family in phase.families)
        brought = [form for form in forms if not isinstance(form, Elements)]
        choice = self.choosing.made_for(phase, ranges)
        if choice is not None:
            self.bring.add(HEAR)
        paced = bool(brought) and self._paces(phase)
        self.paced += paced
        if brought:
            with self.bring.within(f"{when}{{  // {phase.name}"):
                self.bring.add(*[PACE] * paced)
                self._bring(phase, brought)
        title = phase.name if names == phase.name else f"{phase.name}: {names}"
        self.compute.add("", f"// ---- {title}")
        with self.compute.within(f"{when}{{"):
            self.compute.add(*[PACE] * paced)
            at_once = self._columns(phase, forms, choice) or not _attend(forms)
            self.compute.add(*[OVER] * (paced and at_once), _run(phase, forms))
            if _stream_columns(forms):
                self.compute.add(TELL)
            self._ask(phase, _copied(forms))
            for form in forms:
                form.compute(self.compute)
            self.compute.add(*[OVER] * (paced and not at_once))
        if when or not self._keeps_columns(phase, forms):
            self.made = ()

    def _keeps_columns(self, phase: Phase, forms: Sequence[Form]) -> bool:
        """Whether behind ``phase`` all blocks have the columns that they had in it, and these are
        still of what they were made of."""
        if self.clusters.size or any(isinstance(form, Attention) for form in forms):
            return False
        products = [form for form in forms if isinstance(form, Product)]
        if any(not has_columns(form) or form.of_tasks for form in products) or _copied(forms):
            return False
        read = {name for line in self.made for name in _NAME.findall(line)}
        ops = (op for family in phase.families for op in family.op.regions[0].walk())
        given = (op.view.buffer for op in ops if isinstance(op, task.Give))
        scratch = (value for value in given if self.storage.role(value) != "state")
        return not any(self.storage.scratch(value) in read for value in scratch)

    def _paces(self, phase: Phase) -> bool:
        """Whether fewer tiles than usual are asked for in front of the meeting before ``phase``."""
        fewer = self.device.early_bytes_in_flight < self.device.bytes_in_flight
        return fewer and phase.meets in _PACED

    def _bring(self, phase: Phase, forms: Sequence[Product | Attention]) -> None:
        text = self.bring
        text.add(_run(phase, forms))
        if _stream_columns(forms):
            text.add(HEAR_OF_COLUMNS)
        for form in forms:
            if isinstance(form, Attention):
                form.bring(text)
                continue
            with text.within("if (mc::lane() == 0) {"):
                form.bring(text)
            text.add("item = mc::shuffle(item, 0);")

    def _columns(self, phase: Phase, forms: Sequence[Form], choice: str | None) -> bool:
        """What all tasks of a phase have, asked for before blocks have met, unless they have it
        from a phase before, and whether there is something; and the choice of experts, which the
        warp that brings waits for."""
        text = self.compute
        products = [form for form in forms if has_columns(form)]
        shared = [p for p in products if not p.of_tasks]
        if len({p.key for p in shared}) > 1 or 0 < len(shared) < len(products):
            fail("cuda-graph", f"products of the phase {phase.name} have different left sides")
        multiplied_alike(products)
        made = shared[0].columns() if shared else None
        ahead, then = Text(text.depth), Text(text.depth)
        if made is not None:
            made.ahead(ahead)
        if made is not None and not _copied(shared):
            made.then(then)
        lines = [*ahead.lines, *then.lines]
        if lines == self.made:
            ahead, then = Text(), Text()
        elif lines:
            self.made = lines
        if phase.meets == task.CLUSTER:
            text.lines += ahead.lines
            text.add(MEET)
        elif phase.meets in _HALVES:
            arrive, wait = _HALVES[phase.meets]
            self.meetings += 1
            text.add(arrive)
            text.lines += ahead.lines
            text.add(wait)
        else:
            text.lines += ahead.lines if phase.meets else []
            text.add(SYNC)
            text.lines += ahead.lines if not phase.meets else []
        if choice is not None:
            text.add(choice)
        text.lines += then.lines
        return made is not None

    def _ask(self, phase: Phase, copied: Sequence[CopiedProduct]) -> None:
        """The left side that ``copied`` products of all tasks have, where a block has one of them,
        which then needs all of it."""
        shared = [form for form in copied if not form.of_tasks]
        if not shared:
            return
        if phase.groups:
            fail("cuda-graph", "left sides of products that lie in memory are dealt to clusters")
        some = "mine.begin < mine.end"
        if len(shared) < len(phase.families):
            each = (form.family for form in shared)
            some = " || ".join(f"mine.first({f.first}) < mine.last({f.end})" for f in each)
        self.compute.add(f"if ({some}) {shared[0].asked}")

    def _form(self, family: Placed, ranges: dict[str, tuple[int, int]], phase: Phase) -> Form:
        if folds(family):
            alone = len(phase.families) == 1 and not phase.groups
            given = family, self.storage, self.attending, ranges, alone, self._paces(phase)
            made = Attention(*given)
            if any(one.most != made.neighbours.most for one in _neighbours(self.forms)):
                made.neighbours.alone()  # runs of neighbours are found once for all families
            return made
        if (in_memory := of_memory(family, self.storage)) is not None:
            return in_memory(family, self.storage, self.locals, ranges)
        if streamed_products(family):
            return Product(family, self.storage, self.locals, ranges)
        gives = (op.view.buffer for op in family.ops if isinstance(op, task.Give))
        behind: tuple[str, ...] = ()
        if self.storage.choices and any(self.storage.role(one) == "out" for one in gives):
            behind = tuple(line.format(words=self.storage.choices) for line in _GO_ON)
        return Elements(family, self.storage, self.locals, ranges, behind)

    # --- the whole

    def text(self, head: bool = True) -> tuple[str, Kernel, tuple[str, ...]]:
        """The kernel, what it takes of a GPU, and the names of its arguments. A file begins with a
        ``head``."""
        room = Room(
            self.storage,
            self.clusters,
            self.forms,
            self.locals,
            self.attending,
            self.choosing,
            self.paced > 0,
        )
        arena, tile, stages, flying = room.arena()
        storage, count = self.storage, self.storage.tokens
        names = {part.name for part in arena.parts}
        reads_position = not storage.has_lengths and not storage.choices
        if self.part is not None:
            reads_position &= POSITION in self._words
        arguments, parameters = self._arguments(reads_position)
        text = render(
            "meshc.backends.cuda.tasks",
            "step.cu.jinja",
            head=head,
            dtype=str(storage.dtype),
            kernel=self.name,
            of_prompt=storage.of_prompt,
            of_choice=storage.choices > 0,
            most_ends=MOST_ENDS,
            has_lengths=storage.has_lengths,
            together=storage.together,
            requests=storage.requests,
            ahead_of=AHEAD_OF if storage.owned else "",
            nhd=storage.rows.nhd,
            scales_behind=storage.scales_behind and storage.codes_caches,
            brought="".join(texts_of(self.module, "cuda", "cuda-graph").values()),
            length=LENGTH,
            tokens=count,
            lanes=-(-max(32, 16 * count) // 32) * 32,
            shared_bytes=arena.bytes,
            stages=stages,
            tile_bytes=tile,
            tile_blocks=storage.tile_blocks,
            flying=flying,
            early=min(-(-self.device.early_bytes_in_flight // tile), flying) if self.paced else 0,
            shared=[p for p in arena.parts if p.name != "COLUMNS" or self.products],
            pages=storage.capacity_pages,
            parameters=", ".join(parameters),
            position=POSITION,
            bring=str(self.bring),
            compute=str(self.compute),
            runs_before=RUNS_BEFORE if storage.runs_apart else "",
            of_layers=groups.OF_A_RUN if self.grouped else (),
            parts_of_layers=self.parts_of_layers if self.nodes > 1 else {},
            meets=self.meetings > 0,
            reads_position=reads_position,
            part=self.part,
            has_products=self.products,
            has_locals="LOCALS" in names,
            attending=[(kind, name) for name, kind in _KINDS.items() if name in names],
            cluster=self.clusters.size,
            ranks=self.ranks if self.of_ranks else 0,
            of_cluster=self.clusters.arrays(storage),
            experts=self.choosing.most,
            of_columns=_stream_columns(self.forms),
            copies=bool(_copied(self.forms)),
            neighbours=next(iter(_neighbours(self.forms)), None),
            renews=any(isinstance(form, Attention) and form.renews for form in self.forms),
            of_memory=_stream_columns(self.forms) or bool(_copied(self.forms)),
        )
        shared = {part.name.lower(): (part.at, part.bytes) for part in arena.parts}
        blocks = self.clusters.blocks or max(1, min(self.device.cores, self.blocks))
        kernel = Kernel(
            f"{self.name if self.part is None else 'step'}.cu",
            blocks,
            THREADS,
            max(self.clusters.size, 1),
            arena.bytes,
            shared,
            meets=self.of_ranks > 0,
            whole_grid=self.part is None,
            least_blocks=self.clusters.least_blocks,
            meetings=self.of_ranks,
        )
        return text, kernel, arguments

    @cached_property
    def _words(self) -> frozenset[str]:
        """The names that the text of all phases has."""
        return frozenset(_NAME.findall(f"{self.bring}{self.compute}"))

    def _takes(self, name: str, reads_position: bool) -> bool:
        """Whether memory called ``name`` is an argument: the whole step takes all, a part of it
        what its text names."""
        if self.part is None or name in self._words:
            return True
        if name == AHEAD_OF:
            return self.storage.has_lengths
        return name == "cached" and (reads_position or self.storage.has_lengths)

    def _arguments(self, reads_position: bool) -> tuple[tuple[str, ...], list[str]]:
        """What a launch names, but for the rounds of loops around a part, and the parameters."""
        storage = self.storage
        storage.buffers["tokens"] = Buffer("i32", (storage.tokens,), "input")
        storage.buffers["cached"] = Buffer("i32", (storage.tokens,), "input")
        if storage.choices:
            storage.buffers["left"] = Buffer("i32", (storage.tokens,), "input")
            storage.buffers["ends"] = Buffer("i32", (MOST_ENDS,), "input")
            storage.buffers["chosen"] = Buffer("i32", (MOST_STEPS, storage.tokens), "output")
        else:
            pages = storage.requests, storage.capacity_pages
            storage.buffers["pages"] = Buffer("i32", pages, "input")
        if storage.owned and not storage.choices:
            for name in (OWNERS, AHEAD_OF):
                storage.buffers[name] = Buffer("i32", (storage.tokens,), "input")
        if storage.of_prompt:
            storage.buffers["count"] = Buffer("i32", (1,), "input")
        if self.grouped:
            storage.buffers[groups.LAYERS] = Buffer("i32", (2,), "input")
        if self.part is None:
            storage.buffers["met"] = Buffer("i32", (1,), "scratch")
        if storage.runs_apart:
            storage.buffers["runs"] = Buffer("i32", (1,), "scratch")
        if self.of_ranks:
            storage.buffers["told"] = Buffer("i32", (1,), "counters")
            storage.buffers["told_before"] = Buffer("i32", (1,), "scratch")
        names, parameters = [], []
        for name, weight in storage.weights.items():
            if not self._takes(name, reads_position):
                continue
            names.append(name)
            kind = "unsigned char" if weight.codes else f"{self.name}_::T"
            parameters.append(f"const {kind}* {name}")
        own = f"{self.reader}_" if storage.of_prompt else ""
        for name, buffer in storage.buffers.items():
            if not self._takes(name, reads_position):
                continue
            names.append(f"{own}{name}" if name in OWN else name)
            kind = _TYPES.get(buffer.dtype, f"{self.name}_::T")
            writes = storage.choices and name in _GOING_ON
            read = "const " if buffer.role in ("input", "constant") and not writes else ""
            word = "mc::u32" if name in _WORDS else kind
            parameters.append(f"{read}{word}* {name}")
        for value in storage.roles:
            if storage.of_ranks(value):
                names.append(storage.name(value) + TRANSPORTS[self.transport])
                star = "*" if TRANSPORTS[self.transport] == OF_ALL else "* const*"
                parameters.append(f"float{star} {storage.name(value)}{OF_GPUS}")
        if storage.choices:
            parameters.append("int row")  # of ``chosen``; which, a launch says
        if self.of_ranks:
            names += ["told" + OF_EACH, RANK_NUMBER]
            parameters += ["mc::u32* const* told_of", f"int {RANK}"]
        if self.part is not None:
            parameters += [f"int {var}" for var in self.part.rounds]
        return tuple(names), parameters


def _run(phase: Phase, forms: Sequence[Form]) -> str:
    """The declaration of the tasks of a ``phase`` that are a block's."""
    several = _neighbours(forms)
    return several[0].run if several else phase.run()


def _neighbours(forms: Sequence[Form]) -> list[Neighbours]:
    """The families of which tasks of several tokens are computed at once."""
    attending = [form.neighbours for form in forms if isinstance(form, Attention)]
    return [one for one in attending if one.most > 1]


def _copied(forms: Sequence[Form]) -> list[CopiedProduct]:
    """The products whose left sides, which lie in memory, are copied."""
    return [form for form in forms if isinstance(form, CopiedProduct)]


def _attend(forms: Sequence[Form]) -> bool:
    """Whether there is attention, whose tasks say themselves when they have what they need."""
    return any(isinstance(form, Attention) for form in forms)


def _stream_columns(forms: Sequence[Form]) -> bool:
    """Whether vectors come through the ring, once blocks have met."""
    return any(isinstance(form, StreamedProduct) for form in forms)
