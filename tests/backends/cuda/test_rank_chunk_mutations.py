"""Edits of what a collective has for chunks of prompts alone are noticed, one place at a time.

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
import test_cuda_rank_chunks
from gpu_mutations import kernel_mutations
from test_cuda_rank_chunks import PLANS, TOKENS, collected

from meshc.backends.cuda.executor import CXX, FIRST, QUICK, WATCHED, Library, Mode
from meshc.backends.cuda.executor.cpu_kernels import ExecutorError
from meshc.backends.cuda.kernels.collective.kernel import text
from meshc.support.native import BuildError

NOTHING, NUMBERS, REPORT, COMPILER = range(4)
WORDS = ("nothing", "other numbers", "report", "compiler")
SECONDS = 60
EQUIVALENT: tuple[str, ...] = ()
ROWS = ((3, 0, TOKENS, 9), (2, 4, 3, TOKENS), (4, 10, 1, TOKENS), (1, 2, 9, 7), (3, -1, 1, 7))

pytestmark = pytest.mark.skipif(
    CXX.path() is None or sys.platform == "darwin", reason="there is no GCC"
)


def edits():
    """By name, each with the kernel it is of: those of lines that other collectives lack."""
    others = gpu_mutation_judge.every()
    return {
        mutation.name: (name, mutation)
        for name, plan in PLANS.items()
        for mutation in kernel_mutations("collective.cu", text(plan, "rows"))
        if mutation.name not in others
    }


def judge(name, mutation):
    """What notices an edit."""
    edited = (mutation.apply(text(PLANS[name], "rows")) or "").replace("rows(", f"{name}(")
    edited = edited.replace("MC_EXPORT(rows)", f"MC_EXPORT({name})")
    try:
        for tools, modes in ((QUICK, (FIRST, Mode("random", True, 3))), (WATCHED, (FIRST,))):
            library = Library(edited, toolchain=tools)
            test_cuda_rank_chunks.library = lambda toolchain, library=library: library
            for mode in modes:
                for rows in ROWS:
                    collected(name, *rows, mode)
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
    """Rows of a chunk that are dealt to GPUs from another one on."""
    (found,) = (edit for name, edit in edits().items() if "<first < 0 => true>" in name)
    assert verdict(*found) != "nothing"


@pytest.mark.slow
def test_every_edit_is_noticed_or_equivalent(capsys):
    verdicts = {name: verdict(*edit) for name, edit in edits().items()}
    with capsys.disabled():
        print(f"\n{len(verdicts)} edits:", dict(Counter(verdicts.values())))
    survivors = {name for name, by in verdicts.items() if by == "nothing"}
    assert sorted(survivors) == sorted(EQUIVALENT)
