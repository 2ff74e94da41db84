"""Errors of jobs reach who asked for them, from other processes too."""

import os

import pytest

from meshc.support.diagnostics import Diagnostic, InternalError, MeshcError
from meshc.support.spans import Source, Span
from meshc.support.workers import Processes, unwatched

SPAN = Span(Source("model.mesh", "dim E = 4\n"), 4, 5)


class Stubborn(Exception):
    """An error that cannot be made again from what it was given last."""

    def __init__(self, words, number):
        super().__init__(words)


def work(job):
    """A job by the name of how it ends; others have run before it."""
    if job == "refused":
        raise MeshcError([Diagnostic("error", "bad-model", "no such dim", SPAN)])
    if job == "broken":
        raise InternalError("partition: KeyError: 'L'", "partition{grid=2x2}", "module @m", True)
    if job == "stubborn":
        raise Stubborn("of another package", 3)
    if job == "ended":
        os._exit(9)
    return job


def error_of(count, *jobs):
    with pytest.raises(Exception) as caught:
        Processes(count).results(work, jobs, unwatched)
    return caught.value


@pytest.mark.parametrize("count", [1, 2])
def test_errors_of_jobs_arrive_whole(count):
    refused = error_of(count, "first", "refused", "broken")
    assert isinstance(refused, MeshcError) and refused.diagnostics[0].span == SPAN
    broken = error_of(count, "broken", "refused")
    assert isinstance(broken, InternalError) and str(broken) == "partition: KeyError: 'L'"
    assert broken.reproducer.command("x") == "meshc opt x --passes 'partition{grid=2x2}' --check"
    assert broken.reproducer.text.endswith("module @m")


def test_what_cannot_leave_a_process_leaves_it_in_words():
    found = error_of(2, "first", "stubborn")
    assert "Stubborn: of another package" in str(found) and "in work" in str(found)


def test_a_process_that_is_gone_is_said():
    found = error_of(2, "first", "ended")
    assert isinstance(found, MeshcError) and found.diagnostics[0].code == "process-lost"
