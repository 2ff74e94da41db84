"""What ``meshc tune`` prints: the front of each phase as a table, all that was tried as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from meshc.cli.printing import table
from meshc.cost.terms import MECHANISMS
from meshc.driver.tuning.configurations import FAULT, Outcome
from meshc.driver.tuning.tuner import PhaseTuning, Tuning

_PREDICTED = (
    "predicted as meshc estimate does it of this configuration, which says by what and "
    "from which numbers"
)
PROVENANCE = {
    "seq": "asked for, or the usual one",
    "layers": "asked for, or all",
    "from_results": "outcomes that the file of --results had",
    "configuration": "tried: docs/command-line.md says which are",
    "cores": "columns x rows x regions",
    "gpus": "those of the configuration",
    "tokens": "tokens that a run of the phase reads or makes",
    "regions": "rectangles of the mesh that the layers were dealt to",
    "seconds": _PREDICTED,
    "tokens_per_second": _PREDICTED,
    "mechanisms": _PREDICTED,
    "needed": "bytes of a core or GPU, counted in the program that would be emitted",
    "left": "bytes of a core or GPU, those of the device less needed",
}
"""By the key that a number stands under: where it is from."""


def tuning_tables(tuning: Tuning, given: Sequence[str], on_cores: bool) -> list[str]:
    """For each phase what was tried, a row for each outcome of the front, and the command that says
    more of the best; ``given`` are the flags that all configurations share."""
    layers = "" if tuning.layers is None else f", {tuning.layers} layers"
    lines = [f"{tuning.model} on {tuning.device}, {tuning.dtype}, {tuning.seq} tokens{layers}"]
    for phase in tuning.phases:
        lines += ["", *_phase(tuning, phase, given, on_cores)]
    return lines


def _phase(
    tuning: Tuning, phase: PhaseTuning, given: Sequence[str], on_cores: bool
) -> Iterator[str]:
    fitting = sum(one.usable for one in phase.tried)
    timed = sum(one.seconds is not None for one in phase.tried)
    unit = "cores" if on_cores else "GPUs"
    against = unit if tuning.measure == "cores" else f"bytes of a {unit.lower()[:-1]}"
    yield (
        f"{phase.phase}: {len(phase.tried)} configurations, {timed} with a time, {fitting} of "
        f"which fit"
    )
    for one in phase.tried:
        if one.why.startswith(FAULT):
            yield f"  {' '.join(one.configuration.flags())}: {one.why.splitlines()[0]}"
    if phase.best is None:
        reasons = dict.fromkeys(one.why for one in phase.tried)
        yield from (f"  {why}" for why in [*reasons][:_REASONS])
        return
    beaten = "" if phase.fits else ", as if memory had no limit, since none fits"
    yield f"those that none beats in ms, tokens/s and {against}{beaten}:"
    rows = [_row(one, on_cores) for one in phase.front]
    heads = ("on", unit, "batch", "algorithms", "tokens/s", "ms", *MECHANISMS, "bytes left")
    used = [i for i in range(len(heads)) if heads[i] in _ALWAYS or any(row[i] for row in rows)]
    yield from table([tuple(row[i] for i in used) for row in (heads, *rows)])
    words = shlex.join([*given, *phase.best.configuration.flags()])
    yield f"more of the first: meshc estimate {words}"


_REASONS = 3
"""Reasons that are said where nothing has a time."""
_ALWAYS = ("on", "cores", "GPUs", "tokens/s", "ms", "bytes left")


def _row(outcome: Outcome, on_cores: bool) -> tuple[str, ...]:
    own = outcome.configuration
    assert outcome.seconds is not None and outcome.tokens_per_second is not None
    many = outcome.regions is not None and outcome.regions > 1 and "=" not in own.mesh
    where = f"{outcome.regions} x {own.mesh}" if many else own.mesh
    return (
        where if on_cores else f"{own.gpus} GPU{'s' if own.gpus > 1 else ''}",
        str(outcome.units),
        str(own.batch) if own.batch > 1 else "",
        " ".join((*own.algo, *([f"cluster={own.cluster}"] if own.cluster else []))),
        _amount(outcome.tokens_per_second),
        _amount(1e3 * outcome.seconds),
        *(_share(outcome, name) for name in MECHANISMS),
        "-" if outcome.left is None else str(outcome.left),
    )


def _share(outcome: Outcome, name: str) -> str:
    """The share of a mechanism in the time."""
    assert outcome.seconds is not None
    spent = outcome.mechanisms.get(name, 0.0)
    return f"{100 * spent / outcome.seconds:.0f} %" if spent else ""


def _amount(number: float) -> str:
    """A number with four figures that count."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def tuning_object(tuning: Tuning, on_cores: bool) -> dict[str, object]:
    """All that was tried, and which of it is the front."""
    return {
        "model": tuning.model,
        "device": tuning.device,
        "dtype": tuning.dtype,
        "seq": tuning.seq,
        "layers": tuning.layers,
        "against": tuning.measure,
        "from_results": tuning.again,
        "phases": [
            {
                "phase": phase.phase,
                "fits": phase.fits,
                "front": [_object(one, on_cores) for one in phase.front],
                "tried": [_object(one, on_cores) for one in phase.tried],
            }
            for phase in tuning.phases
        ],
        "provenance": PROVENANCE,
    }


def _object(outcome: Outcome, on_cores: bool) -> dict[str, object]:
    return {
        "configuration": asdict(outcome.configuration),
        "flags": outcome.configuration.flags(),
        "fits": outcome.fits,
        "cores" if on_cores else "gpus": outcome.units,
        "tokens": outcome.tokens,
        "regions": outcome.regions,
        "seconds": outcome.seconds,
        "tokens_per_second": outcome.tokens_per_second,
        "mechanisms": dict(outcome.mechanisms),
        "needed": outcome.needed,
        "left": outcome.left,
        "algorithms": list(outcome.chosen),
        "why": outcome.why or None,
    }
