"""The programs of "In torch" run, one after the other."""

import pytest
from pages import ROOT, blocks

WORD = "the extra is not installed: pip install 'meshc[torch]'"
pytest.importorskip("torch", reason=WORD)
pytest.importorskip("transformers", reason=WORD)


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
def test_the_programs_run(monkeypatch):
    monkeypatch.chdir(ROOT)
    names = {}
    programs = blocks("docs/own-program.md", "python")
    assert len(programs) == 4
    for program in programs:
        exec(compile(program, "own-program.md", "exec"), names)
    assert names["answer"].shape == (1, 7)
    assert int(names["cached"]) == 6
    assert names["compiled"].files and names["imported"].text.splitlines()[3].startswith(
        "model mine("
    )
