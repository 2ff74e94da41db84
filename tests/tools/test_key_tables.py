"""docs/keys.md, and what it says of config.json beside what transformers answered: another value of
a key that changes its logits makes another model here as well, or is refused."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "key_tables.py"


def loaded():
    spec = importlib.util.spec_from_file_location("key_tables", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = loaded()
RECORD = json.loads(script.RECORD.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def answers():
    return script.answers()


def test_the_record_has_every_type_of_model_that_transformers_has():
    families = map(script.family_named, script.family_names())
    kinds = {kind for family in families for kind in family.tables}
    assert RECORD.keys() == kinds - {"internlm2"}
    assert sum(len(one["answers"]) for one in RECORD.values()) >= 400
    asked = [
        theirs for one in RECORD.values() for rows in one["answers"].values() for _, theirs in rows
    ]
    assert asked.count("changes") >= 200


@pytest.mark.every_case
@pytest.mark.parametrize("kind", RECORD)
def test_what_changes_their_logits_is_computed_or_refused(answers, kind):
    dropped = [
        (key, value)
        for key, rows in answers[kind].items()
        for value, theirs, mine in rows
        if theirs == "changes" and mine == script.PASSED
    ]
    assert not dropped


def test_all_three_answers_are_seen(answers):
    mine = [one for keys in answers.values() for rows in keys.values() for _, _, one in rows]
    assert all(mine.count(one) > 300 for one in (script.COMPUTED, script.PASSED, script.REFUSED))


@pytest.mark.models
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 12])
def test_a_tokenizer_gives_what_transformers_gives_or_is_refused(every):
    rows = script.of_tokenizers(every)
    for row in rows:
        if row.mine is None:
            continue
        assert row.theirs != "fails", row
        for mine, theirs in zip(row.mine, row.theirs, strict=True):
            assert mine is None or mine == theirs, row
    if every > 1:
        assert len(rows) >= 40
        return
    assert len({(row.base, row.file, row.key) for row in rows}) >= 400
    said = [row.said for row in rows]
    assert said.count(script.COMPUTED) > 100 and said.count(script.REFUSED) < 20
    assert sum(row.changes and row.said == script.COMPUTED for row in rows) > 80


@pytest.mark.models
def test_the_page_is_that_of_today_but_for_the_tables_of_tokenizers(monkeypatch):
    """Those take half a minute, and stay as the page has them."""
    page = script.PAGE.read_text(encoding="utf-8")
    _, _, rest = page.partition("<!-- tokenizers -->\n")
    held, _, _ = rest.partition("<!-- end -->")
    monkeypatch.setattr(script, "of_tokenizer_files", lambda: held.splitlines()[2:])
    assert script.page() == page


@pytest.mark.slow
@pytest.mark.models
def test_the_page_is_that_of_today():
    assert script.page() == script.PAGE.read_text(encoding="utf-8")
