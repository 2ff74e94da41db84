"""What ``meshc estimate MODEL --json`` prints: plans, and where each of their numbers is from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from meshc.cli.printing import message_objects
from meshc.cost.predictions import MODELS, Part, Prediction
from meshc.driver.planning.plan_answers import PhasePlan, Plan, Room

_PREDICTED = "predicted by what 'predicted_by' names, from the numbers in 'inputs'"
_COUNTED = "counted in the program that would be emitted"
_ASKED = "asked for, or the usual one"
PROVENANCE = {
    "seq": _ASKED,
    "batch": _ASKED,
    "layers": _ASKED,
    "gpus": "asked for, or one GPU, or all of a node",
    "nodes": "asked for, or one",
    "tokens": "tokens that a run of the phase reads or makes",
    "regions": "rectangles of the mesh that the layers were dealt to",
    "total": _PREDICTED,
    "seconds": _PREDICTED,
    "tokens_per_second": _PREDICTED,
    "bound": "the least that the work and the messages of the program take, from the same numbers",
    "mechanisms": _PREDICTED,
    "parts": _PREDICTED,
    "joules_per_token": "predicted from the device's watts and joules and the predicted time",
    "memory": f"{_COUNTED}; the size is the device's; code is an estimate (docs/csl.md)",
    "routes": f"{_COUNTED}; those that are free are the device's",
    "stream": "bytes in the memory that cores share, by what takes them; the size is the device's",
    "kv_tokens": "compiled for several lengths, or bytes that are left over those of a token",
    "inputs": "the device's file: each number says its kind and source",
    "transition": "words that the host copies, counted in the program of decode",
}
"""By the key that a number stands under: where it is from."""


def plans_object(plans: Sequence[Plan]) -> dict[str, object]:
    """All plans."""
    return {"plans": [_plan(one) for one in plans], "provenance": PROVENANCE, "models": {**MODELS}}


def _plan(plan: Plan) -> dict[str, object]:
    between = plan.transition
    return {
        "model": plan.model,
        "device": plan.device,
        "dtype": plan.dtype,
        "seq": plan.seq,
        "batch": plan.batch,
        "layers": plan.layers,
        "gpus": plan.gpus,
        "nodes": plan.nodes,
        "fits": plan.fits,
        "phases": [_phase(one) for one in plan.phases],
        "transition": None
        if between is None
        else {"least": between.amount, "unit": between.unit, "why": between.why},
    }


def _phase(phase: PhasePlan) -> dict[str, object]:
    refused = phase.refused
    return {
        "phase": phase.phase,
        "tokens": phase.tokens,
        "mesh": phase.mesh,
        "regions": phase.regions,
        "fits": phase.fits,
        "refused": message_objects([refused], refused.severity)[0] if refused else None,
        "would_fit": list(phase.cures),
        "tokens_per_second": phase.tokens_per_second,
        **_predicted(phase.prediction),
        "not_predicted": phase.silent or None,
        "chosen": list(phase.chosen),
        "memory": None if phase.room is None else _memory(phase.room),
        "routes": None
        if phase.routes is None
        else {
            "colors": phase.routes.colors,
            "free_colors": phase.routes.free_colors,
            "input_queues": phase.routes.queues,
            "free_input_queues": phase.routes.free_queues,
        },
        "stream": None
        if phase.stream is None
        else {"size": phase.stream.size, "uses": dict(phase.stream.uses)},
        "kv_tokens": phase.kv_tokens,
        "joules_per_token": phase.joules,
        "violates": dict(phase.violates),
    }


def _predicted(found: Prediction | None) -> dict[str, object]:
    if found is None:
        return dict.fromkeys(
            ("predicted_by", "unit", "total", "seconds", "bound", "mechanisms"), None
        ) | {"parts": [], "left_out": [], "inputs": []}
    return {
        "predicted_by": found.model,
        "unit": found.unit,
        "total": found.total,
        "seconds": found.seconds,
        "bound": found.bound,
        "mechanisms": {name: found.cost.parts()[name] for name in found.apart},
        "parts": [_part(part, found.apart) for part in found.parts],
        "left_out": list(found.left_out),
        "inputs": [
            {"name": i.name, "value": i.value, "unit": i.unit, "kind": i.kind, "source": i.source}
            for i in found.inputs
        ],
    }


def _part(part: Part, apart: Sequence[str]) -> dict[str, object]:
    spent = {name: part.cost.parts()[name] for name in apart}
    return {"name": part.name, "times": part.times, "total": part.cost.total, **spent}


def _memory(room: Room) -> dict[str, object]:
    return {
        "size": room.size,
        "needed": room.needed,
        "left": room.left,
        "uses": dict(room.uses),
        "buffers": dict(room.buffers),
    }


def unexplained(
    value: object, keys: tuple[str, ...] = (), known: Mapping[str, str] = PROVENANCE
) -> Iterator[tuple[str, ...]]:
    """The places of numbers in ``value`` none of whose keys is ``known``."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from unexplained(inner, (*keys, key), known)
    elif isinstance(value, list):
        for inner in value:
            yield from unexplained(inner, keys, known)
    elif type(value) in (int, float) and not known.keys() & {*keys}:
        yield keys
