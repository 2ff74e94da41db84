"""A fake driver and devices on it, for the tests of launches."""

import pytest
from fake_driver import CUBIN, FakeDriver, built_driver, gpu

from meshc.backends.cuda.driver.gpu import Device


@pytest.fixture
def fake():
    """The fake driver, as new, that knows the kernels of ``CUBIN``."""
    found = FakeDriver(built_driver())
    found.know(CUBIN)
    return found


@pytest.fixture(params=["fake", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request):
    """A device of the fake driver, and a GPU."""
    opened = (
        gpu() if request.param == "gpu" else Device(library=request.getfixturevalue("fake").path)
    )
    with opened:
        yield opened
