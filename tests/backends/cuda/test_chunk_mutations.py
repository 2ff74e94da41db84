"""A sample of edits of the kernels of a chunk: other numbers, other bytes, a report or a crash."""

import multiprocessing
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from mutations import mutations
from test_cuda_chunks import PRODUCTS, attend, planned, run_product

from meshc.backends.cuda.executor import CXX, QUICK, WATCHED, ExecutorError, Library, Mode
from meshc.backends.cuda.kernels.chunk_attention import kernel as attention
from meshc.backends.cuda.kernels.chunk_product import kernel as chunk
from meshc.devices import device
from meshc.support.native import BuildError

H200 = device("h200")


pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
PRODUCT = replace(PRODUCTS["gated"], width=1000)  # rings wrap, in both
PLAN = planned("three heads of a key head")
TEXTS = {
    "attention": attention.text(PLAN, "attention"),
    "product": chunk.text(chunk.plan(PRODUCT, H200), "product"),
}
MODES = (Mode(), Mode("random", True, 3))
EVERY, MOST_SECONDS = 5, 30
# What a run in the executor does not show, by reason. None of these is the same kernel.
UNSEEN: dict[str, tuple[str, ...]] = {
    "Sums behind a thread's own array, which the executor does not watch; what is stored of them "
    "is guarded elsewhere.": (
        "product: for (int g = 0; g < <OWN_GROUPS => (OWN_GROUPS) + 1>; g++) { #3",
    ),
}
LISTED = {edit for group in UNSEEN.values() for edit in group}


@cache
def sample():
    """Every fifth edit of each kernel by its name, and those that are listed."""
    found = {}
    for name, text in TEXTS.items():
        for place, edit in enumerate(mutations(name, text)):
            if place % EVERY == 0 or edit.name in LISTED:
                found[edit.name] = name, edit.apply(text)
    return found


def results(name, library):
    """What a kernel gives in two chunks and modes, beside what it should, with bytes."""
    for mode in MODES:
        for count in (21, 40):
            if name == "product":
                yield run_product(PRODUCT, count, mode, library)
            else:
                yield attend(PLAN, library, count, 330, mode)


def unnoticed(name, text):
    """Ends with 0 where an edited kernel shows nothing; run as a process of its own."""
    try:
        library = Library(text, toolchain=QUICK)
        wanted = Library(TEXTS[name], toolchain=QUICK)
        for one, other in zip(results(name, library), results(name, wanted), strict=True):
            if not np.array_equal(one[0], other[0]) or one[2] != other[2]:
                raise SystemExit(1)
        next(results(name, Library(text, toolchain=WATCHED)))
    except (ExecutorError, BuildError, AssertionError):
        raise SystemExit(2) from None
    raise SystemExit(0)


def judged(name, text):
    """How a process ended: 0 unnoticed, 1 numbers or bytes, 2 a report, else a crash or no end."""
    process = multiprocessing.get_context("fork").Process(target=unnoticed, args=(name, text))
    process.start()
    process.join(MOST_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode


@pytest.mark.slow
def test_an_edit_is_noticed_and_the_kernel_itself_is_not():
    text = TEXTS["attention"]
    assert judged("attention", text.replace("position <= before", "position < before")) == 1
    assert judged("attention", text) == 0


@pytest.mark.slow
def test_a_sample_of_edits_is_noticed_or_listed(capsys):
    verdicts = {edit: judged(name, text) for edit, (name, text) in sample().items()}
    survivors = {edit for edit, code in verdicts.items() if code == 0}
    with capsys.disabled():
        print(f"\n{len(verdicts)} edits, unnoticed {len(survivors)}")
        print(*sorted(survivors), sep="\n")
    assert survivors == LISTED
