"""Golden tests: real command lines, everything they print and every file they write, as
`meshc.testing` has them; {examples} is the folder of the examples."""

from pathlib import Path

import pytest

from meshc.testing import carried_files, stored_files

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
CASES = sorted(path.parent for path in HERE.glob("*/command"))


@pytest.mark.every_case
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_golden(case, check_golden):
    check_golden(case, examples=EXAMPLES)


def test_no_file_of_the_library_is_stored():
    source = {text for text in carried_files().values() if text}
    copies = [
        f"{case.name}: {name}"
        for case in CASES
        for name, text in stored_files(case).items()
        if text in source
    ]
    assert copies == []


def test_there_are_enough_cases():
    assert len(CASES) >= 6
