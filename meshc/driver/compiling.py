"""Compiling: a model through the passes to modules, and on to the files of a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from meshc.analysis.rotary_angles import least_tokens
from meshc.backends.own_passes import check_own_passes, with_own_passes
from meshc.backends.python import HostFacts
from meshc.backends.request import DEFAULT_SEQ, CompileRequest
from meshc.backends.target import Target, Work, Written, target_of
from meshc.backends.target_options import MeshOptions
from meshc.driver.batching import give_drafts, give_requests
from meshc.driver.compiled import Compiled
from meshc.driver.element_types import element_type
from meshc.driver.given_modules import check_asked, on_its_device, started
from meshc.driver.manifest import facts_of
from meshc.driver.models import LoadedModel
from meshc.driver.remedies import with_help
from meshc.driver.serving_facts import Serving
from meshc.driver.trials import Trials
from meshc.ir.batch import batch_of
from meshc.ir.module import Module
from meshc.ir.ops import graph, mesh
from meshc.ir.printer import print_module
from meshc.mlir import print_mlir
from meshc.passes.base import Pass
from meshc.passes.graph.group_layers import ROW_SCALE
from meshc.passes.instruments import Instrument
from meshc.passes.manager import PassManager
from meshc.passes.mesh.forms.problem import AUTO
from meshc.pipelines import choosing_passes, chunking_passes, pipeline_from, serving_passes
from meshc.support.diagnostics import Diagnostics, InternalError, MeshcError, fail, in_each

_BY_STEPS = "decode steps read the prompt, token by token"


def compile_loaded(
    loaded: LoadedModel,
    request: CompileRequest,
    instruments: Sequence[Instrument] = (),
    report: Diagnostics | None = None,
    trial: bool = False,
    verified: bool = True,
) -> Compiled:
    """Compile ``loaded`` as ``request`` says; of a ``trial`` no more is asked than whether it
    compiles, so that a step for GPUs comes without what reads its prompts. A program for GPUs that
    nobody will run need not be ``verified``. Raises MeshcError and InternalError.

    Where nobody asked for one phase alone, a model for CSL whose prompts cannot be read in one
    piece is its decode step, with a warning, and so is one whose weights stay quantised. Both
    phases are one program where ``request`` asks for that and it fits
    (:mod:`meshc.backends.csl.one_program`). The help of a refusal is what was tried
    (:mod:`meshc.driver.remedies`).
    """
    if loaded.module is not None:
        request = on_its_device(loaded.name, loaded.module, request)
    request.check()
    phases = _phases(loaded, request)
    if loaded.module is not None:
        check_asked(loaded.name, loaded.module, request, _passes(loaded.module, request, 0))
    report = Diagnostics() if report is None else report
    try:
        return _in_phases(loaded, request, phases, instruments, report, trial, verified)
    except MeshcError as refusal:

        def again(other: CompileRequest) -> Compiled:
            return _in_phases(loaded, other, phases, (), Diagnostics(), True, False)

        raise with_help(refusal, request, again) from refusal


def _in_phases(
    loaded: LoadedModel,
    request: CompileRequest,
    phases: Sequence[str],
    instruments: Sequence[Instrument],
    report: Diagnostics,
    trial: bool,
    verified: bool,
) -> Compiled:
    """The same without help."""
    target = target_of(request)
    if request.keep_quantised and not target.streams(request) and phases != ("decode",):
        phases = _by_steps(loaded, phases, report)
    said = len(report.messages)
    try:
        return _compiled(loaded, request, phases, instruments, report, trial, verified)
    except MeshcError as refusal:
        first, both = refusal.diagnostics[0], {*phases} == {"prefill", "decode"}
        if not both or request.phase != "both" or not target.steps_instead(request, first):
            raise
        del report.messages[said:]
        report.warning("prompt-by-steps", f"{_BY_STEPS}: {first.message} ({first.code})")
    return _compiled(loaded, request, ("decode",), instruments, report, trial, verified)


def _by_steps(loaded: LoadedModel, phases: Sequence[str], report: Diagnostics) -> tuple[str, ...]:
    """The phase of a model whose weights stay quantised. Raises ``bad-argument``."""
    words = "products of many tokens move weights from core to core, and quantised ones stay"
    if "decode" not in phases:
        what = f"'{loaded.name}' has no decode step"
        fail("bad-argument", f"--keep-quantised is given, but {what}, and {words}")
    report.warning("prompt-by-steps", f"{_BY_STEPS}: {words}")
    return ("decode",)


def _compiled(
    loaded: LoadedModel,
    request: CompileRequest,
    phases: Sequence[str],
    instruments: Sequence[Instrument],
    report: Diagnostics,
    trial: bool,
    verified: bool,
) -> Compiled:
    target, chooses = target_of(request), request.options_of(MeshOptions).choose == "cores"
    if chooses and "decode" not in phases:
        fail("bad-argument", "--choose is cores, but there is no decode step, which gives logits")
    given = in_each(phases, lambda phase: given_module(loaded, phase, request, report))
    host = _host_facts(loaded, given)
    _check_prompts(target, request, host)
    serving = Serving.of(request, given.get("decode"))
    if request.serving and target.served_by_passes():
        passes = serving_passes(
            request.rows,
            request.serving != "chunks",
            request.serving == "layers!",
            request.chunk or 0,
        )
        manager = PassManager(passes, instruments)
        given = in_each(phases, lambda phase: manager.run(given[phase], report))
        host = _of_groups(host, given.get("prefill"))
    elif request.chunk is not None and "prefill" in given:
        chunking = PassManager(chunking_passes(request.rows, request.chunk), instruments)
        given["prefill"] = chunking.run(given["prefill"], report)

    for module in given.values():
        check_own_passes(request, target.passes(module, request, request.settings()))
    trials = Trials(given)
    agreed = request.changed(kv=_common_policy(loaded, given, request, trials))
    asked = {phase: agreed if phase == "prefill" else request for phase in phases}
    regions = _common_regions(given, asked, trials)

    def lowered(phase: str) -> Module:
        passes = _passes(given[phase], asked[phase], regions[phase])
        if instruments:
            return PassManager(passes, instruments).run(given[phase], report)
        module, left = trials.continued(phase, passes, report)
        return PassManager(left).run(module, report)

    others = partial(_other_phase, loaded, request)
    how = lowered, others, host, report, instruments, trial, verified
    work = Work(request, loaded.name, given, *how)
    written = _ir(work) if request.compile_to else target.write(work)
    for instrument in instruments:
        instrument.written()
    facts = facts_of(loaded, request, written.modules, host, serving)
    made = written.modules, written.files, report, facts, loaded, written.prompts
    return Compiled(request, *made)


def _other_phase(loaded: LoadedModel, request: CompileRequest, phase: str) -> Module | None:
    """The graph of ``phase`` as the passes are given it; None where it is not asked for, or the
    model has none."""
    if loaded.module is not None or phase not in loaded.phases():
        return None
    wanted = request.phase in ("both", phase)
    return given_module(loaded, phase, request, Diagnostics()) if wanted else None


def _ir(work: Work) -> Written:
    """The modules as text of the level to stop at."""
    asked = work.request
    modules = work.modules()
    work.tell_of_writing()
    printed = print_mlir if asked.emit == "mlir" else print_module
    texts = {f"{phase}.{asked.emit}": printed(module) for phase, module in modules.items()}
    return Written(modules, texts)


def tile_program(
    loaded: LoadedModel, phase: str, request: CompileRequest, report: Diagnostics
) -> Module:
    """One phase alone behind the passes that the target and the level to stop at ask for, of which
    no more is asked than whether it fits: what they leave is not verified. Raises MeshcError and
    InternalError."""
    module = given_module(loaded, phase, request, report)
    return PassManager(_passes(module, request, 0), verified=False).run(module, report)


def _passes(module: Module, request: CompileRequest, regions: int) -> list[Pass]:
    """The passes that the target and the level to stop at ask for; the layers go to ``regions``
    rectangles, or with 0 to as many as they need."""
    settings = request.settings()
    if regions:
        settings["split-regions"] = f"split-regions{{regions={regions}}}"
    return with_own_passes(request, target_of(request).passes(module, request, settings))


def _common_policy(
    loaded: LoadedModel, given: Mapping[str, Module], request: CompileRequest, trials: Trials
) -> str:
    """The policy of KV caches in all phases. Where it goes by cost it is that of the decode step,
    in which rows enter one by one; a step that is refused will say so itself."""
    asked = request.options_of(MeshOptions).kv
    if asked != AUTO or "prefill" not in given or not target_of(request).shared_policy(request):
        return asked
    try:
        if "decode" not in given:
            given = {"decode": given_module(loaded, "decode", request, Diagnostics())}
            trials = Trials(given)
        settings = request.settings()
        passes = with_own_passes(request, pipeline_from(given["decode"], "mesh", settings))
        steps = [step for step in passes if step.LEVELS == ("graph",)]
        found = trials.run("decode", steps)
    except (MeshcError, InternalError):
        return asked
    return next((op.policy for op in found.walk() if isinstance(op, mesh.Append)), asked)


def _common_regions(
    given: Mapping[str, Module], asked: Mapping[str, CompileRequest], trials: Trials
) -> dict[str, int]:
    """The number of regions that each phase is to be told: a core has the same layers in all
    phases, whose caches it keeps, so that all have the most that one needs. 0 where a phase needs
    as many by itself, for one phase alone, where memory is no limit, where a phase does not get so
    far, as its passes will say, and where the request has a number."""
    untold = dict.fromkeys(given, 0)
    bounded = all(module.the_device().room_bytes is not None for module in given.values())
    if len(given) < 2 or not bounded:
        return untold
    if any(request.level() == "graph" or request.regions for request in asked.values()):
        return untold
    needed = {}
    for phase, module in given.items():
        settings = asked[phase].settings()
        passes = with_own_passes(asked[phase], pipeline_from(module, "mesh", settings))
        try:
            needed[phase] = trials.run(phase, passes).the_mesh().regions
        except (MeshcError, InternalError):
            return untold
    most = max(needed.values())
    return {phase: most if count < most else 0 for phase, count in needed.items()}


def given_module(
    loaded: LoadedModel, phase: str, request: CompileRequest, report: Diagnostics
) -> Module:
    """What the passes start from: the graph of ``phase``, or the module of a ``.meshir`` file, of
    which what the passes ahead ask for is proved where its text does not claim it. Where the cores
    choose tokens, a decode step gives these."""
    if loaded.module is None:
        module = graph_module(loaded, phase, request, report)
        chooses = request.options_of(MeshOptions).choose == "cores" and phase == "decode"
        return PassManager(choosing_passes()).run(module, report) if chooses else module
    return started(loaded.module, request)


def graph_module(
    loaded: LoadedModel, phase: str, request: CompileRequest, report: Diagnostics | None = None
) -> Module:
    """The graph of ``phase`` with the header that the passes read."""
    numbers = request.the_device()
    module = loaded.graph(phase, sequence(loaded, request), request.layers)
    declared = str(module.option("weights", "f32"))
    dtype = element_type(loaded, declared, request, numbers, report or Diagnostics())
    module.options["dtype"] = dtype
    module.options.setdefault("accumulate", "f32")
    module.device = numbers
    target = target_of(request)
    module.options |= target.graph_options(request, module.capacity)
    give_requests(module, request.requests, target.ONE_REQUEST)
    drafts = target.drafts(request)
    if drafts and phase == "decode":
        give_drafts(module, drafts)
    return module


def sequence(loaded: LoadedModel, request: CompileRequest) -> int | None:
    """KV capacity: as asked, else the least of the model's positions and a default; None for a
    model without caches, whose extents are its own."""
    if request.seq is not None:
        return request.seq
    if loaded.phases() == ("main",):
        return None
    most = loaded.config.max_positions if loaded.config else DEFAULT_SEQ
    return min(most, DEFAULT_SEQ)


def _phases(loaded: LoadedModel, request: CompileRequest) -> tuple[str, ...]:
    # A module is of one phase, and whether that is asked for is looked at with its text.
    asked = request if loaded.module is None else request.changed(phase="both")
    return target_of(request).phases(loaded.name, loaded.phases(), asked)


def _host_facts(loaded: LoadedModel, graphs: Mapping[str, Module]) -> HostFacts:
    """What the host program must know: the table of embeddings, the capacity, the end tokens."""
    lookup = _embedding(graphs["decode"]) if "decode" in graphs else None
    if lookup is None:
        return HostFacts(loaded.name)
    table, vocab = lookup
    _, last = graphs["decode"].scalars["pos"]
    eos = loaded.config.eos_ids if loaded.config else ()
    batch, least = batch_of(graphs["decode"]), least_tokens(graphs["decode"])
    learned = _learned(graphs["decode"])
    return HostFacts(
        loaded.name, table, vocab, last + 1, tuple(eos), batch, least=least, learned=learned
    )


def _learned(module: Module) -> str | None:
    """Name of the table of positions that is added to embeddings, or None."""
    lookups = (op.tensors() for op in module.walk() if isinstance(op, graph.Embed))
    return next((taken[2].name for taken in lookups if len(taken) > 2), None)


def _check_prompts(target: Target, request: CompileRequest, host: HostFacts) -> None:
    """Refuse a program whose host would not look whether sequences are as long as those for which
    it is right."""
    looks = target.CHECKS_LENGTHS and not request.serving
    if host.least > 1 and not looks and not request.compile_to:
        who = "a server" if request.serving else f"the host of --target {request.target}"
        fail(
            "rope-length",
            f"LongRoPE turns by other frequencies from {host.least} tokens on, and {who} takes "
            "prompts that are shorter",
            help=f"compile for shorter sequences: --seq {host.least - 1}",
        )


def _of_groups(host: HostFacts, prefill: Module | None) -> HostFacts:
    """``host`` with the loops over layers of which a run of ``prefill`` passes some: their two
    scalars and layers; and by what it multiplies embeddings."""
    if prefill is None:
        return host
    loops = [op for op in prefill.walk() if isinstance(op, graph.Repeat) and op.rounds]
    named = [(op.rounds, prefill.dims[op.dim]) for op in loops]
    scale = float(prefill.option(ROW_SCALE, 1.0))
    loops_of = tuple((first, count, layers) for (first, count), layers in named)
    return replace(host, loops=loops_of, row_scale=scale)


def _embedding(module: Module) -> tuple[str, int] | None:
    """Name and rows of the table that token ids are looked up in, or None."""
    lookups = (op for op in module.walk() if isinstance(op, graph.Embed))
    return next(((op.tensors()[1].name, module.dims[op.dim]) for op in lookups), None)
