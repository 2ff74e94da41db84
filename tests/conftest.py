"""Options and fixtures of the whole suite."""

import os

import pytest
from hypothesis import settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite expected files; the tests that rewrote one fail, so that it is looked at",
    )


@pytest.fixture
def update_golden(request):
    """Whether expected files are to be rewritten; never under CI."""
    wanted = request.config.getoption("--update-golden")
    if wanted and os.environ.get("CI"):
        pytest.fail("goldens are not rewritten under CI")
    return wanted
