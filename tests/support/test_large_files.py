"""Large files that are kept: mapped when they are sound, made again when they are not."""

import errno
import multiprocessing
import os
import time

import numpy as np
import pytest

from meshc.support import large_files
from meshc.support.large_files import PAGE_BYTES, mapped

DATA = np.random.default_rng(0).integers(0, 256, 3 * PAGE_BYTES + 100).astype(np.uint8)
PLENTY = 1 << 30


class Writer:
    """Writes bytes, and counts how often it was asked to."""

    def __init__(self, data=DATA):
        self.data, self.count = data, 0

    def __call__(self, opened):
        self.count += 1
        os.pwrite(opened, self.data.tobytes(), 0)


def kept(folder, key="key", writer=None, most=PLENTY):
    writer = writer or Writer()
    return mapped(folder, key, len(writer.data), writer, most)


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_was_written_is_mapped_from_then_on(tmp_path):
    writer = Writer()
    for _ in range(3):
        assert (kept(tmp_path / "in" / "here", writer=writer) == DATA).all()
    assert writer.count == 1
    (file,) = files(tmp_path)
    assert file.suffix == ".packed" and file.parent.name == "key"
    assert file.stat().st_size == 4 * PAGE_BYTES
    assert not kept(tmp_path / "in" / "here", writer=writer).flags.writeable


HARMS = {
    "a bit": lambda data: bytes((data[0] ^ 1,)) + data[1:],
    "a page of zeros": lambda data: data[:PAGE_BYTES] + bytes(PAGE_BYTES) + data[2 * PAGE_BYTES :],
    "two pages in turn": lambda data: (
        data[PAGE_BYTES : 2 * PAGE_BYTES] + data[:PAGE_BYTES] + data[2 * PAGE_BYTES :]
    ),
    "an end": lambda data: data[:-PAGE_BYTES],
    "more": lambda data: data + bytes(PAGE_BYTES),
    "nothing": lambda data: b"",
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_damaged_is_made_again(harm, tmp_path):
    kept(tmp_path)
    (file,) = files(tmp_path)
    file.write_bytes(HARMS[harm](file.read_bytes()))
    writer = Writer()
    assert (kept(tmp_path, writer=writer) == DATA).all()
    assert writer.count == 1 and files(tmp_path) == [file]


def test_a_damaged_file_of_another_name_goes(tmp_path):
    kept(tmp_path)
    (file,) = files(tmp_path)
    file.rename(file.with_stem("0" * 32))
    assert (kept(tmp_path) == DATA).all()
    assert files(tmp_path) == [file]


def test_what_is_mapped_stays_when_the_file_is_replaced(tmp_path):
    found = kept(tmp_path)
    (file,) = files(tmp_path)
    file.unlink()
    kept(tmp_path)
    assert (found == DATA).all()


def test_what_was_used_longest_ago_goes(tmp_path):
    """Of three files of four pages, eight pages stay: the new one, and the one used last."""
    for age, key in enumerate(("first", "second")):
        kept(tmp_path, key)
        os.utime(tmp_path / key, ns=(0, 10**18 + age))
    kept(tmp_path, "first")
    kept(tmp_path, "third", most=8 * PAGE_BYTES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "third"]
    kept(tmp_path, "fourth", most=PAGE_BYTES)
    assert [path.name for path in tmp_path.iterdir()] == ["fourth"]


def test_who_fails_to_write_leaves_nothing(tmp_path):
    def fail(opened):
        raise OSError(errno.ENOSPC, "no space")

    with pytest.raises(OSError, match="no space"):
        mapped(tmp_path, "key", 100, fail, PLENTY)
    assert files(tmp_path) == [] and (kept(tmp_path) == DATA).all()


def test_a_disk_without_room_is_no_place(tmp_path, monkeypatch):
    few = type("Usage", (), {"free": 4 * PAGE_BYTES - 1})
    monkeypatch.setattr(large_files.shutil, "disk_usage", lambda _: few)
    writer = Writer()
    with pytest.raises(OSError, match="No space left"):
        kept(tmp_path, writer=writer)
    assert writer.count == 0


@pytest.mark.parametrize("level", ["folder", "key"])
def test_what_is_no_folder_is_no_place(level, tmp_path):
    place = tmp_path / "packed" / "key"
    blocked = place if level == "key" else place.parent
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_text("no folder")
    with pytest.raises(OSError):
        kept(tmp_path / "packed")
    assert blocked.read_text() == "no folder"


def keep_slowly(folder):
    writer = Writer()

    def write(opened):
        time.sleep(0.5)
        writer(opened)

    found = mapped(folder, "key", len(DATA), write, PLENTY)
    return bool((found == DATA).all()), writer.count


def test_one_process_writes_what_several_need(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(keep_slowly, [tmp_path] * 2, chunksize=1)
    assert [sound for sound, _ in found] == [True, True] and sum(n for _, n in found) == 1
