"""The pages build as a site, without a link that leads nowhere."""

import shutil
import subprocess
import sys

import pytest
from pages import ROOT

pytest.importorskip("zensical", reason="the extra is not installed: pip install 'meshc[docs]'")


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    for name in ("docs", "meshc"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    built = [sys.executable, "-m", "zensical", "build", "--clean"]
    done = subprocess.run(built, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    site = tmp_path / "build" / "site"
    for page in (ROOT / "docs").glob("*.md"):
        place = site if page.stem == "README" else site / page.stem
        assert (place / "index.html").is_file(), page.name
    assert "import_exported" in (site / "api" / "index.html").read_text(encoding="utf-8")
    assert (site / "search.json").stat().st_size > 100_000
