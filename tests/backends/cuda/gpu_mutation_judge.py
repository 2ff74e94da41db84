"""Judges one mutation of what only several GPUs have after the other, in a process of its own.

Edits of kernels and of the header that they include are killed as in :mod:`mutation_judge`: by the
compiler, by a report, by other bits or other bytes over links, in any mode. Those of the executor
are killed where its tests notice them: sums that are wrong, faults that are not told. Lines of JSON
in and out.
"""

import json
import signal
import sys
from contextlib import contextmanager
from functools import cache
from unittest.mock import patch

import pytest
import test_cuda_gpus as tests_of_gpus
from collective_reference import Case, run
from gpu_mutations import executor_mutations, kernel_mutations
from mutation_judge import FIRST, MOST_SECONDS, REST, _guarded
from mutations import Mutation
from test_cuda_collective import PLANS, SHAPES

from meshc.backends.cuda.executor import (
    QUICK,
    WATCHED,
    ExecutorError,
    Library,
    Mode,
    cpu_kernels,
    headers,
)
from meshc.backends.cuda.kernels.collective.kernel import text
from meshc.support.native import BuildError, Common

KERNEL, HEADER, EXECUTOR = "collective.cu", "mc_gpus.cuh", ("mc_gpus.cc", "mc_known.cc")
FILES = (KERNEL, HEADER, *EXECUTOR)
CASES = ((7, 3), (1, 2), (5, 1))  # rows, GPUs


@cache
def kernel(name: str) -> str:
    """The kernel of one shape; all have one name, so that equal lines are judged once."""
    return text(PLANS[name], "rows")


@cache
def every() -> dict[str, Mutation]:
    """All mutations by name."""
    found = [m for name in PLANS for m in kernel_mutations(KERNEL, kernel(name))]
    found += kernel_mutations(HEADER, headers()[HEADER])
    for file in EXECUTOR:
        found += executor_mutations(file, cpu_kernels._texts("*.cc")[file])
    return {mutation.name: mutation for mutation in reversed(found)}


@contextmanager
def limited():
    """An endless loop ends the process; time of the process, not of the day."""
    signal.setitimer(signal.ITIMER_PROF, 2 * MOST_SECONDS)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)


def found(name: str, library: Library, mode: Mode):
    """What a shape gives, of all cases."""
    with limited():
        return [
            run(library, "rows", PLANS[name], Case(SHAPES[name][0], *sizes), mode, guard=_guarded)
            for sizes in CASES
        ]


@cache
def right(name: str):
    """What it gives without an edit."""
    return found(name, Library(kernel(name), toolchain=QUICK), Mode())


def judge_kernel(mutation: Mutation, name: str, toolchain, modes) -> dict[str, str]:
    """How this shape kills an edit of its kernel or of the header."""
    parts, edited = dict(headers()), kernel(name)
    if mutation.file == HEADER:
        parts[HEADER] = mutation.apply(parts[HEADER]) or ""
    else:
        edited = mutation.apply(edited) or ""
    if not edited:
        return {}
    mode = None
    try:
        library = Library(edited, parts, toolchain)
        for mode in modes:
            for one, other in zip(right(name), found(name, library, mode), strict=True):
                if not one.same(other) or one.link_bytes != other.link_bytes:
                    by = "counts" if one.same(other) else "numbers"
                    return {"by": by, "rig": name, "how": str(mode)}
    except BuildError as problem:
        return {"by": "compiler", "rig": name, "how": str(problem)}
    except ExecutorError as problem:
        words = str(problem)
        kinds = (kind for kind in ("deadlock", "race") if kind in words)
        return {"by": next(kinds, "fault"), "rig": name, "how": f"{mode}: {words}"}
    return {}


def judge_executor(mutation: Mutation) -> dict[str, str]:
    """How the tests of the executor kill an edit of it."""
    texts = cpu_kernels._texts("*.h") | cpu_kernels._texts("*.cc")
    texts[mutation.file] = mutation.apply(texts[mutation.file]) or ""
    main = texts.pop("mc_executor.cc")

    @cache
    def library(watched=False):
        return Library(tests_of_gpus.TEXT, toolchain=WATCHED if watched else QUICK)

    with (
        patch.object(cpu_kernels, "_functions", lambda: Common("mc_executor.cc", main, texts)),
        patch.object(tests_of_gpus, "library", library),
    ):
        for test, *arguments in executor_tests():
            try:
                with limited():
                    test(*arguments)
            except (AssertionError, pytest.fail.Exception, ExecutorError) as problem:
                return {"by": "tests", "rig": test.__name__, "how": str(problem)[:200]}
            except BuildError as problem:
                return {"by": "compiler", "rig": test.__name__, "how": str(problem)}
    return {}


def executor_tests():
    """The tests of the executor with their arguments."""
    for gpus in (3, 1, 2, 16):
        yield tests_of_gpus.test_all_gpus_get_the_sums_in_every_mode, gpus
    for name in tests_of_gpus.FAULTS:
        yield tests_of_gpus.test_a_fault_is_told_in_every_mode, name
    yield (tests_of_gpus.test_an_order_goes_through_other_gpus_and_blocks,)
    yield (tests_of_gpus.test_a_store_is_visible_only_behind_release_and_acquire,)
    yield (tests_of_gpus.test_a_block_knows_what_a_group_of_its_threads_does,)
    for how in (1, 2):
        yield tests_of_gpus.test_groups_of_changing_threads_are_refused, how
    for ending in tests_of_gpus.ENDS:
        yield tests_of_gpus.test_a_grid_ends_behind_all_uses_of_its_memory, ending
    yield (tests_of_gpus.test_a_signal_waits_until_the_one_before_is_taken,)
    for known in (0, 2):
        yield tests_of_gpus.test_a_store_must_know_of_every_load_before, known
    yield (tests_of_gpus.test_an_mbarrier_shows_what_its_phase_ends_behind,)
    yield (tests_of_gpus.test_counters_of_arrivals_join_all_blocks_of_all_gpus,)
    for shown in (0, 1, 2, 3, 5):
        yield tests_of_gpus.test_a_plain_load_sees_what_is_known, shown
    yield (tests_of_gpus.test_results_of_the_grid_in_front_may_not_be_there_before_the_wait,)
    yield (tests_of_gpus.test_a_grid_of_one_gpu_has_no_symmetric_memory,)
    for how, words in tests_of_gpus.MISUSE:
        yield tests_of_gpus.test_misuse_is_refused, how, words
    yield (tests_of_gpus.test_clusters_and_too_many_gpus_are_refused,)
    yield (tests_of_gpus.test_plain_accesses_are_watched,)


def judge(mutation: Mutation) -> dict[str, str]:
    """By what the mutation is killed and how; empty when it survives."""
    if mutation.file in EXECUTOR:
        return judge_executor(mutation)
    for toolchain, modes in ((QUICK, FIRST), (WATCHED, [Mode()]), (QUICK, REST)):
        for name in PLANS:
            verdict = judge_kernel(mutation, name, toolchain, modes)
            if verdict:
                return verdict
    return {}


def main() -> None:
    """Judge what comes on standard input until it ends."""
    for line in sys.stdin:
        print(json.dumps(judge(Mutation(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
