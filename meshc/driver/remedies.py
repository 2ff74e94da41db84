"""What cures a refusal: help that names what was tried, and what the refused program was for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from meshc.backends.request import CompileRequest
from meshc.backends.target import NO_ROOM, target_of
from meshc.backends.target_options import MeshOptions
from meshc.devices import KEYS
from meshc.devices.catalogue import usual_values
from meshc.devices.keys import NUMBERS
from meshc.devices.numbers import line_of
from meshc.passes.mesh.forms.problem import AUTO
from meshc.support.diagnostics import Diagnostic, MeshcError

_ROUTES = ("too-many-routes", "too-many-queues")
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
    if one.code not in NO_ROOM:
        return one
    for words, other in target_of(request).cures(request):
        if _does(compiles, other):
            return replace(one, help=f"{words} fits; {one.help}")
    whose = "" if request.compile_to else target_of(request).whose(request)
    return replace(one, notes=(*one.notes, whose)) if whose else one


def _as_chosen(request: CompileRequest) -> Iterator[tuple[str, CompileRequest]]:
    """The request without each of its settings, which the cost model then chooses."""
    given = request.options_of(MeshOptions)
    if given.kv != AUTO:
        yield f"leaving out --kv {given.kv}", request.changed(kv=AUTO)
    for text in given.algo:
        others = tuple(other for other in given.algo if other != text)
        yield f"leaving out --algo {text}", request.changed(algo=others)


def _with_fewer_channels(request: CompileRequest) -> Iterator[tuple[str, CompileRequest]]:
    """Settings that take fewer channels and were not asked for otherwise, as flags: caches that
    need no ring, reductions in one phase, products whose rings reductions share, and all at once.
    """
    given = request.options_of(MeshOptions)
    asked = {text.split("=")[0] for text in given.algo}
    flags, algo, together = [], given.algo, request
    if given.kv == AUTO:
        flags.append("--kv cyclic")
        together = together.changed(kv="cyclic")
        yield flags[-1], together
    for op, name in (("all_reduce", "k_tree:1"), ("gemm", "cannon")):
        if op not in asked:
            flags.append(f"--algo {op}={name}")
            yield flags[-1], request.changed(algo=(*given.algo, f"{op}={name}"))
            algo = (*algo, f"{op}={name}")
            together = together.changed(algo=algo)
    if len(flags) > 1:
        yield " ".join(flags), together


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
        refusal = _refusal(compiles, request.changed(device=trial))
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
