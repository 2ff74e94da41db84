"""The folders of the families: what they name is there, and each fact is spelled once."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from meshc.frontend.checkpoints import ModelConfig, model_of, read_config
from meshc.frontend.checkpoints.model_config import SIZE_LIMITS
from meshc.frontend.checkpoints.stored_layout import stored_layout
from meshc.frontend.families import Tables, family_named, family_names
from meshc.frontend.language import elaborate, library_model
from meshc.ir.ops.graph import Rope

FAMILIES = family_names()
# Parameters that each family's model takes under one name, from keys that all configs share.
SHARED = {"eps", "theta", "activation", "dtype", "scaling", "factor", "low_freq_factor"} | {
    "high_freq_factor",
    "original_max_position",
}
FLAGS = {"attention_bias", "o_bias", "mlp_bias", "tied_embeddings"}


def all_tables() -> list[tuple[str, str, Tables]]:
    return [
        (name, kind, tables)
        for name in FAMILIES
        for kind, tables in family_named(name).tables.items()
    ]


def params(
    family: str, **values: bool | int | str
) -> dict[str, tuple[tuple[str, ...], dict[str, int]]]:
    """Dims and extents of the weights of a family's model, without the layers."""
    module = elaborate(library_model(family, values), "decode", seq=1)
    found = {p.value.name: p.value.type.dims for p in module.function.params if p.role == "weight"}
    loops = ("layers", "sparse", "dense")
    return {n: (tuple(d for d in dims if d not in loops), module.dims) for n, dims in found.items()}


def variants(family: str) -> list[dict[str, bool | int | str]]:
    """Values of parameters that together take every branch of a family's model."""
    known = {p.name for p in library_model(family, {}).parameters}
    switches: dict[str, bool | int | str] = dict.fromkeys(
        ("attention_bias", "o_bias", "mlp_bias", "bias", "head_norms"), True
    )
    switches |= {"Q": 24, "sparse": 2, "scoring": "sigmoid", "dense": 1}
    switched = {name: value for name, value in switches.items() if name in known}
    others = [{"sparse": 2}] if "sparse" in known else []
    untied: dict[str, bool | int | str] = {"tied": False} if "tied" in known else {}
    return [{}, switched, untied, *others]


@pytest.mark.every_case
@pytest.mark.parametrize("family", FAMILIES)
def test_every_param_has_a_stored_form_and_none_is_left_over(family: str) -> None:
    stored = family_named(family).params
    found = {}
    for values in variants(family):
        found |= params(family, **values)
    assert set(found) == set(stored)
    for name, (dims, extents) in found.items():
        entry = stored[name]
        one = tuple(dim for dim in dims if dim != entry.each)
        layout = stored_layout(entry.stored, one, extents, entry.part)
        assert layout.shape() == tuple(extents[dim] for dim in one)
        assert entry.gguf_pairs in ("", *dims) and entry.each in ("", *dims)
        assert ("{each}" in entry.hf) == bool(entry.each)
        gguf = family_named(family).gguf
        if gguf and not gguf.refused_because:
            assert ("{n}" in entry.hf) == ("{n}" in entry.gguf) and "{each}" not in entry.gguf
            layout = stored_layout(entry.gguf_axes(), dims, extents, entry.part, entry.gguf_pairs)
            assert layout.shape() == tuple(extents[dim] for dim in dims)


@pytest.mark.every_case
@pytest.mark.parametrize(("family", "kind", "tables"), all_tables())
def test_tables_name_fields_of_a_config_and_parameters_of_the_model(
    family: str, kind: str, tables: Tables
) -> None:
    known = {p.name for p in library_model(family, {}).parameters}
    numbers = {*tables.sizes, *(["head_dim"] if tables.lanes else [])}
    assert numbers == set(SIZE_LIMITS) <= {field.name for field in fields(ModelConfig)}
    assert set(tables.flags) <= FLAGS
    named = {entry.parameter for entry in (*tables.sizes.values(), *tables.flags.values())} - {""}
    own = {*tables.own, *tables.switches, *tables.numbers}
    own |= tables.experts.parameters() if tables.experts else set()
    own |= {tables.windows.parameter} if tables.windows else set()
    own |= {tables.rotary.parameter} if tables.rotary else set()
    own |= {tables.skipped_rope.parameter} if tables.skipped_rope else set()
    assert named | own <= known
    assert not named & own and not set(tables.own) & set(tables.switches)
    assert known >= (SHARED if tables.rope_types else {"eps", "activation", "dtype"})
    assert not (SHARED - {"eps", "activation", "dtype"}) & known or tables.rope_types
    above: list[str] = []
    for own_name, size in {**tables.sizes, **tables.own}.items():
        assert size.limit in ("", *SIZE_LIMITS)
        bounded = size.equal or size.less or size.within
        assert bool(size.why) == (size.multiple > 1 or bool(bounded))
        for other in (size.default, size.null):
            for name in re.split(r" / |4 \* ", other) if isinstance(other, str) else []:
                assert name in ("", *above)
        assert {size.equal, size.less, size.within} <= {"", *above}
        above.append(own_name)
    for refusal in tables.refused:
        assert bool(refusal.why) != bool(refusal.unsupported)
        assert bool(refusal.help) == bool(refusal.unsupported)
        given = (refusal.absent, refusal.value is not None, refusal.only is not None)
        assert sum(given) == 1


@pytest.mark.every_case
@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_files_give_the_parameters_that_hugging_face_files_give(family: str) -> None:
    gguf, tables = family_named(family).gguf, family_named(family).tables[family]
    if gguf is None or gguf.refused_because:
        return
    other = gguf.tables
    given = {*other.own, *other.switches, *other.numbers, *gguf.by_layers, *gguf.fixed}
    given |= {*gguf.present, *gguf.absent}
    given |= {other.windows.parameter, other.windows.but} if other.windows else set()
    given |= {other.local_rope.parameter} if other.local_rope else set()
    wanted = {*tables.own, *tables.switches, *tables.numbers}
    wanted |= {tables.windows.parameter, tables.windows.but} if tables.windows else set()
    wanted |= {tables.local_rope.parameter} if tables.local_rope else set()
    wanted |= {tables.skipped_rope.parameter} if tables.skipped_rope else set()
    # Files say nothing of windows that some models have.
    assert given - {""} in (wanted - {""}, wanted - {"", "W"})
    assert {*gguf.present.values(), *gguf.absent.values()} <= set(family_named(family).params)
    for rules in gguf.by_layers.values():
        assert all(layers.isdecimal() for layers in rules)
        named = {name for rule in rules.values() for name in rule.split(" / ")}
        assert named <= set(SIZE_LIMITS)


@pytest.mark.every_case
@pytest.mark.parametrize(("share", "turning"), [(1.0, {0, 64}), (0.5, {32})])
@pytest.mark.parametrize(
    ("family", "kind", "tables"), [one for one in all_tables() if one[2].rotary is not None]
)
def test_lanes_turn_as_many_as_a_config_says(
    family: str, kind: str, tables: Tables, share: float, turning: set[int], tmp_path: Path
) -> None:
    """All of them too, whatever the defaults of the family's model say; 0 stands for all."""
    assert tables.rotary is not None
    (architecture,) = (a for a, of in family_named(family).architectures.items() if of == kind)
    config = {
        "architectures": [architecture],
        "model_type": kind,
        "hidden_size": 128,
        "num_attention_heads": 2,
        "head_dim": 64,
        "num_hidden_layers": 1,
        "intermediate_size": 40,
        "vocab_size": 30,
        "max_position_embeddings": 64,
        "num_key_value_heads": 2,
        tables.named.eps: 1e-5,
        tables.rotary.key: share,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    module = elaborate(model_of(read_config(tmp_path)), "decode", seq=4)
    ropes = [op for op in module.walk() if isinstance(op, Rope)]
    assert len(ropes) == 2 and {op.rotated for op in ropes} <= turning


def test_no_architecture_is_of_two_families() -> None:
    classes = [name for family in FAMILIES for name in family_named(family).architectures]
    kinds = [kind for family in FAMILIES for kind in family_named(family).tables]
    assert len(set(classes)) == len(classes)
    assert len(set(kinds)) == len(kinds)
    assert set(FAMILIES) <= set(kinds)
