"""Facts of the graph and mesh levels: they hold of what passes write, not of changed texts."""

from __future__ import annotations

import pytest
from compiled_texts import changed, parse, text_after
from meshes import wafer

from meshc.ir.affine import Expr, Piecewise
from meshc.support.diagnostics import MeshcError, known_codes
from meshc.verify import FACTS, check_claims, check_fact, placed

MESH_FACTS = {"partitioned", "padding_safe", "placed", "collectives_selected", "transpose_free"}
GRIDS = ("1x1", "4x3", "3x5", "6x1", "8x8")

CHANGES = {
    "weight with too small blocks": (
        "partitioned",
        "not-partitioned",
        r"element 20 of V has no core in %lm_head: V_x:5 over 4 cores",
        ("weight %lm_head: f32[E, V]<E_y:4 V_x:6>", "weight %lm_head: f32[E, V]<E_y:4 V_x:5>"),
    ),
    "cache with too few rows": (
        "partitioned",
        "not-partitioned",
        r"element 9 of S has no core in %cache_k",
        ("%cache_k: f32[layers, B, S, G, D]<S_y~:4", "%cache_k: f32[layers, B, S, G, D]<S_y~:3"),
    ),
    "result without layout": (
        "partitioned",
        "not-partitioned",
        "%x_2 has no layout",
        (
            "%x_2 = mesh.add %x_1, %o_4 : f32[B, L, E]<E_y:4>",
            "%x_2 = mesh.add %x_1, %o_4 : f32[B, L, E]",
        ),
    ),
    "split of a dim it does not have": (
        "partitioned",
        "not-partitioned",
        "%x_2 has no dim 'V' to split",
        (
            "%x_2 = mesh.add %x_1, %o_4 : f32[B, L, E]<E_y:4>",
            "%x_2 = mesh.add %x_1, %o_4 : f32[B, L, E]<V_y:8>",
        ),
    ),
    "two dims over one axis": (
        "partitioned",
        "not-partitioned",
        "E and V of %lm_head lie over the axis y at once",
        ("weight %lm_head: f32[E, V]<E_y:4 V_x:6>", "weight %lm_head: f32[E, V]<E_y:4 V_y:8>"),
    ),
    "maximum over keys that are not masked": (
        "padding_safe",
        "padding-unsafe",
        "mesh.row_max reads the pad lanes of S in %s_3, which are any; it needs neg_inf",
        ("mesh.row_max %s.s", "mesh.row_max %s_3"),
    ),
    "sum of exponentials of pads": (
        "padding_safe",
        "padding-unsafe",
        "mesh.row_sum reads the pad lanes of S in %s, which are any; it needs zero",
        ("mesh.exp_sub %s.s", "mesh.exp_sub %s_3"),
    ),
    "product over pads of two caches": (
        "padding_safe",
        "padding-unsafe",
        "mesh.gemv reads the pad lanes of S in %s_3",
        ("mesh.gemv %s, %cache_v_1.new", "mesh.gemv %s_3, %cache_v_1.new"),
    ),
    "tree that does not reach all cores": (
        "collectives_selected",
        "collective-unselected",
        r"over y has algo 'k_tree' with groups \[2\] for 3 cores",
        ("{axis = y, algo = k_tree, groups = [3]}", "{axis = y, algo = k_tree, groups = [2]}"),
    ),
    "tree with a phase too many": (
        "collectives_selected",
        "collective-unselected",
        r"with groups \[3, 2\] for 3 cores, of which one is left before the last phase",
        ("{axis = y, algo = k_tree, groups = [3]}", "{axis = y, algo = k_tree, groups = [3, 2]}"),
    ),
    "reduction without algorithm": (
        "collectives_selected",
        "collective-unselected",
        "over y has algo ''",
        ("{axis = y, algo = k_tree, groups = [3]}", "{axis = y}"),
    ),
    "append without a known policy": (
        "collectives_selected",
        "collective-unselected",
        "a cache append has no policy 'push'",
        ("{dim = S, rows = L}", "{dim = S, rows = L, policy = push}"),
    ),
}


@pytest.mark.every_case
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_facts_hold_of_what_the_passes_write(phase: str, grid: str) -> None:
    module = parse(text_after("split-regions", phase, grid))
    assert module.holds == MESH_FACTS
    check_claims(module)


@pytest.mark.every_case
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_text_is_refused_with_a_witness(change: str) -> None:
    fact, code, words, *edits = CHANGES[change]
    with pytest.raises(MeshcError, match=words) as error:
        check_fact(changed(text_after("split-regions"), *edits), fact)
    assert [d.code for d in error.value.diagnostics] == [code]


def test_a_transpose_is_found_in_a_loop() -> None:
    module = changed(
        text_after("eliminate-transpose"),
        (
            "      %x_2 = graph.add",
            "      %turned = graph.transpose %o {dims = [B, L, E]} : bf16[B, L, E]\n"
            "      %x_2 = graph.add",
        ),
    )
    with pytest.raises(MeshcError, match=r"graph\.transpose still gives %turned") as error:
        check_fact(module, "transpose_free")
    assert [d.code for d in error.value.diagnostics] == ["transposes-left"]


def test_an_order_with_long_steps_is_not_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker walks the ring: the natural order closes it by one long way back."""
    place = Expr.var("p")
    module = parse(text_after("place-interleave", grid="5x5"))
    monkeypatch.setattr(placed, "ring_core", lambda n: Piecewise.single(place))
    with pytest.raises(MeshcError, match="ranks -1 and 0 are too far apart"):
        check_fact(module, "placed")


def test_an_order_that_misses_a_core_is_not_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Expr.var("p")
    module = parse(text_after("place-interleave", grid="5x5"))
    monkeypatch.setattr(placed, "ring_core", lambda n: Piecewise.single(place // 2))
    with pytest.raises(MeshcError, match="misses a core"):
        check_fact(module, "placed")


def test_the_proof_of_a_ring_does_not_grow_with_it() -> None:
    module = parse(text_after("place-interleave", grid="5x5"))
    module.mesh = wafer(1, 1 << 24, interleaved=("x",))
    check_fact(module, "placed")


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_compiled_modules_hold_no_transpose_and_no_exchange_of_all(phase: str) -> None:
    """Neither the scores nor the projections leave a transpose or an all-to-all behind."""
    text = text_after("split-regions", phase) + text_after("plan-memory", phase)
    assert "transpose %" not in text
    assert "all_to_all" not in text
    assert "mesh.relayout" not in text


def test_every_fact_is_explained() -> None:
    codes = {change[1] for change in CHANGES.values()} | {"not-placed", "transposes-left"}
    assert codes <= set(known_codes())
    assert {name for name, fact in FACTS.items() if "mesh" in fact.levels} == MESH_FACTS
