"""Edits of what a collective has in steps of programs alone are noticed, one place at a time.

Each is judged in a process that is forked for it, as an edit may crash or never end: by the
numbers, which are held to float64, by reports of the executor, and by races where accesses are
watched.
"""

import faulthandler
import os
import signal
import sys
from collections import Counter

import gpu_mutation_judge
import pytest
import test_cuda_collective
from gpu_mutations import kernel_mutations
from test_cuda_collective import STEP_PLANS, stepped

from meshc.backends.cuda.executor import CXX, FIRST, QUICK, WATCHED, Library, Mode
from meshc.backends.cuda.executor.compiled import ExecutorError
from meshc.backends.cuda.kernels.collective.kernel import text
from meshc.support.native import BuildError

NOTHING, NUMBERS, REPORT, COMPILER = range(4)
WORDS = ("nothing", "other numbers", "report", "compiler")
SECONDS = 60
EQUIVALENT: tuple[str, ...] = ()

pytestmark = pytest.mark.skipif(
    CXX.path() is None or sys.platform == "darwin", reason="there is no GCC"
)


def edits():
    """By name, each with the kernel it is of: those of lines that other collectives lack, and of
    the meetings, which keep what is zeroed from those who still read it."""
    others = gpu_mutation_judge.every()
    found = {
        mutation.name: (name, mutation)
        for name, plan in STEP_PLANS.items()
        for mutation in kernel_mutations("collective.cu", text(plan, "rows"))
    }
    return {name: edit for name, edit in found.items() if name not in others or "meet_gpus" in name}


def judge(name, mutation):
    """What notices an edit."""
    edited = (mutation.apply(text(STEP_PLANS[name], "rows")) or "").replace("rows(", f"{name}(")
    edited = edited.replace("MC_EXPORT(rows)", f"MC_EXPORT({name})")
    try:
        for tools, modes in ((QUICK, (FIRST, Mode("random", True, 3))), (WATCHED, (FIRST,))):
            library = Library(edited, toolchain=tools)
            test_cuda_collective.step_library = lambda toolchain, library=library: library
            for mode in modes:
                for gpus, rows in ((3, 7), (2, 1), (1, 5)):
                    stepped(name, rows, gpus, mode)
    except BuildError:
        return COMPILER
    except ExecutorError:
        return REPORT
    except AssertionError:
        return NUMBERS
    return NOTHING


def verdict(name, mutation):
    """The same in a process of its own, which may end in another way."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        signal.alarm(SECONDS)
        os._exit(judge(name, mutation))
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "hang" if os.WTERMSIG(status) == signal.SIGALRM else "crash"
    return WORDS[os.WEXITSTATUS(status)]


def test_an_edit_is_noticed():
    """Sums that nobody zeroes, which only what is left tells."""
    (found,) = (edit for name, edit in edits().items() if "<(size_t)i => (size_t)0>" in name)
    assert verdict(*found) == "other numbers"


@pytest.mark.slow
def test_every_edit_is_noticed_or_equivalent(capsys):
    verdicts = {name: verdict(*edit) for name, edit in edits().items()}
    with capsys.disabled():
        print(f"\n{len(verdicts)} edits:", dict(Counter(verdicts.values())))
    survivors = {name for name, by in verdicts.items() if by == "nothing"}
    assert sorted(survivors) == sorted(EQUIVALENT)
