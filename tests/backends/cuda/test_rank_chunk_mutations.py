"""Edits of what a collective has for chunks of prompts alone are noticed, one place at a time, as
in :mod:`test_step_mutations`."""

import sys
from collections import Counter

import gpu_mutation_judge
import pytest
import test_cuda_rank_chunks
import test_step_mutations
from gpu_mutations import kernel_mutations
from test_cuda_rank_chunks import PLANS, TOKENS, collected
from test_step_mutations import COMPILER, NOTHING, NUMBERS, REPORT, verdict

from meshc.backends.cuda.executor import CXX, FIRST, QUICK, WATCHED, Library, Mode
from meshc.backends.cuda.executor.compiled import ExecutorError
from meshc.backends.cuda.kernels.collective.kernel import text
from meshc.support.native import BuildError

EQUIVALENT: tuple[str, ...] = ()
ROWS = ((3, 0, TOKENS, 9), (2, 4, 3, TOKENS), (4, 10, 1, TOKENS), (1, 2, 9, 7))

pytestmark = pytest.mark.skipif(
    CXX.path() is None or sys.platform == "darwin", reason="there is no GCC"
)


def edits():
    """By name, each with the kernel it is of: those of lines that other collectives lack."""
    others = gpu_mutation_judge.every().keys() | test_step_mutations.edits().keys()
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


@pytest.fixture(autouse=True)
def judged_here(monkeypatch):
    monkeypatch.setattr(test_step_mutations, "judge", judge)


@pytest.mark.slow
def test_every_edit_is_noticed_or_equivalent(capsys):
    verdicts = {name: verdict(*edit) for name, edit in edits().items()}
    with capsys.disabled():
        print(f"\n{len(verdicts)} edits:", dict(Counter(verdicts.values())))
    survivors = {name for name, by in verdicts.items() if by == "nothing"}
    assert sorted(survivors) == sorted(EQUIVALENT)
