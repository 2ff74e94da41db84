"""Windows of attention in a ``config.json``: how many tokens they have, and in which layers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshc.frontend.checkpoints.fields import Fields, brief
from meshc.frontend.checkpoints.model_config import SIZE_LIMITS, Parameter
from meshc.frontend.families import Windows

_TOKENS, _LAYERS = "sliding_window", "layer_types"
_SLIDING, _FULL = "sliding_attention", "full_attention"
_LETTERS = re.compile("L{0,999}G")  # a pattern in letters: layers with windows, then one without
_MOST_SHOWN = 8
_HELP = "meshc computes full causal attention in every layer here"


def read_windows(fields: Fields, windows: Windows | None, layers: int) -> dict[str, Parameter]:
    """The parameters of a model of ``layers`` that say its windows, none where it has none; faults
    go to the diagnostics of ``fields``."""
    if windows is None or not _has_window(fields, windows):
        _check_full(fields, windows is not None and bool(windows.switch))
        return {}
    if fields.values.get(_TOKENS, 0) is None:
        fields.reject_value(_TOKENS, "a number is wanted")
    most = SIZE_LIMITS["max_positions"]
    window = fields.integer(_TOKENS, 1, most, default=windows.default)
    if windows.any_layers:
        return _in_layers(fields, windows, window, layers)
    kinds = [_SLIDING, *[_FULL] * (windows.every - 1)]
    without = _without_window(fields, windows, layers) if windows.but else 0
    if without:
        kinds = [*[_SLIDING] * (without - 1), _FULL]
    shown = kinds if len(kinds) <= _MOST_SHOWN else [*kinds[:2], "..", kinds[-1]]
    if fields.has(_LAYERS) and fields.values[_LAYERS] != (kinds * layers)[:layers]:
        _refuse_layers(
            fields, f"layer_types = {shown} again and again, for each of {layers} layers"
        )
    found: dict[str, Parameter] = {windows.parameter: window}
    return {**found, windows.but: without} if windows.but else found


def _has_window(fields: Fields, windows: Windows) -> bool:
    """Whether layers have windows at all: a switch that is off, or null, where it is allowed, says
    that they do not."""
    if windows.switch and not fields.boolean(windows.switch, False):
        return False
    absent = _TOKENS not in fields.values
    return bool(windows.default) if absent else fields.has(_TOKENS) or not windows.optional


def _in_layers(fields: Fields, windows: Windows, window: int, layers: int) -> dict[str, Parameter]:
    """The window and in which layers it is, by the list of the file or, where there is none, by
    numbers of layers: in those from the number at one key on, or in every so many-th below it."""
    given = fields.values.get(_LAYERS)
    slides = [number % windows.every == 0 for number in range(layers)]
    if given is not None:
        known = isinstance(given, list) and all(kind in (_SLIDING, _FULL) for kind in given)
        if not isinstance(given, list) or not known or len(given) != layers:
            fields.reject_value(_LAYERS, f"{_SLIDING} or {_FULL} is wanted for each layer")
            return {}
        slides = [kind == _SLIDING for kind in given]
    elif windows.first:
        first = fields.integer(windows.first, 0, SIZE_LIMITS["layers"], windows.usual_first)
        slides = [number >= first for number in range(layers)]
    elif windows.below:
        below = fields.integer(windows.below, 0, SIZE_LIMITS["layers"], windows.usual_first)
        slides = [slides[number] and number < below for number in range(layers)]
    if not any(slides):
        return {}
    chosen = _chosen(slides)
    if chosen is None:
        _refuse_layers(fields, "windows in every n-th layer, in all but every n-th or the first n")
        return {}
    return {windows.parameter: window, **chosen}


def _chosen(slides: Sequence[bool]) -> dict[str, Parameter] | None:
    """The parameter of a softmax that chooses just the layers which slide; none for all of them,
    None where no parameter does."""
    layers, first = range(len(slides)), slides.index(True)
    if all(slides[first:]):
        return {"after": first} if first else {}
    full = slides.index(False)
    every = next((n for n in layers[full + 1 :] if slides[n]), len(slides))
    if full == 1 and list(slides) == [n % every == 0 for n in layers]:
        return {"every": every}
    if list(slides) == [(n + 1) % (full + 1) != 0 for n in layers]:
        return {"but": full + 1}
    return None


def _without_window(fields: Fields, windows: Windows, layers: int) -> int:
    """Every how many-th layer has no window: by the key of the pattern, else by the list, in which
    the first such layer tells."""
    kinds, pattern = fields.values.get(_LAYERS), fields.values.get(windows.pattern)
    if isinstance(pattern, str) and _LETTERS.fullmatch(pattern):
        return len(pattern)
    if fields.has(windows.pattern) or not isinstance(kinds, list):
        return fields.integer(windows.pattern, 1, SIZE_LIMITS["layers"], default=windows.every)
    return kinds.index(_FULL) + 1 if _FULL in kinds else layers + 1


def _check_full(fields: Fields, has_switch: bool) -> None:
    """Refuse attention that does not see the whole context. Where windows have a switch, which is
    off, their size means nothing."""
    kinds = fields.values.get(_LAYERS)
    listed = kinds if isinstance(kinds, list) else []
    others = [kind for kind in listed if kind != _FULL]
    if others or not isinstance(kinds, list | None):
        found = brief(others[0] if others else kinds)
        message = f"only layers of type {_FULL} are supported, not {found}"
        fields.reject("config-unsupported", _LAYERS, message, _HELP)
    if has_switch:
        return
    for key in (_TOKENS, "use_sliding_window"):
        if fields.has(key) and fields.values[key] is not False:
            message = "sliding-window attention is not supported"
            fields.reject("config-unsupported", key, message, _HELP)


def _refuse_layers(fields: Fields, computed: str) -> None:
    fields.reject(
        "config-unsupported",
        _LAYERS,
        "windows in other layers than those of the family are not supported",
        f"meshc computes {computed}",
    )
