"""Serving: a model compiled for requests that come and go, and the server that schedules them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from meshc.backends.host_protocols import Backend, Loading
from meshc.backends.registry import target_names
from meshc.backends.request import CompileRequest
from meshc.backends.target import Engine, target_named, target_of
from meshc.backends.target_options import MeshOptions
from meshc.driver.backends import load_engine
from meshc.driver.chatting import Chat, open_chat
from meshc.driver.compiling import compile_loaded
from meshc.driver.decoded import kept
from meshc.driver.executable import Program
from meshc.driver.generating import read_prompts
from meshc.driver.models import LoadedModel, load_any
from meshc.driver.scheduling import groups_of
from meshc.driver.weights import Progress, check_present, open_weights
from meshc.frontend.chat import conversation_of
from meshc.frontend.checkpoints import ModelConfig, Tokenizer, load_tokenizer
from meshc.passes.instruments import Instrument
from meshc.passes.mesh.forms.problem import AUTO
from meshc.serving.drafting import Drafter, OfModel, Repeats
from meshc.serving.engine import Server
from meshc.serving.engines import MixingEngine, PagedEngine, WholeEngine
from meshc.serving.group_counts import Fixed
from meshc.serving.lengths import Trace
from meshc.serving.policies import Policy, policy, with_long_prompts
from meshc.serving.replaying import Entry, replayed
from meshc.serving.scheduler import Scheduler
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.scratch import scratch_folder

USUAL_REQUESTS = 8
"""Requests that a server continues at once unless somebody asks for another number."""


@dataclass(frozen=True)
class ServeRequest:
    """How to serve: ``policy`` is ``chunked``, ``layered`` or ``combined``; ``chunk``, ``groups``,
    ``force``, ``long_chunk`` and ``long_prompts`` are as those of ``meshc schedule``. ``weights``
    is the path of a checkpoint, None for the model's own. ``whole`` leaves room for prompts in one
    piece also where the policy cuts them. With ``cache`` decoded weights are kept for later runs.
    With ``prefixes`` what requests begin with alike is read once, where caches do not move rows.
    Of a program that verifies drafts ``draft_model`` drafts, what ``meshc compile`` takes, with
    ``draft_weights``; empty for what followed the last tokens of a text before.
    """

    policy: str = "chunked"
    chunk: int | None = None
    groups: str = ""
    force: bool = False
    weights: str | None = None
    whole: bool = False
    long_chunk: int | None = None
    long_prompts: int | None = None
    cache: bool = True
    prefixes: bool = False
    draft_model: str = ""
    draft_weights: str | None = None

    def chosen(self) -> Policy:
        """The policy. Raises ``bad-argument``."""
        if self.policy == "disaggregated":
            fail(
                "bad-argument",
                "'disaggregated' is for machines apart, and one program serves here",
                help="take chunked, layered or combined",
            )
        groups = groups_of(self.groups) if self.groups else None
        chosen = policy(self.policy, self.chunk, groups)
        return with_long_prompts(chosen, self.long_chunk, self.long_prompts)

    @property
    def serving(self) -> str:
        """What of ``CompileRequest.serving`` the policy needs."""
        if self.policy == "chunked":
            return "chunks"
        return "layers!" if self.force else "layers"


@dataclass(frozen=True)
class Service:
    """A program that serves, its model's name and what turns tokens into text, if it has that.

    ``layer_costs`` are relative; prompts are cut at multiples of ``multiple`` tokens, and those in
    ``eos`` end a text. ``prefixes`` says whether caches of requests that have left are used again.
    ``drafter`` makes what drafts for a server, if anything does.
    """

    name: str
    engine: WholeEngine | PagedEngine
    policy: Policy
    layer_costs: tuple[float, ...]
    multiple: int
    eos: tuple[int, ...]
    tokenizer: Tokenizer | None
    weights: Path
    config: ModelConfig | None
    prefixes: bool = False
    drafter: Callable[[], Drafter] | None = None

    @cached_property
    def chat(self) -> Chat:
        """How the model reads conversations. Raises ``no-tokenizer`` and what :func:`open_chat`
        does."""
        if self.tokenizer is None:
            fail("no-tokenizer", f"'{self.name}' has no tokenizer, so it cannot read a text")
        return open_chat(self.weights, self.tokenizer, self.name)

    def read_chat(self, messages: object, room: int) -> list[int]:
        """The token ids of ``messages``, as JSON has them, for so many of which there is room.
        Raises what :func:`conversation_of`, :attr:`chat` and :meth:`Chat.ids` do."""
        return self.chat.ids(conversation_of(messages), room=room)

    def another_tokenizer(self) -> Tokenizer | None:
        """The tokenizer once more, so that nobody waits for what one of them is asked."""
        if self.tokenizer is None or self.config is None:
            return None
        return load_tokenizer(self.weights, self.config)

    def server(self, chosen: Policy | None = None, drafts: bool = True) -> Server:
        """A server by its policy, or by ``chosen``, perhaps without drafts; one at a time where a
        model drafts. Raises ``bad-argument``."""
        most, room = self.engine.requests, self.engine.capacity + 1
        wanted = chosen or self.policy
        scheduler = Scheduler(wanted, self.layer_costs, most * room, most, self.multiple)
        drafter = self.drafter() if self.drafter is not None and drafts else None
        return Server(self.engine, scheduler, self.prefixes, drafter)

    @property
    def whole(self) -> bool:
        """Whether the program reads a prompt that fills its caches in one piece."""
        return self.engine.most == self.engine.capacity

    def alone(self, entry: Entry) -> list[int]:
        """The tokens of a request that nothing else runs beside, its prompt read whole and without
        drafts. Raises ``bad-argument`` where the program has no room for that."""
        server = self.server(whole_prompts(self.engine), drafts=False)
        return replayed(server, [replace(entry, seconds=0.0)], 1.0)[entry.name]


def whole_prompts(engine: WholeEngine | PagedEngine) -> Policy:
    """The policy by which each prompt is read in one piece."""
    return Policy("chunked", engine.capacity + engine.multiple, Fixed(1))


def check_serves(target: str) -> None:
    """Raise ``bad-argument`` for a target whose programs do not serve."""
    if not target_named(target).SERVES:
        known = " or ".join(name for name in target_names() if target_named(name).SERVES)
        words = f"programs for --target {target} do not serve yet"
        fail("bad-argument", words, help=f"serve and serve-trace take --target {known}")


def drafts_of(request: CompileRequest) -> int:
    """How many drafts of each request a step of the program verifies at the most."""
    return target_of(request).drafts(request)


def to_serve(asked: CompileRequest) -> CompileRequest:
    """``asked``, which says how it serves, as a program of its target takes it: for
    `USUAL_REQUESTS` at once unless it says for how many, by chunks as long as those of the policy
    unless it says how long, and with caches whose rows stay where they are."""
    chunk = asked.chunk
    if chunk is None and asked.serving == "chunks":
        chunk = policy("chunked").chunk
    return _to_serve(asked.changed(batch=asked.batch or USUAL_REQUESTS), chunk, True)


def _to_serve(asked: CompileRequest, chunk: int | None, prefixes: bool) -> CompileRequest:
    """``asked`` with room for ``chunk`` tokens of a prompt at once (None: as many as caches hold),
    and with caches that keep ``prefixes`` unless it says which; caches of a graph lie on no cores
    yet. Kernels for GPUs have both."""
    target = target_of(asked)
    if not (target.SERVES and target.served_by_passes()):
        return asked
    room = None if chunk is None or asked.keep_quantised else max(chunk, asked.rows)
    asked = asked.changed(chunk=room)
    if not prefixes or asked.compile_to == "graph" or asked.options_of(MeshOptions).kv != AUTO:
        return asked
    return asked.changed(kv="cyclic")


def opened_service(
    loaded: LoadedModel,
    compile_request: CompileRequest,
    request: ServeRequest,
    report: Diagnostics,
    instruments: Sequence[Instrument] = (),
    on_read: Progress | None = None,
    backend: Backend | None = None,
) -> Service:
    """``loaded`` compiled for serving by ``request``, with its weights on the cores or the GPU of
    ``backend``, by default what the Python target has.

    Raises ``bad-argument`` for a target that does not serve and a policy or setting that is none,
    ``dense-layered``, ``no-tokens``, ``weights-not-found``, and what compiling and reading weights
    raise.
    """
    check_serves(compile_request.target)
    drafter = _drafter(compile_request, request)
    chosen = request.chosen()
    asked = compile_request.changed(serving=request.serving, phase="both")
    asked = _to_serve(asked, None if request.whole else chosen.chunk, request.prefixes)
    compiled = compile_loaded(loaded, asked, instruments, report)
    if not compiled.makes_tokens:
        fail("no-tokens", f"'{loaded.name}' does not map tokens to tokens, so it serves nobody")
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        program = compiled.written(folder / "program", request.weights)
        runs = backend or Backend("python")
        service = _service(program, request, report, on_read, runs)
        if request.draft_model:
            drafter = _of_model(service.engine, compile_request, request, report, runs)
        return replace(service, drafter=drafter)


def compiled_service(
    program: Program,
    request: ServeRequest,
    report: Diagnostics,
    on_read: Progress | None = None,
    backend: Backend | None = None,
) -> Service:
    """The compiled ``program`` behind a server by ``request``; the rest is as of
    :func:`opened_service`.

    One that was not compiled to serve does so too if it takes one request at a time: it reads
    prompts whole. Raises ``bad-argument`` for others and for policies that the program does not
    obey.
    """
    check_serves(program.target)
    request.chosen()
    if request.draft_model or request.draft_weights is not None:
        given = "--draft-model" if request.draft_model else "--draft-weights"
        words = f"'{program.name}' is compiled, and programs of directories verify no drafts yet"
        fail("bad-argument", f"{given} is given, but {words}")
    if program.serving is None and not target_named(program.target).served_by_passes():
        fail(
            "bad-argument",
            f"'{program.name}' was not compiled to serve requests as they come",
            help="meshc compile --serving chunks, for policies of layers --serving layers",
        )
    return _service(program, request, report, on_read, backend or Backend("python"))


def _service(
    program: Program,
    request: ServeRequest,
    report: Diagnostics,
    on_read: Progress | None,
    backend: Backend,
) -> Service:
    if program.weights is None:
        fail(
            "weights-not-found",
            f"nothing says where the weights of '{program.name}' are",
            help="give them with --weights",
        )
    config, serving = program.config, program.serving
    layers = program.layers or (config.layers if config else 1)
    tensors = open_weights(program.weights, config, program.layers, report, on_read)
    check_present(program.names, tensors)
    packed = program.packed if request.cache else None
    if request.cache and backend.name == "python":
        tensors = kept(tensors)
    engine = load_engine(Loading(program.folder, backend, tensors, report, packed=packed))
    (prompt,) = read_prompts([(0,)], config, program.weights, program.name, report)
    return Service(
        program.name,
        engine,
        _policy(program, engine, request),
        (1.0,) * layers if serving is None else serving.layer_costs,
        engine.multiple,
        tuple(config.eos_ids) if config else (),
        prompt.tokenizer,
        program.weights,
        config,
        request.prefixes and serving is not None and serving.rows_stay,
    )


def _drafter(
    compile_request: CompileRequest, request: ServeRequest
) -> Callable[[], Drafter] | None:
    """What drafts, if no model does. Raises ``bad-argument`` for one that would for nobody."""
    given = "--draft-model" if request.draft_model else "--draft-weights"
    drafts = drafts_of(compile_request)
    if drafts and (request.draft_model or request.draft_weights is None):
        return Repeats
    if request.draft_model or request.draft_weights is not None:
        missing = "--draft-model" if drafts else "--drafts"
        fail("bad-argument", f"{given} is given, but {missing} is not")
    return None


def _of_model(
    engine: WholeEngine | PagedEngine,
    compile_request: CompileRequest,
    request: ServeRequest,
    report: Diagnostics,
    backend: Backend,
) -> Callable[[], Drafter]:
    """What drafts by a model beside ``engine``. Raises ``bad-argument`` for one of other tokens,
    and what :func:`opened_service` does."""
    asked = compile_request.changed(drafts=0, cache_tokens=None, layers=None, keep_quantised=())
    how = ServeRequest(weights=request.draft_weights, cache=request.cache)
    small = opened_service(
        load_any(request.draft_model, report), asked, how, report, backend=backend
    )
    own = small.engine
    if own.vocab != engine.vocab:
        fail(
            "bad-argument",
            f"--draft-model {small.name} has {own.vocab} tokens, and the model {engine.vocab}",
            help="take a model with the same tokenizer",
        )
    assert isinstance(own, PagedEngine)
    return partial(OfModel, own)


def _policy(program: Program, engine: Engine, request: ServeRequest) -> Policy:
    """The policy of ``request``, by chunks that ``program`` reads where nothing says how long they
    are. Raises ``bad-argument`` where it obeys no such policy."""
    chosen = request.chosen()
    if chosen.name != "chunked" and not engine.grouped:
        fail(
            "bad-argument",
            f"'{chosen.name}' reads prompts by groups of layers, and those of '{program.name}' "
            "pass all layers at once",
            help="take --policy chunked, or compile with --serving layers where a kernel reads "
            "prompts",
        )
    if not engine.cuts_prompts:
        if request.chunk is not None or request.long_chunk is not None:
            flag = "--long-chunk" if request.chunk is None else "--chunk"
            fail(
                "bad-argument",
                f"{flag} is given, but '{program.name}' reads prompts whole",
                help="meshc compile --serving chunks makes a program that reads them by chunks",
            )
        return whole_prompts(engine)
    if request.chunk is None and chosen.chunk is not None and isinstance(engine, MixingEngine):
        return replace(chosen, chunk=engine.tokens)  # those of one step
    if request.chunk is None and chosen.chunk is not None and chosen.chunk > engine.most:
        return replace(chosen, chunk=engine.most)
    return chosen


def entries_of(trace: Trace, service: Service, seed: int, stop_at_eos: bool) -> list[Entry]:
    """The requests of ``trace`` with random prompts of its lengths, the same for the same
    ``seed``; all at once where it does not say when they come. Answers have the lengths of the
    trace unless ``stop_at_eos``."""
    random = np.random.default_rng(seed)
    stop = service.eos if stop_at_eos else ()
    seconds = trace.seconds or (0.0,) * len(trace.pairs)
    return [
        Entry(
            name, at, tuple(random.integers(0, service.engine.vocab, prompt).tolist()), most, stop
        )
        for name, ((prompt, most), at) in enumerate(zip(trace.pairs, seconds, strict=True))
    ]
