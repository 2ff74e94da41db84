"""What test files take of a core, as a command prints it."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "tools" / "times_of_tests.py"
BUSY = """import time

def test_it():
    began = time.process_time()
    while time.process_time() < began + {}:
        pass
"""


def test_files_are_listed_with_what_they_take(tmp_path):
    for name, seconds in (("less", 0.1), ("more", 0.4)):
        (tmp_path / f"test_{name}.py").write_text(BUSY.format(seconds))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    command = [sys.executable, str(SCRIPT), str(tmp_path), "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = re.findall(r"^ *([\d.]+) s  (.+)$", done.stdout, re.MULTILINE)
    assert [name for _, name in found] == ["test_more.py", "test_less.py", "in all"]
    more, less, whole = (float(seconds) for seconds, _ in found)
    assert more >= 0.4 and less >= 0.1 and whole >= more + less - 0.1
