"""Single edits of the CUDA library and kernels: the executor, the races, the counts or the compiler
must notice each, but for those that change nothing, which are listed with the reason."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mutation_judge
import pytest
from mutation_survivors import EQUIVALENT
from mutations import Mutation, mutations

from meshc.backends.cuda.executor import CXX
from meshc.support.cache import cache_folder

JUDGE = Path(__file__).parent / "mutation_judge.py"
PROCESSES = 2
FILES = sorted({*mutation_judge.LIBRARY, *mutation_judge.emitted_files()})
# Edits of different classes, which different judges notice, each with a rig that shows it; CI takes
# these alone.
IN_CI = {
    "mc_attention.cuh: const bool counts = <visible >> (2 * i + k) & 1 => true>;": "tiles of 16",
    "head.cu: <ring.set_up(WARPS); => ;>": "logits",
    "head.cu: ring.set_up(<WARPS => WARPS - 1>);": "logits",
    "head.cu: if (<row >= ROWS => true>) continue;": "logits",
    "embed.cu: <mc::wait_for_previous_grid(); => ;>": "embed",
}

pytestmark = pytest.mark.skipif(
    CXX.path() is None or sys.platform == "darwin", reason="there is no GCC"
)


class Judge:
    """A process that judges; started again when a mutation ends it."""

    def __init__(self, cache: Path, script: Path = JUDGE) -> None:
        self._script = script
        self._environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
        self._environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        self._process: subprocess.Popen[str] | None = None

    def judge(self, mutation: Mutation, *names: str) -> dict[str, str]:
        """What :func:`mutation_judge.judge` finds, in rigs of these ``names`` or in all, or how the
        process ended."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(self._script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, env=self._environment,
            )  # fmt: skip
        words = dataclasses.asdict(mutation) | ({"names": names} if names else {})
        print(json.dumps(words), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if answer:
            return json.loads(answer)
        code = self.close()
        # Other ends are faults of the judge, not of the mutation.
        crashes = (signal.SIGSEGV, signal.SIGILL, signal.SIGABRT)
        endings = {-signal.SIGPROF: "hang"} | dict.fromkeys((-one for one in crashes), "crash")
        return {"by": endings[code]}

    def close(self) -> int:
        """End the process; its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.stdin.close()
        process.stdout.close()
        return process.wait()


def judged(
    found: Sequence[Mutation], cache: Path, script: Path = JUDGE, processes: int = PROCESSES
) -> Iterator[tuple[Mutation, dict[str, str]]]:
    """Mutations and their judgements by ``script``, in processes side by side."""

    def work(part: Sequence[Mutation]) -> list[tuple[Mutation, dict[str, str]]]:
        judge = Judge(cache, script)
        try:
            return [(mutation, judge.judge(mutation)) for mutation in part]
        finally:
            judge.close()

    with ThreadPoolExecutor(processes) as pool:
        for part in pool.map(work, [found[n::processes] for n in range(processes)]):
            yield from part


def test_a_sample_is_noticed():
    """In one process, with what other tests have compiled."""
    by_name = {mutation.name: mutation for mutation in mutation_judge.every()}
    judge = Judge(cache_folder().parent)
    try:
        verdicts = {name: judge.judge(by_name[name], rig) for name, rig in IN_CI.items()}
    finally:
        judge.close()
    assert [name for name, verdict in verdicts.items() if not verdict] == []


def test_what_is_listed_as_equivalent_is_a_mutation():
    names = {mutation.name for mutation in mutation_judge.every()}
    assert len(names) >= 60
    listed = [name for group in EQUIVALENT.values() for name in group]
    assert [name for name in listed if name not in names] == []
    assert len(set(listed)) == len(listed)


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_every_mutation_is_noticed_or_equivalent(file, tmp_path, capsys):
    of_file = [mutation for mutation in mutation_judge.every() if mutation.file == file]
    listed = {n for group in EQUIVALENT.values() for n in group if n.startswith(f"{file}:")}
    verdicts = {m.name: v.get("by", "nothing") for m, v in judged(of_file, tmp_path)}
    with capsys.disabled():
        print(f"\n{file}, {len(verdicts)} mutations:", dict(Counter(verdicts.values())))
    survivors = {name for name, by in verdicts.items() if by == "nothing"}
    assert sorted(survivors - listed) == [], "neither noticed nor known to be equivalent"
    assert sorted(listed - survivors) == [], "listed as equivalent, but noticed"


def test_rules_leave_no_barrier_out():
    """Each call that orders something is dropped by some mutation, wherever it stands."""
    calls = (
        r"(?:(?:group|block|cluster|warp)_sync|cluster_(?:arrive_relaxed|wait)|copy_fence"
        r"|init_fence|ring\.release)\("
    )
    for name in mutation_judge.RIGS:
        rig = mutation_judge.rig(name)
        code = [line.split("//")[0] for line in rig.text.split("\n")]
        places = sum(len(re.findall(calls, line)) for line in code)
        dropped = [m for m in mutations(rig.file, rig.text) if m.fault == "call dropped"]
        assert sum(bool(re.search(calls, m.old)) for m in dropped) == places


def test_a_mutation_is_one_edit_of_one_line():
    rig = mutation_judge.rig("logits")
    before = rig.text.split("\n")
    for mutation in mutations(rig.file, rig.text):
        after = mutation.apply(rig.text).split("\n")
        (changed,) = [n for n, line in enumerate(before) if line != after[n]]
        assert mutation.new in after[changed]
        assert len(after) == len(before)
