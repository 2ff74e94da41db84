"""Folders for work in progress go with their process, however that ends."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from meshc.support import scratch
from meshc.support.scratch import scratch_folder


@pytest.fixture(autouse=True)
def first_time(monkeypatch):
    """As in a new process, which has cleared nothing yet."""
    monkeypatch.setattr(scratch, "_cleared", set())


def work_for_ever(place, made):
    with scratch_folder(Path(place)) as folder:
        (folder / "part").write_text("half")
        made.put(folder.name)
        time.sleep(600)


@pytest.fixture
def worker(tmp_path):
    """A process that works in a folder beside ``tmp_path``, and the name of that."""
    context = multiprocessing.get_context("spawn")
    made = context.Queue()
    process = context.Process(target=work_for_ever, args=(str(tmp_path), made))
    process.start()
    yield process, made.get(timeout=60)
    process.kill()
    process.join()


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path, worker):
    process, name = worker
    process.kill()
    process.join()
    assert os.listdir(tmp_path) == [name]
    with scratch_folder(tmp_path) as folder:
        assert os.listdir(tmp_path) == [folder.name]
    assert os.listdir(tmp_path) == []


def test_what_others_work_in_stays(tmp_path, worker):
    _, name = worker
    with scratch_folder(tmp_path) as outer:
        scratch._cleared.clear()
        with scratch_folder(tmp_path) as inner:
            assert {*os.listdir(tmp_path)} == {name, outer.name, inner.name}
    assert os.listdir(tmp_path) == [name]


def test_nothing_else_is_removed(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (tmp_path / ".meshc-notes").mkdir()
    (tmp_path / f"{scratch.PREFIX}{'0' * 24}").symlink_to(mine)
    (tmp_path / f"{scratch.PREFIX}{'1' * 24}").write_text("a file")
    before = sorted(os.listdir(tmp_path))
    with scratch_folder(tmp_path):
        pass
    assert sorted(os.listdir(tmp_path)) == before


def test_what_holds_files_of_others_stays_at_the_end_of_a_process(tmp_path):
    with scratch_folder(tmp_path) as folder:
        scratch.hold(folder)
        (folder / "notes").write_text("mine")
        scratch.remove_scratch()
        assert (folder / "notes").exists()
        scratch.release(folder)
        scratch.remove_scratch()
        assert not folder.exists()


def test_without_locks_folders_are_made_all_the_same(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(37, "No locks available")

    for lock in (None, refuse):
        monkeypatch.setattr(scratch, "flock", lock)
        with scratch_folder(tmp_path) as folder:
            assert os.listdir(tmp_path) == [folder.name]
        assert os.listdir(tmp_path) == []


def test_a_place_that_is_missing_is_said_at_once(tmp_path):
    with pytest.raises(FileNotFoundError), scratch_folder(tmp_path / "missing"):
        pass
