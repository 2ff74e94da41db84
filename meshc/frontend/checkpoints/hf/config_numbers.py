"""Sizes and truth values of a ``config.json``, and what is refused, as its family's tables say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshc.frontend.checkpoints.fields import Fields
from meshc.frontend.checkpoints.hf.attention_windows import read_windows
from meshc.frontend.checkpoints.hf.rope import read_skipped
from meshc.frontend.checkpoints.model_config import SIZE_LIMITS, Parameter, find_conflicts
from meshc.frontend.families import Dense, Experts, Flag, Number, Refusal, Size, Tables

_MOST_EXPERTS = 1 << 20


@dataclass(frozen=True)
class Numbers:
    """Sizes, own parameters and truth values, by their names in the tables of the family."""

    sizes: Mapping[str, int]
    own: Mapping[str, Parameter]
    flags: Mapping[str, bool]


def read_numbers(fields: Fields, tables: Tables, ids: tuple[int, ...]) -> Numbers:
    """The numbers of one config; faults, and what is refused, go to the diagnostics.

    ``ids`` are token ids, which must lie in the vocabulary.
    """
    known: dict[str, int] = {}
    for name, size in _sizes(fields, tables).items():
        if fields.has(size.key) or not _is_computed(size.default):
            known[name] = _read_size(fields, size, known, SIZE_LIMITS[size.limit or name])
    _check_sizes(fields, tables, known)
    for refusal in tables.refused:
        _apply(fields, refusal)
    experts = _read_experts(fields, tables.experts, known) if tables.experts else {}
    flags = _read_flags(fields, tables.flags)
    switches = _read_flags(fields, tables.switches)
    numbers = _read_numbers(fields, tables.numbers)
    numbers |= read_windows(fields, tables.windows, known["layers"])
    if tables.dense:
        numbers |= _read_dense(fields, tables.dense, known, numbers)
    if tables.skipped_rope:
        skipped = read_skipped(fields, tables.skipped_rope, known["layers"])
        numbers[tables.skipped_rope.parameter] = skipped
    if tables.lanes:
        known["head_dim"] = sum(known[lane] for lane in tables.lanes)
    _check_together(fields, tables, known, ids)
    for name, size in tables.sizes.items():
        if name not in known:
            known[name] = computed(str(size.default), known)
    return Numbers(
        {name: known[name] for name in SIZE_LIMITS},
        {**{name: known[name] for name in tables.own}, **switches, **numbers, **experts},
        flags,
    )


def _sizes(fields: Fields, tables: Tables) -> dict[str, Size]:
    """All sizes, each with the key that the file has of it."""
    return {
        name: replace(size, key=size.other) if size.other in fields.values else size
        for name, size in {**tables.sizes, **tables.own}.items()
    }


def _is_computed(default: int | str | None) -> bool:
    return isinstance(default, str) and any(sign in default for sign in "/*")


def computed(text: str, known: Mapping[str, int]) -> int:
    """The number that ``a / b`` or ``4 * a`` stands for, of sizes a and b."""
    if "*" in text:
        times, name = text.split("*")
        return int(times) * known[name.strip()]
    whole, parts = (known[name.strip()] for name in text.split("/"))
    return whole // parts


def _read_flags(fields: Fields, flags: Mapping[str, Flag]) -> dict[str, bool]:
    """The truth values; two that have one key are read once."""
    keys = {flag.key: flag.default for flag in flags.values()}
    found = {key: fields.boolean(key, default) for key, default in keys.items()}
    return {name: found[flag.key] for name, flag in flags.items()}


def _read_size(fields: Fields, size: Size, known: Mapping[str, int], most: int) -> int:
    """The number at the key of ``size``, else what stands for it, less what is not part of it."""
    usual = size.default
    if size.key in fields.values and size.null is not None:
        usual = size.null
    absent = None
    if not fields.has(size.key):
        absent = known[usual] if isinstance(usual, str) else usual
    number = fields.integer(size.key, 1, most, absent)
    if not size.less:
        return number
    if number <= known[size.less] and size.key not in fields.bad:
        fields.reject_value(size.key, f"a number above {known[size.less]} is wanted: {size.why}")
    return max(1, number - known[size.less])


def _check_sizes(fields: Fields, tables: Tables, known: Mapping[str, int]) -> None:
    """What one size must be, whatever the others are."""
    sizes = {name: size for name, size in _sizes(fields, tables).items() if name in known}
    _check_each(fields, sizes, known)


def _check_each(fields: Fields, sizes: Mapping[str, Size], known: Mapping[str, int]) -> None:
    """Refuse a size that is no multiple of, not equal to or not within what it must be."""
    for name, size in sizes.items():
        if size.key in fields.bad:
            continue
        if known[name] % size.multiple:
            fields.reject_value(size.key, size.why)
        if size.equal and known[name] != known[size.equal]:
            fields.reject_value(size.key, f"{size.why}, {known[size.equal]}")
        if size.within and known[name] > known[size.within]:
            fields.reject_value(size.key, f"{size.why}, {known[size.within]}")


def _check_together(
    fields: Fields, tables: Tables, known: Mapping[str, int], ids: tuple[int, ...]
) -> None:
    # Of a head with lanes of its own the table says which of them turn, and how many those may be.
    turn_whole = bool(tables.rope_types) and not tables.lanes
    conflicts = find_conflicts(
        known["hidden"],
        known["heads"],
        known["kv_heads"],
        known.get("head_dim"),
        known["vocab"],
        ids,
        rotary=turn_whole,
    )
    for conflict in conflicts:
        keys = [tables.sizes[n].key if n in tables.sizes else n for n in conflict.fields]
        if fields.bad.isdisjoint(keys):
            # An absent key has no place in the text: point at one that is there.
            shown = next((key for key in keys if fields.has(key)), keys[0])
            help_text = f"make {' and '.join(keys)} agree"
            fields.reject("config-bad-value", shown, conflict.message, help_text)


def _apply(fields: Fields, refusal: Refusal) -> None:
    """Refuse the value, or the absence, that ``refusal`` speaks of."""
    given = fields.values.get(refusal.key)
    if refusal.absent:
        is_refused = refusal.key not in fields.values
    elif refusal.only is not None:
        is_refused = given is not None and (
            type(given) is not type(refusal.only) or given != refusal.only
        )
    else:
        is_refused = type(given) is type(refusal.value) and given == refusal.value
    if is_refused and refusal.unsupported:
        fields.reject("config-unsupported", refusal.key, refusal.unsupported, refusal.help)
    elif is_refused:
        fields.reject_value(refusal.key, refusal.why)


def _read_experts(fields: Fields, keys: Experts, known: Mapping[str, int]) -> dict[str, Parameter]:
    """Parameters of the layers from the first that is not dense, if these have experts."""
    layers = known["layers"]
    dense = fields.integer(keys.dense, 0, SIZE_LIMITS["layers"], default=keys.first)
    key = keys.other if keys.other in fields.values else keys.count
    count = fields.integer(key, 0, _MOST_EXPERTS, default=keys.usual)
    without = key in fields.values and not fields.values[key]
    if dense >= layers or without:
        return {}
    sizes = {**known, keys.parameter: count}
    for name, size in keys.own.items():
        sizes[name] = _read_size(fields, size, sizes, SIZE_LIMITS[size.limit or name])
    _check_each(fields, keys.own, sizes)
    return {
        keys.stage: layers - dense,
        keys.parameter: count,
        **{name: sizes[name] for name in keys.own},
        **_read_numbers(fields, keys.numbers),
        **_read_flags(fields, keys.switches),
        **{
            name: fields.string(word.key, word.among, word.among[0])
            for name, word in keys.words.items()
        },
    }


def _read_dense(
    fields: Fields, keys: Dense, known: Mapping[str, int], windows: Mapping[str, Parameter]
) -> dict[str, Parameter]:
    """Parameters of the first layers, if these have no experts; other layers without experts are
    refused, and such ones where only some layers have ``windows``."""
    most, layers = SIZE_LIMITS["layers"], known["layers"]
    listed = fields.values.get(keys.listed) or []
    if not isinstance(listed, list) or not all(type(number) is int for number in listed):
        fields.reject_value(keys.listed, "a list of numbers of layers is wanted")
        return {}
    every = fields.integer(keys.every, 1, most, default=1)
    dense = [n in listed or (n + 1) % every != 0 for n in range(layers)]
    count = dense.index(False) if False in dense else layers
    if not count and not any(dense):
        return {}
    key = keys.listed if listed else keys.every
    if any(dense[count:]) or count == layers:
        words = "layers without experts behind some that have them are not supported"
        if count == layers:
            words = "a model of experts without any is not supported"
        help = "meshc computes these models with experts in all layers from some layer on"
        fields.reject("config-unsupported", key, words, help)
    elif windows.keys() & {"every", "after", "but"}:
        words = "layers without experts are not supported where only some layers have windows"
        fields.reject("config-unsupported", key, words, "switch 'use_sliding_window' off")
    width = _read_size(fields, keys.width, known, SIZE_LIMITS[keys.width.limit])
    return {keys.stage: count, str(keys.width.parameter): width}


def _read_numbers(fields: Fields, numbers: Mapping[str, Number]) -> dict[str, Parameter]:
    """Numbers above 0, or what stands for null, by the names of their parameters."""
    found: dict[str, Parameter] = {}
    for name, number in numbers.items():
        null = number.key in fields.values and number.null is not None
        usual = number.null if null else number.default
        found[name] = fields.number(number.key, 0.0, number.most, usual)
    return found
