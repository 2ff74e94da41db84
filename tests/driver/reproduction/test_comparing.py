"""Errors, roles, demands and the choice of tables."""

from dataclasses import replace

import pytest

from meshc.driver.reproduction.claims import OF_FIGURES
from meshc.driver.reproduction.compared import Compared, Section, compared, role_of
from meshc.driver.reproduction.demands import DEMANDS, answers
from meshc.driver.reproduction.markdown_page import page, sections_object
from meshc.driver.reproduction.sections import builders, chosen
from meshc.driver.reproduction.servers import Servers
from meshc.driver.reproduction.wafer_llm import MODELS, SYSTEMS, constants_of, splits, table_3
from meshc.published import SOURCES, Row, table, tables
from meshc.support.diagnostics import MeshcError

HELD = Compared("a", "rate", "1/s", 4.0, 5.0, "held out")


def test_errors_are_relative_to_what_was_published():
    assert HELD.error == 0.25 and HELD.counted == (0.25,)
    assert replace(HELD, errors=(0.25, -0.1)).counted == (0.25, -0.1)


@pytest.mark.parametrize("role", ["calibrated", "arithmetic", "not modelled"])
def test_rows_that_tell_nothing_are_not_counted(role):
    assert replace(HELD, role=role).counted == ()
    assert replace(HELD, predicted=None).error is None
    assert replace(HELD, published="> 3").error is None


def test_roles_of_a_series():
    rows = [Row({"n": n}, {"x": 1.0}, frozenset(["x"] if fit else [])) for n, fit in
            ((1, True), (2, False), (3, True), (4, False))]  # fmt: skip
    found = [role_of(row, "x", rows, "n") for row in rows]
    assert found == ["calibrated", "interpolated", "calibrated", "held out"]
    assert role_of(rows[1], "x", rows) == "held out"


def test_every_table_of_every_source_has_a_section():
    """And sections have tables, so that nothing published is passed over."""
    known = {
        "layered" if source == "layered_prefill" else source.partition("_")[0]: set(tables(source))
        for source in SOURCES
    }
    wanted = {f"{paper}-{name}" for paper, names in known.items() for name in names}
    assert set(builders(Servers())) - wanted == {"layered-8-energy"}
    assert wanted <= set(builders(Servers()))


def test_names_are_of_papers_or_tables():
    assert chosen(["waferllm-3", "waferllm-3"]) == ("waferllm-3",)
    assert set(chosen(["tokenweave"])) == {n for n in chosen([]) if n.startswith("tokenweave-")}
    for name, words in (("waferllm-33", "waferllm-3"), ("paper", "papers are waferllm")):
        with pytest.raises(MeshcError) as caught:
            chosen([name])
        (found,) = caught.value.diagnostics
        assert found.code == "bad-argument" and words in found.help


def test_demands_are_of_sections_that_exist():
    known = set(builders(Servers()))
    assert all(set(demand.sections) <= known for demand in DEMANDS)


def test_a_demand_is_not_met_by_nothing():
    section = Section("waferllm-6", table("waferllm", "6"), "nothing", ())
    (found,) = answers([section])
    assert found.mean is None and not found.met


def test_constants_are_of_other_models():
    """What a model is predicted by does not change with its rows, and changes with others'."""
    found = {models: constants_of(SYSTEMS["WaferLLM"], models, "3") for models in splits()}
    assert len(found) == 6 and len({tuple(c.values()) for c in found.values()}) == 6
    for row in table_3().rows:
        if row.counted:
            assert len(row.errors) == 3


def test_four_models_are_timed():
    rows = table("waferllm", "3").where(system="WaferLLM")
    assert {row.text("model") for row in rows} == set(MODELS) and len(rows) == 12


def test_a_page_has_errors_reasons_and_roles():
    own = table("waferllm", "5")
    rows = (
        compared(own, own.rows[0], "tokens", 400.0, "held out"),
        compared(own, own.rows[1], "tokens", None, "not modelled", "nobody knows"),
    )
    section = Section("waferllm-5", own, "hand", rows)
    text = page([section])
    assert (
        "| llama-3-8b, concat, 360x360 | tokens, tokens | 382 | 400 | +4.7 % | held out |" in text
    )
    assert (
        "*Not modelled*, nobody knows: llama-3-8b, shift, 360x360 tokens: 137,548 tokens." in text
    )
    (found,) = sections_object([section])["sections"]
    first, second = found["rows"]
    assert first["published"]["source"].startswith("WaferLLM (OSDI 2025), arXiv")
    assert first["predicted"] == {"value": 400.0, "source": "hand"} and second["predicted"] is None


@pytest.mark.parametrize(
    ("published", "predicted", "holding"),
    [(44.97, 44.978, 1), (2.22, 2.2154, 1), (0.3, 0.3038, 1), (44.97, 44.96, 0), (0.84, 0.851, 0)],
)
def test_ratios_of_energy_have_the_digits_that_are_printed(published, predicted, holding):
    own = table("waferllm", "8")
    row = replace(compared(own, own.rows[0], "ratio", predicted, "arithmetic"), published=published)
    unknown = compared(own, own.rows[0], "ratio", None, "not modelled", "nobody knows")
    sections = [Section(f"waferllm-{name}", own, "hand", (row, unknown)) for name in "678"]
    (found,) = [one for one in answers(sections) if "energy" in one.demand.what]
    assert (found.holding, found.rows) == (3 * holding, 3) and found.met == (holding == 1)


@pytest.mark.parametrize("why", ["", "the paper does not say of which product it speaks"])
def test_claims_hold_or_the_page_says_why_not(why):
    own = table("waferllm", "claims")
    name = f"{min(OF_FIGURES).replace('_', ' ')} (section 7.2)"
    rows = (
        Compared(name, "value", "", 0.7, "0.8", "claim", holds=True),
        Compared(name, "value", "", 0.5, "0.8", "claim", why, holds=False),
    )
    (found,) = answers([Section("waferllm-claims", own, "hand", rows)])
    assert (found.holding, found.rows, found.met) == (1, 2, bool(why))
