"""``meshc estimate``: whether models fit and how fast they are; algorithms of a product in PLMR
terms; what caches hold and phases take."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from meshc.backends.request import USUAL_MESH
from meshc.backends.target import target_named
from meshc.backends.target_options import CudaOptions
from meshc.cli.capacities import capacity_object, capacity_tables
from meshc.cli.phase_tables import phases_object, phases_tables
from meshc.cli.pictures import check_picture, write_picture
from meshc.cli.plan_objects import plans_object
from meshc.cli.plan_tables import plan_tables
from meshc.cli.printing import print_json, table
from meshc.cli.progress import Progress
from meshc.cli.spelled_requests import keeping
from meshc.cost.terms import MECHANISMS
from meshc.devices import KEYS, KINDS, device
from meshc.driver import CompileRequest, load_any
from meshc.driver.capacity import capacities
from meshc.driver.estimating import Estimate, estimates
from meshc.driver.models import LoadedModel
from meshc.driver.phase_costs import phase_costs
from meshc.driver.planning.plans import PlanRequest, plan
from meshc.driver.questions import Question
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.extras import module_of_extra
from meshc.support.freed_memory import keep_freed_memory

_HEAD = ("algorithm", "paths", "queues", "reach", "step", "path", "bytes", "cycles", "violates")
_LAWS = ("algorithm", "paths", "step", "path", "bytes")


def run(options: argparse.Namespace) -> int:
    """Estimate and print."""
    keep_freed_memory()
    if options.kv:
        return _caches(options)
    if options.phases:
        return _phases(options)
    if options.plmr:
        return _products(options)
    return _plans(options)


def _plans(options: argparse.Namespace) -> int:
    """Whether models fit devices and meshes, how fast they are there and why."""
    if all(text.isdecimal() for text in options.of):
        fail(
            "bad-argument",
            "sizes of a product are given, and nothing says what to estimate",
            help="--plmr compares algorithms of a product M K N; other questions are of MODEL",
        )
    _refuse(options, {"--plmr": ("accumulate",)})
    _check_weights(options)
    places, picture = _places(options), None
    if options.plot is not None:
        check_picture(options.plot)
        picture = module_of_extra("meshc.driver.planning.pictures", "plots", "drawing")
    plans = []
    # All are read first: behind a plan, which takes seconds, a wrong name would be told late.
    models = [load_any(name, Diagnostics()) for name in dict.fromkeys(options.of)]
    with Progress() as progress:
        for loaded in models:
            for where, mesh, gpus in places:
                request = CompileRequest(
                    device=where,
                    mesh=mesh,
                    phase=options.phase or "both",
                    layers=options.layers,
                    dtype=options.dtype,
                    seq=options.seq,
                    batch=options.batch,
                    chunk=options.chunk,
                    algo=tuple(options.algo),
                    nodes=1 if options.nodes is None else options.nodes,
                    cluster=options.cluster,
                    persistent=options.cluster is not None,
                    kv_dtype=options.kv_dtype or CudaOptions.kv_dtype,
                )
                on_gpu = request.the_device().clusters is not None
                kept = keeping(request, options, loaded, on_gpu)
                asked = PlanRequest(kept, gpus, options.clock)
                plans.append(plan(loaded, asked, progress.say))
    if picture is not None:
        write_picture(Path(options.plot), picture.plans_picture(plans))
    if options.json:
        print_json(plans_object(plans))
    else:
        print("\n".join(plan_tables(plans)))
    return 0


_AUTO = "auto"
_OF_PLANS = ("phase", "batch", "gpus", "nodes", "cluster", "kv_dtype", "clock", "plot")
"""Flags of questions about MODEL alone."""


def _places(options: argparse.Namespace) -> list[tuple[str, str, int | None]]:
    """Devices, each with the meshes or the number of GPUs to try. Where wafers stand beside GPUs,
    meshes are of the wafers and ``--gpus`` of the others."""
    names = list(dict.fromkeys(options.device or [target_named("csl").USUAL_DEVICE]))
    wafers = [name for name in names if device(name).kind == "mesh"]
    mixed = 0 < len(wafers) < len(names)
    given = ["" if mesh == _AUTO else mesh for mesh in dict.fromkeys(options.mesh or [_AUTO])]
    found: list[tuple[str, str, int | None]] = []
    for name in names:
        meshes = given if name in wafers or not mixed else [""]
        gpus = None if mixed and name in wafers else options.gpus
        found += [(name, mesh, gpus) for mesh in meshes]
    return found


def _refuse(options: argparse.Namespace, flags: Mapping[str, Sequence[str]]) -> None:
    """Raise ``bad-argument`` for flags that are of another question."""
    found = Diagnostics()
    for question, names in flags.items():
        for name in names:
            if getattr(options, name):
                words = f"--{name.replace('_', '-')} is given, and it is of {question}"
                found.error("bad-argument", words)
    found.raise_errors()


def _check_weights(options: argparse.Namespace) -> None:
    """Raise ``bad-argument`` for weights whose formats nobody asks for."""
    if options.weights and options.keep_quantised is None:
        fail("bad-argument", "--weights is given, and it is of --keep-quantised stored or possible")


def _one_place(options: argparse.Namespace) -> tuple[str, str]:
    """The device and the mesh of a question about one. Raises ``bad-argument``."""
    found = Diagnostics()
    for flag, given in (("--device", options.device), ("--mesh", options.mesh)):
        if given and len(given) > 1:
            found.error("bad-argument", f"{flag} is given twice, and one value would count")
    found.raise_errors()
    where = options.device[0] if options.device else target_named("csl").USUAL_DEVICE
    return where, options.mesh[0] if options.mesh else USUAL_MESH


def _check_mesh(where: str, flag: str, help: str) -> None:
    """Raise ``bad-argument`` where a question about programs of meshes is asked of GPUs."""
    if device(where).kind != "mesh":
        fail("bad-argument", f"{flag} is of meshes of cores, and {where} is none", help=help)


def _products(options: argparse.Namespace) -> int:
    """Each algorithm of a product."""
    where, mesh = _one_place(options)
    _refuse(
        options,
        {
            "MODEL": (*_OF_PLANS, "layers", "seq", "algo", "keep_quantised", "weights"),
            "--phases": ("chunk",),
        },
    )
    sizes = _sizes(options.of)
    question = Question(*sizes, mesh, where, options.dtype, options.accumulate or "f32")
    found = estimates(question)
    if options.json:
        print_json({**asdict(question), "algorithms": [_object(e) for e in found]})
    else:
        print("\n".join(_tables(question, found)))
    return 0


def _caches(options: argparse.Namespace) -> int:
    """What the KV cache of a model holds."""
    others = {"MODEL": (*_OF_PLANS, "seq", "algo"), "--plmr": ("accumulate",)}
    _refuse(options, others | {"--phases": ("chunk",)})
    _check_weights(options)
    loaded = _model(options, "--kv")
    where, mesh = _one_place(options)
    _check_mesh(where, "--kv", "without --kv it says how many tokens caches hold")
    request = CompileRequest(
        device=where,
        mesh=mesh,
        phase="decode",
        layers=options.layers,
        dtype=options.dtype,
    )
    request = keeping(request, options, loaded)
    with Progress() as progress:

        def tell(policy: str, tokens: int) -> None:
            progress.say(f"{policy}: {tokens} tokens")

        found = capacities(loaded, request, tell)
    if options.json:
        print_json(capacity_object(loaded.name, request, found))
    else:
        print("\n".join(capacity_tables(loaded.name, request, found)))
    return 0


def _phases(options: argparse.Namespace) -> int:
    """What programs for both phases of a model take."""
    others = {"MODEL": (*_OF_PLANS, "keep_quantised", "weights"), "--plmr": ("accumulate",)}
    _refuse(options, others)
    loaded = _model(options, "--phases")
    where, mesh = _one_place(options)
    _check_mesh(where, "--phases", "on GPUs both phases are one program")
    request = CompileRequest(
        target="csl",
        device=where,
        mesh=mesh,
        layers=options.layers,
        dtype=options.dtype,
        seq=options.seq,
        chunk=options.chunk,
        algo=tuple(options.algo),
    )
    request.check()
    with Progress() as progress:
        progress.say("compiling both phases")
        found = phase_costs(loaded, request)
    if options.json:
        print_json(phases_object(loaded.name, request, found))
    else:
        print("\n".join(phases_tables(loaded.name, request, found)))
    return 0


def _model(options: argparse.Namespace, flag: str) -> LoadedModel:
    """The only model that is named. Raises ``bad-argument``."""
    (model, *others) = options.of
    if others:
        fail("bad-argument", f"{flag} is of one MODEL, not of {len(options.of)}")
    return load_any(model, Diagnostics())


def _sizes(texts: Sequence[str]) -> tuple[int, int, int]:
    """M, K and N of a product."""
    if len(texts) != 3 or not all(text.isdecimal() for text in texts):
        fail(
            "bad-argument",
            f"'{' '.join(texts)}' are not the sizes of a product",
            help="--plmr takes three, M K N",
        )
    m, k, n = map(int, texts)
    return m, k, n


def _object(estimate: Estimate) -> dict[str, object]:
    counted = estimate.profile
    return {
        "kind": estimate.kind,
        "algo": estimate.algo,
        "routing_paths": counted.paths,
        "input_queues": counted.inputs,
        "reach": counted.reach,
        "step": {"alpha": counted.step.hops, "beta": counted.step.stages},
        "path": {"alpha": counted.total.hops, "beta": counted.total.stages},
        "bytes": estimate.bytes,
        "cycles": round(estimate.cost.total),
        "cycles_of": _counted(estimate),
        "breakdown": estimate.cost.parts() | {"total": estimate.cost.total},
        "inputs": estimate.inputs,
        "growth": {
            "routing_paths": estimate.laws.paths,
            "step": estimate.laws.step,
            "path": estimate.laws.path,
            "bytes": estimate.laws.bytes,
        },
        "violates": estimate.violates,
    }


def _tables(question: Question, found: list[Estimate]) -> list[str]:
    """A table for each kind of product, then why letters are violated."""
    lines: list[str] = []
    for kind, rows in (("gemm", question.m), ("gemv", 1)):
        mine = [e for e in found if e.kind == kind]
        size = f"[{rows}, {question.k}] x [{question.k}, {question.n}]"
        lines += ["", f"{kind.upper()} {size} on {question.mesh} cores of {question.device}"]
        lines += table([_HEAD, *map(_row, mine)])
        for estimate in mine:
            reasons = [f"{letter}: {why}" for letter, why in estimate.violates.items()]
            lines += [f"  {estimate.algo}: {'; '.join(reasons)}"] if reasons else []
        of = " or ".join(dict.fromkeys(map(_counted, mine)))
        lines += ["", f"{kind.upper()}: cycles of {of} by what they are spent on"]
        spent = [name for name in MECHANISMS if any(one.cost.parts()[name] for one in mine)]
        lines += table([("algorithm", *spent, "total"), *(_parts(one, spent) for one in mine)])
        lines += _inputs(question.device, mine)
        lines += ["", f"{kind.upper()} on P x P cores"]
        lines += table([_LAWS, *map(_laws, mine)])
    return lines[1:]


def _row(estimate: Estimate) -> tuple[str, ...]:
    counted = estimate.profile
    return (
        estimate.algo,
        str(counted.paths),
        str(counted.inputs),
        str(counted.reach),
        f"{counted.step.hops}a + {counted.step.stages}b",
        f"{counted.total.hops}a + {counted.total.stages}b",
        str(estimate.bytes),
        f"{estimate.cost.total:.0f}",
        " ".join(estimate.violates) or "-",
    )


def _counted(estimate: Estimate) -> str:
    """Whose cycles these are."""
    return "emitted CSL" if estimate.emitted else "tile program"


def _parts(estimate: Estimate, spent: Sequence[str]) -> tuple[str, ...]:
    parts = estimate.cost.parts()
    return estimate.algo, *(f"{parts[name]:.0f}" for name in spent), f"{estimate.cost.total:.0f}"


def _inputs(name: str, found: list[Estimate]) -> list[str]:
    """The numbers of the device ``name`` behind the cycles of ``found``, a line for each kind."""
    lines = [f"numbers of {name} in it"]
    for kind in KINDS:
        asked = {number for estimate in found for number in estimate.inputs.get(kind, ())}
        if asked:
            lines.append(f"  {kind}: {', '.join(key for key in KEYS if key in asked)}")
    return lines


def _laws(estimate: Estimate) -> tuple[str, ...]:
    how = estimate.laws
    return estimate.algo, *(f"O({law})" for law in (how.paths, how.step, how.path, how.bytes))
