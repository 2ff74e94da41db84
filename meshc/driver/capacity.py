"""How many tokens the KV cache of a model holds on a mesh, for each policy of caches.

The answer is sought by compiling decode steps for several lengths, so it is that of the memory plan
of the compiler; where the first core overflows is read off the guards of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from meshc.analysis.layout.occupancy import Overflow, first_overflow
from meshc.backends import csl
from meshc.backends.request import MOST_TOKENS, CompileRequest
from meshc.backends.target import NO_ROOM
from meshc.backends.target_options import MeshOptions
from meshc.driver.core_fit import Fit, planned
from meshc.driver.models import LoadedModel
from meshc.ir.ops.mesh import CACHE_POLICIES
from meshc.support.diagnostics import Diagnostic, MeshcError, fail

OnTry = Callable[[str, int], None]
"""Called with a policy and a number of tokens that is tried."""


@dataclass(frozen=True)
class Capacity:
    """What the caches hold by one policy, or by several alike.

    ``tokens`` is the capacity: the longest text for which decode steps are compiled, however short
    its prompt; 0 where not even one token fits, None where the program is refused for another
    reason than memory. ``fit`` is the program of that length, ``overflow`` what its next token
    does, and ``refused`` why a program for one token more is none. ``slot`` is what each slot
    more takes of a core, by use, as the mean from the shortest program in as many regions on.
    ``unreached`` says why tokens that memory would hold are not all reached in emitted CSL, None
    where they are.
    """

    policies: tuple[str, ...]
    tokens: int | None
    refused: Diagnostic
    fit: Fit | None = None
    overflow: Overflow | None = None
    slot: dict[str, float] = field(default_factory=dict)
    unreached: Diagnostic | None = None


def capacities(
    loaded: LoadedModel, request: CompileRequest, on_try: OnTry | None = None
) -> list[Capacity]:
    """The capacity of ``loaded`` on the device and mesh of ``request`` by each policy; ``cyclic``
    is told apart from ``shift`` only where it differs.

    Raises ``no-kv-cache``, ``unlimited-memory``, ``bad-argument``, and what compiling raises where
    no policy is compiled for another reason than memory.
    """
    found: dict[str, Capacity] = {}
    for policy in sorted(CACHE_POLICIES, key=("shift", "cyclic", "concat").index):
        found[policy] = capacity(loaded, request.changed(kv=policy), on_try)
    if all(one.tokens is None for one in found.values()):
        raise MeshcError([found["shift"].refused])
    shift, cyclic = found["shift"], found["cyclic"]
    if (shift.tokens, shift.overflow) == (cyclic.tokens, cyclic.overflow):
        found["shift"] = replace(shift, policies=("shift", "cyclic"))
        del found["cyclic"]
    return list(found.values())


def capacity(
    loaded: LoadedModel,
    request: CompileRequest,
    on_try: OnTry | None = None,
    known: Sequence[Fit] = (),
) -> Capacity:
    """The capacity by the policy that ``request`` says, which is not ``auto``; programs of some
    lengths that fit may be ``known``. Raises ``no-kv-cache``, ``unlimited-memory`` and
    ``bad-argument``."""
    _check(loaded, request)
    search = _Search(loaded, request, on_try)
    policies = (request.options_of(MeshOptions).kv,)
    first = search.attempt(1)
    if isinstance(first, Diagnostic):
        return Capacity(policies, 0 if first.code in NO_ROOM else None, first)
    best, alike, refused = search.longest([first, *known])
    overflow = _overflow(best)
    slots = overflow.slots - _overflow(alike).slots
    slot = {use: (best.uses[use] - alike.uses[use]) / slots for use in best.uses} if slots else {}
    return Capacity(policies, overflow.position, refused, best, overflow, slot, _unreached(best))


def _unreached(fit: Fit) -> Diagnostic | None:
    """Why emitted CSL does not count to as many tokens as a program has memory for, if so."""
    if fit.module.the_device().csl_arch is None:
        return None
    try:
        csl.check(fit.module)
    except MeshcError as error:
        return error.diagnostics[0]
    return None


def _check(loaded: LoadedModel, request: CompileRequest) -> None:
    """Raise what makes the question one without an answer."""
    request.check()
    if loaded.model is None:
        fail(
            "bad-argument",
            f"'{loaded.name}' is compiled already, for caches of one length",
            help="name the model, of which decode steps are compiled for several lengths",
        )
    if "decode" not in loaded.phases():
        fail(
            "no-kv-cache",
            f"'{loaded.name}' has no KV cache",
            loaded.model.main.span,
            help="append(cache.NAME, rows) keeps rows from step to step (docs/language.md)",
        )
    numbers = request.the_device()
    if numbers.room_bytes is None:
        fail(
            "unlimited-memory",
            f"cores of '{numbers.name}' have memory for any number of tokens",
            help="name a device that says its memory, such as --device wse2",
        )


@dataclass(frozen=True)
class _Search:
    """Compiles decode steps of one policy for several lengths."""

    loaded: LoadedModel
    request: CompileRequest
    on_try: OnTry | None

    def attempt(self, tokens: int) -> Fit | Diagnostic:
        """The program for ``tokens`` tokens, or why there is none."""
        if self.on_try is not None:
            self.on_try(self.request.options_of(MeshOptions).kv, tokens)
        try:
            return planned(self.loaded, "decode", self.request.changed(seq=tokens))
        except MeshcError as error:
            return error.diagnostics[0]

    def longest(self, known: Sequence[Fit]) -> tuple[Fit, Fit, Diagnostic]:
        """The program for the most tokens, the one for the fewest in as many regions, and why one
        for one token more is refused; the first that is ``known`` is the one for a single token.

        Memory is taken slot by slot, so it is tried with all slots taken: with multiples of what
        the caches of the first hold. The next number is where the bytes of the programs so far
        lead or, where that did not fit, the last one below it, then one twice as far below each
        time, no less than halfway to what fits. An odd number of slots may take more code than the
        next even one, so two slots more are tried before the search ends.
        """
        grain = _held(known[0])
        fits = {_held(fit): fit for fit in known}
        refused: dict[int, Diagnostic] = {}
        while True:
            low = self._bisect(fits, refused, grain)
            if not self._fits(low + 2 * grain, fits, refused):
                break
        best = fits[low]
        regions = best.module.the_mesh().regions
        alike = min(n for n, fit in fits.items() if fit.module.the_mesh().regions == regions)
        return best, fits[alike], refused[low + 1]

    def _bisect(self, fits: dict[int, Fit], refused: dict[int, Diagnostic], grain: int) -> int:
        """The most tokens that fit, where one more does not."""
        low, high, back = max(fits), MOST_TOKENS + 1, 1
        while low + 1 not in refused:
            at = _promising(fits, grain)
            if at >= high:
                apart = (high - low - 1) // grain
                at = low + max(1, apart // 2, apart + 1 - back) * grain if apart else low + 1
            if self._fits(at, fits, refused):
                low, back = max(fits), 1
            else:
                high, back = at, 2 * back
        return low

    def _fits(self, tokens: int, fits: dict[int, Fit], refused: dict[int, Diagnostic]) -> bool:
        """Whether there is a program for so many tokens, which is kept, or why there is none."""
        if tokens in refused:
            return False
        found = self.attempt(tokens)
        if isinstance(found, Fit):
            fits[_held(found)] = found
            return True
        refused[tokens] = found
        return False


def _overflow(fit: Fit) -> Overflow:
    """Where the caches of a program overflow."""
    overflow = first_overflow(fit.module)
    assert overflow is not None
    return overflow


def _held(fit: Fit) -> int:
    """Tokens that the caches of a program hold."""
    return _overflow(fit).position


def _promising(fits: dict[int, Fit], grain: int) -> int:
    """The largest number of tokens that may fit by the line through the spare bytes of the last
    two of ``fits``, which are for so many tokens; one more than the last at least."""
    before, last = (sorted(fits) * 2)[-2:]
    steps = max(1, (last - before) // grain)
    taken = fits[before].spare - fits[last].spare
    further = fits[last].spare * steps // taken if taken > 0 else steps
    return last + max(1, further * grain)
