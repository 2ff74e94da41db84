"""Edits of the collectives of several GPUs, and of the executor's memory of these, are noticed."""

import sys
from collections import Counter

import gpu_mutation_judge
import pytest
from gpu_mutation_judge import FILES
from gpu_mutation_survivors import EQUIVALENT
from test_cuda_mutations import judged

from meshc.backends.cuda.executor import CXX, QUICK, ExecutorError, Library, Mode

# Edits of different classes, which different judges notice; CI takes these alone.
IN_CI = (
    "collective.cu: <mc::meet_gpus(signals, rank, gpus); => ;> #2",
    "collective.cu: for (int gpu = 0; gpu < <gpus => gpus - 1>; gpu++) {",
    "collective.cu: const float scale = mc::inverse_root(all_squares / <HIDDEN => PITCH> "
    "+ EPSILON);",
)

pytestmark = pytest.mark.skipif(
    CXX.path() is None or sys.platform == "darwin", reason="there is no GCC"
)


@pytest.mark.parametrize("name", IN_CI)
def test_a_sample_of_edits_is_noticed(name):
    """In one shape by peer loads, compiled as tests of it are."""
    edited = gpu_mutation_judge.every()[name].apply(gpu_mutation_judge.kernel("wide_peers"))
    right = gpu_mutation_judge.right("wide_peers")
    try:
        library = Library(edited, toolchain=QUICK)
        seen = gpu_mutation_judge.found("wide_peers", library, Mode("random", True))
    except ExecutorError as problem:
        assert "race between GPUs" in str(problem)
    else:
        assert not all(one.same(other) for one, other in zip(right, seen, strict=True))


def test_there_are_enough_edits_and_those_that_are_listed():
    every = gpu_mutation_judge.every()
    assert len(every) >= 80
    listed = [name for group in EQUIVALENT.values() for name in group]
    assert [name for name in listed if name not in every] == []
    assert len(set(listed)) == len(listed)


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_every_edit_is_noticed_or_equivalent(file, tmp_path, capsys):
    of_file = [m for m in gpu_mutation_judge.every().values() if m.file == file]
    listed = {n for group in EQUIVALENT.values() for n in group if n.startswith(f"{file}:")}
    script = gpu_mutation_judge.__file__
    verdicts = {m.name: v.get("by", "nothing") for m, v in judged(of_file, tmp_path, script)}
    with capsys.disabled():
        print(f"\n{file}, {len(verdicts)} edits:", dict(Counter(verdicts.values())))
    survivors = {name for name, by in verdicts.items() if by == "nothing"}
    assert sorted(survivors - listed) == [], "neither noticed nor known to be equivalent"
    assert sorted(listed - survivors) == [], "listed as equivalent, but noticed"
