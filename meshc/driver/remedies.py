"""What cures a refusal: help that names what was tried, and what the refused program was for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from meshc.backends.cuda.kernels.collective.kernel import MOST_GPUS
from meshc.devices import KEYS
from meshc.devices.catalogue import usual_values
from meshc.devices.keys import NUMBERS
from meshc.devices.numbers import line_of
from meshc.driver.request import CompileRequest
from meshc.passes.mesh.forms.problem import AUTO
from meshc.support.diagnostics import Diagnostic, MeshcError

_ROUTES = ("too-many-routes", "too-many-queues")
NO_ROOM = frozenset({"does-not-fit", "csl-memory-full"})
"""Codes of refusals for want of memory."""
_NUMBER = "device-number"
_MISSING = re.compile(r"does not give '(\w+)'")

Compiles = Callable[[CompileRequest], object]
"""Compiles a request, or raises MeshcError."""


def with_help(refusal: MeshcError, request: CompileRequest, compiles: Compiles) -> MeshcError:
    """``refusal`` of ``request`` with help that was tried: where routes or queues are short,
    settings that take fewer; where the memory of a GPU or of its blocks is, more GPUs or smaller
    clusters. Where cores have too little memory and nobody named a target, a note says whose
    program it is."""
    lacking = [one for one in refusal.diagnostics if one.code == _NUMBER]
    if lacking:  # in each phase; what all of them miss is asked for at once
        return MeshcError([_with_all_missing(lacking[0], request, compiles)])
    return MeshcError([_helped(one, request, compiles) for one in refusal.diagnostics])


def _helped(one: Diagnostic, request: CompileRequest, compiles: Compiles) -> Diagnostic:
    if one.code in _ROUTES:
        settings = [*_as_chosen(request), *_with_fewer_channels(request)]
        cures = [words for words, other in settings if _does(compiles, other)]
        if cures:
            return replace(one, help=f"{' or '.join(cures)} takes fewer, and fits")
        named = ", ".join(words for words, _ in settings)
        return replace(one, help=f"tried, and of no help: {named}" if named else None)
    if one.code in NO_ROOM and request.target == "cuda":
        for words, other in _with_more_room(request):
            if _does(compiles, other):
                return replace(one, help=f"{words} fits; {one.help}")
    if one.code in NO_ROOM and request.target == "python" and not request.compile_to:
        return replace(one, notes=(*one.notes, _whose(request)))
    return one


def _as_chosen(request: CompileRequest) -> Iterator[tuple[str, CompileRequest]]:
    """The request without each of its settings, which the cost model then chooses."""
    if request.kv != AUTO:
        yield f"leaving out --kv {request.kv}", replace(request, kv=AUTO)
    for text in request.algo:
        others = tuple(other for other in request.algo if other != text)
        yield f"leaving out --algo {text}", replace(request, algo=others)


def _with_fewer_channels(request: CompileRequest) -> Iterator[tuple[str, CompileRequest]]:
    """Settings that take fewer channels and were not asked for otherwise, as flags: caches that
    need no ring, reductions in one phase, products whose rings reductions share, and all at once.
    """
    asked = {text.split("=")[0] for text in request.algo}
    flags, together = [], request
    if request.kv == AUTO:
        flags.append("--kv cyclic")
        together = replace(together, kv="cyclic")
        yield flags[-1], together
    for op, name in (("all_reduce", "k_tree:1"), ("gemm", "cannon")):
        if op not in asked:
            flags.append(f"--algo {op}={name}")
            yield flags[-1], replace(request, algo=(*request.algo, f"{op}={name}"))
            together = replace(together, algo=(*together.algo, f"{op}={name}"))
    if len(flags) > 1:
        yield " ".join(flags), together


def _with_more_room(request: CompileRequest) -> Iterator[tuple[str, CompileRequest]]:
    """Smaller clusters of blocks where these were asked for, else more GPUs."""
    if request.cluster is not None or request.dataflow:
        for blocks in (8, 4, 2):
            if blocks < (request.cluster or 0):
                yield f"--cluster {blocks}", replace(request, cluster=blocks)
        given = {"--cluster": request.cluster, "--dataflow": request.dataflow}
        flags = " and ".join(flag for flag, value in given.items() if value)
        yield f"leaving out {flags}", replace(request, cluster=None, dataflow="")
        return
    for count in (2, 4, 8, 16):
        if request.gpus < count <= MOST_GPUS:
            yield f"--gpus {count}", replace(request, gpus=count)


def _with_all_missing(one: Diagnostic, request: CompileRequest, compiles: Compiles) -> Diagnostic:
    """``one``, which names the first number that the device lacks, with all others that are asked
    for when it has that."""
    missing: list[str] = []
    lacking = request.the_device()
    refusal: Diagnostic | None = one
    while refusal is not None and refusal.code == _NUMBER:
        named = _MISSING.search(refusal.message)
        if named is None or named[1] in missing or KEYS.get(named[1]) not in NUMBERS:
            break
        missing.append(named[1])
        trial = lacking.with_numbers(**usual_values(missing))
        refusal = _refusal(compiles, replace(request, device=trial))
    if len(missing) < 2:
        return one
    missing.sort()
    names = f"{', '.join(missing[:-1])} and {missing[-1]}"
    return replace(
        one,
        message=f"device '{lacking.name}' does not give {names}, which are needed here",
        notes=tuple(f"{name}: {KEYS[name].doc}" for name in missing),
        help="write in the device's file: " + "; ".join(map(line_of, missing)),
    )


def _refusal(compiles: Compiles, request: CompileRequest) -> Diagnostic | None:
    """Why ``request`` is none, or does not compile, if it does not."""
    try:
        request.check()
        compiles(request)
    except MeshcError as refusal:
        return refusal.diagnostics[0]
    return None


def _does(compiles: Compiles, request: CompileRequest) -> bool:
    return _refusal(compiles, request) is None


def _whose(request: CompileRequest) -> str:
    """For whom a program is that was refused for its memory, and who may have room."""
    numbers = request.the_device()
    words = f"this is the program for --target python, with all of a core's data on {numbers.name}"
    if numbers.csl_arch is not None:
        return f"{words}; --target csl plans memory in its own way"
    if numbers.kind in ("cluster", "node"):
        return f"{words}; --target cuda keeps weights and caches in the memory of the GPU"
    return words
