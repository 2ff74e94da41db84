"""What the manifest of a compiled program says, so that it can be run from its directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from meshc.backends.python import HostFacts
from meshc.backends.request import CompileRequest
from meshc.backends.target import target_of
from meshc.driver.models import LoadedModel
from meshc.driver.serving_facts import Serving
from meshc.frontend.checkpoints import ModelConfig, RopeScaling
from meshc.frontend.families import is_family
from meshc.ir.module import Module
from meshc.support.diagnostics import fail
from meshc.support.output import MANIFEST, read_manifest

FORMAT = 1
RUNNABLE = ("python", "cuda", "csl")


def facts_of(
    loaded: LoadedModel,
    request: CompileRequest,
    modules: Mapping[str, Module],
    host: HostFacts,
    serving: Serving | None = None,
) -> dict[str, object]:
    """Facts of the output; the same bytes wherever and whenever it is compiled."""
    first = next(iter(modules.values()))
    found: dict[str, object] = {
        "format": FORMAT,
        "model": loaded.name,
        "target": request.compile_to or request.target,
        "mesh": str(first.mesh or request.mesh_name) if target_of(request).ON_MESH else None,
        "phases": list(modules),
        "dtype": str(first.dtype()),
        "layers": request.layers,
        "embedding": host.embedding,
    }
    if host.learned is not None:
        found["positions"] = host.learned
    if serving is not None:
        found["serving"] = serving.facts
    if loaded.config is not None:
        found["config"] = asdict(loaded.config)
    return found


def read_program(folder: Path) -> dict[str, object]:
    """The manifest of the compiled program in ``folder``; fails with ``no-program``."""
    found = read_manifest(folder)
    if found is None or found.get("format") != FORMAT or found.get("target") not in RUNNABLE:
        fail(
            "no-program",
            f"'{folder}' holds no compiled program",
            help=f"meshc compile MODEL -o {folder}; its {MANIFEST} says what it is",
        )
    return found


def config_of(facts: Mapping[str, object]) -> ModelConfig | None:
    """The config that a manifest carries, or None for a program of a ``.mesh`` file.

    Fails with ``no-program`` when someone changed it to something that is no config.
    """
    stored = facts.get("config")
    if not isinstance(stored, dict):
        return None
    hints = get_type_hints(ModelConfig)
    values: dict[str, Any] = {name: stored.get(name) for name in hints}
    values["eos_ids"] = tuple(stored.get("eos_ids") or ())
    values["rope_scaling"] = _scaling(stored.get("rope_scaling"))
    wrong = [name for name, value in values.items() if not _has_type(value, hints[name])]
    if not is_family(str(values["family"])):
        wrong.append("family")
    if wrong:
        fail("no-program", f"{MANIFEST} has no sound '{wrong[0]}' in its config")
    return ModelConfig(**values)


def _has_type(value: object, hint: Any) -> bool:
    """Whether ``value`` is what a field of ModelConfig may hold."""
    origin = get_origin(hint)
    if origin is Literal:
        return value in get_args(hint)
    if origin is Mapping:
        kinds = get_args(hint)
        return isinstance(value, dict) and all(
            _has_type(part, kind)
            for pair in value.items()
            for part, kind in zip(pair, kinds, strict=True)
        )
    if origin is tuple:
        return isinstance(value, tuple) and all(isinstance(v, int) for v in value)
    if get_args(hint):
        return any(_has_type(value, part) for part in get_args(hint))
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _scaling(stored: object) -> object:
    """The RoPE scaling of a stored config; what it cannot be is left for the check of types."""
    for kind in get_args(RopeScaling):
        if isinstance(stored, dict) and set(stored) == set(get_type_hints(kind)):
            lists = {k: tuple(v) for k, v in stored.items() if isinstance(v, list)}
            return kind(**{**stored, **lists})
    return stored
