"""The harness that other packages take (`meshc.testing`): a file that is wrong fails, is rewritten
where that is asked for, and is right then; under CI nothing is rewritten."""

import pytest

PASS = """# passes: canonicalize
module @m level(graph) {
  dims E = 4
  func @main(in %x: f32[E]) -> (f32[E]) {
    %y = graph.scale %x {factor = 0.5} : f32[E]
    graph.return %y
  }
}
# ---
"""
TESTS = """
from pathlib import Path
import pytest
HERE = Path(__file__).parent

def test_pass(check_pass):
    check_pass(HERE / "case.meshir")

def test_golden(check_golden):
    check_golden(HERE / "golden")
"""


@pytest.fixture
def results(tmp_path, monkeypatch):
    """How many tests of a package fail, and of how many."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["meshc.testing"]\n')
    (tmp_path / "test_own.py").write_text(TESTS)
    (tmp_path / "case.meshir").write_text(PASS)
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / "m.meshir").write_text(PASS)
    (tmp_path / "golden" / "command").write_text("opt {here}/m.meshir --passes canonicalize")

    class Counted:
        failed = passed = 0

        def pytest_runtest_logreport(self, report):
            if report.when == "call":
                self.failed += report.failed
                self.passed += report.passed

    def run(*flags, ci=False):
        monkeypatch.setenv("CI", "1") if ci else monkeypatch.delenv("CI", raising=False)
        counted = Counted()
        quiet = ["-q", "-n0", "-p", "no:cacheprovider", "--no-header", "--rootdir", str(tmp_path)]
        pytest.main([*quiet, *flags, str(tmp_path)], plugins=[counted])
        return counted.failed, counted.passed

    return run


@pytest.mark.slow
def test_what_is_wrong_is_rewritten_once(results, tmp_path):
    assert results() == (2, 0)
    assert results("--update-golden") == (2, 0)
    assert "graph.scale" in (tmp_path / "case.meshir").read_text().split("# ---\n")[1]
    assert (tmp_path / "golden" / "expected" / "exit").read_text() == "0\n"
    assert results() == results("--update-golden") == (0, 2)


def test_nothing_is_rewritten_under_ci(results, tmp_path):
    results("--update-golden", ci=True)
    assert (tmp_path / "case.meshir").read_text() == PASS
