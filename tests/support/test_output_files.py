"""Output directories appear whole or not at all, and nothing of others is touched."""

import hashlib
import json
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from meshc.support import replacing, scratch
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.files import read_text, write_text
from meshc.support.output import check_free, read_manifest, write_directory

FACTS = {"model": "m", "format": 1}


def code(call, *args, **kwargs):
    """The code with which ``call`` fails."""
    with pytest.raises(MeshcError) as error:
        call(*args, **kwargs)
    (found,) = error.value.diagnostics
    return found.code


def listed(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_files_and_manifest(tmp_path):
    out = tmp_path / "deep" / "out"
    files = {"a.txt": "ä\n", "sub/b.bin": b"\0", "sub/c": lambda path: path.write_bytes(b"c")}
    names = write_directory(out, files, FACTS)
    assert names == listed(out) == ["a.txt", "meshc.json", "sub/b.bin", "sub/c"]
    assert (out / "a.txt").read_text(encoding="utf-8") == "ä\n"
    hashes = {
        name: hashlib.sha256((out / name).read_bytes()).hexdigest()
        for name in ("a.txt", "sub/b.bin", "sub/c")
    }
    expected = {"generator": "meshc", "files": names, "sha256": hashes, **FACTS}
    assert read_manifest(out) == expected
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(out.stat().st_mode) == 0o777 & ~mask


def test_own_directory_is_replaced_whole(tmp_path):
    out = tmp_path / "out"
    write_directory(out, {"old": "1", "both": "1"}, FACTS)
    (out / "__pycache__").mkdir()
    (out / "__pycache__" / "old.pyc").write_bytes(b"")
    write_directory(out, {"new": "2", "both": "2"}, FACTS)
    assert listed(out) == ["both", "meshc.json", "new"]
    assert listed(tmp_path) == ["out/both", "out/meshc.json", "out/new"]


def test_empty_directory_is_used(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    write_directory(out, {"a": ""}, FACTS)
    assert listed(out) == ["a", "meshc.json"]


@pytest.mark.parametrize("manifest", [None, "{}", "[]", "not json", '{"generator": "meshc"}'])
def test_foreign_directory_is_left_alone(tmp_path, manifest):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("years")
    if manifest is not None:
        (out / "meshc.json").write_text(manifest)
    before = listed(out)
    assert code(write_directory, out, {"a": ""}, FACTS) == "output-exists"
    assert listed(out) == before
    write_directory(out, {"a": ""}, FACTS, force=True)
    kept = [] if manifest is None else ["meshc.json.orig"]
    assert listed(out) == sorted(["a", "meshc.json", *kept, "thesis.txt"])
    assert (out / "thesis.txt").read_text() == "years"


def test_what_you_put_into_its_directory_stays(tmp_path):
    out = tmp_path / "out"
    write_directory(out, {"a": "1", "sub/b": "1"}, FACTS)
    (out / "notes.txt").write_text("mine")
    (out / "sub" / "more").write_text("mine too")
    (out / "data").mkdir(mode=0o700)
    (out / "data" / "x.npy").write_bytes(b"x")
    (out / "empty").mkdir()
    (out / "link").symlink_to("data")
    (out / "dangling").symlink_to("nowhere")
    write_directory(out, {"a": "2"}, FACTS)
    assert listed(out) == ["a", "data/x.npy", "meshc.json", "notes.txt", "sub/more"]
    assert (out / "a").read_text() == "2"
    assert (out / "notes.txt").read_text() == "mine"
    assert (out / "empty").is_dir()
    assert stat.S_IMODE((out / "data").stat().st_mode) == 0o700
    assert os.readlink(out / "link") == "data"
    assert os.readlink(out / "dangling") == "nowhere"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("files", [{"a": "2", "b": "2"}, {"b": "2"}], ids=["again", "no longer"])
def test_an_edited_file_is_refused_or_kept_aside(tmp_path, files):
    out = tmp_path / "out"
    write_directory(out, {"a": "1", "b": "1"}, FACTS)
    (out / "a").write_text("edited")
    assert code(check_free, out) == "output-edited"
    assert code(write_directory, out, files, FACTS) == "output-edited"
    assert (out / "a").read_text() == "edited"
    check_free(out, force=True)
    report = Diagnostics()
    write_directory(out, files, FACTS, force=True, report=report)
    assert (out / "a.orig").read_text() == "edited"
    assert listed(out) == sorted([*files, "a.orig", "meshc.json"])
    (warning,) = report.messages
    assert (warning.severity, warning.code) == ("warning", "output-edited")
    assert str(out / "a.orig") in warning.message
    write_directory(out, files, FACTS)
    (out / "b").write_text("edited")
    (out / "b.orig").write_text("of yours")
    write_directory(out, {"b": "3"}, FACTS, force=True)
    assert [(out / n).read_text() for n in ("b", "b.orig", "b.orig1")] == [
        "3",
        "of yours",
        "edited",
    ]


def test_a_deleted_file_is_written_again(tmp_path):
    out = tmp_path / "out"
    write_directory(out, {"a": "1"}, FACTS)
    (out / "a").unlink()
    write_directory(out, {"a": "1"}, FACTS)
    assert (out / "a").read_text() == "1"


@pytest.mark.parametrize(
    ("yours", "new", "kept"),
    [
        ("b", "b", "b.orig"),
        ("b", "b/c", "b.orig"),
        ("b/c", "b", "b.orig/c"),
        ("b/d/c", "b", "b.orig/d/c"),
    ],
)
def test_your_file_in_the_way_is_refused_or_kept_aside(tmp_path, yours, new, kept):
    out = tmp_path / "out"
    write_directory(out, {"a": "1"}, FACTS)
    (out / yours).parent.mkdir(parents=True, exist_ok=True)
    (out / yours).write_text("mine")
    assert code(write_directory, out, {new: "new"}, FACTS) == "output-exists"
    assert listed(out) == ["a", yours, "meshc.json"]
    write_directory(out, {new: "new"}, FACTS, force=True)
    assert listed(out) == sorted([new, kept, "meshc.json"])
    assert (out / kept).read_text() == "mine"


def test_files_that_cannot_be_linked_are_copied(tmp_path, monkeypatch):
    out = tmp_path / "out"
    write_directory(out, {"a": "1"}, FACTS)
    (out / "notes.txt").write_text("mine")

    def refuse(*args, **kwargs):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    write_directory(out, {"a": "2"}, FACTS)
    assert (out / "notes.txt").read_text() == "mine"


def test_the_old_directory_comes_back_when_the_new_one_cannot_be_placed(tmp_path, monkeypatch):
    out = tmp_path / "out"
    write_directory(out, {"a": "1"}, FACTS)
    rename = type(out).rename
    monkeypatch.setattr(replacing, "_exchange", None)

    def refuse(self, target):
        if self.name == "new":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(type(out), "rename", refuse)
    assert code(write_directory, out, {"a": "2"}, FACTS) == "unwritable"
    assert (out / "a").read_text() == "1"
    assert os.listdir(tmp_path) == ["out"]


@pytest.fixture(params=["at once", "one by one"])
def swaps(request, monkeypatch):
    """Systems that exchange two paths, and those that rename one after the other."""
    if request.param == "one by one":
        monkeypatch.setattr(replacing, "_exchange", None)
    elif replacing._exchange is None:
        pytest.skip("this system exchanges no paths")


def written_meanwhile(out, monkeypatch, write):
    """Compile into ``out`` again while somebody else runs ``write``, after the last look at it."""
    swapped = replacing._swapped

    def late(made, target):
        write()
        return swapped(made, target)

    monkeypatch.setattr(replacing, "_swapped", late)
    report = Diagnostics()
    write_directory(out, {"a": "2", "new": "2"}, FACTS, report=report)
    assert os.listdir(out.parent) == [out.name]
    return [message.message.replace(f"{out}/", "") for message in report.messages]


def test_what_comes_while_it_is_written_stays(tmp_path, monkeypatch, swaps):
    out = tmp_path / "out"
    write_directory(out, {"a": "1", "sub/b": "1", "gone/c": "1"}, FACTS)
    (out / "notes").write_text("first")

    def write():
        (out / "late.txt").write_text("late")
        (out / "sub" / "late").write_text("late")
        (out / "private" / "deep").mkdir(parents=True)
        (out / "private").chmod(0o700)
        (out / "private" / "deep" / "late").write_text("late")
        (out / "link").symlink_to("nowhere")
        (out / "saved").write_text("second, and saved as editors do")
        (out / "saved").rename(out / "notes")

    assert written_meanwhile(out, monkeypatch, write) == []
    late = ["late.txt", "private/deep/late", "sub/late"]
    assert listed(out) == sorted(["a", "meshc.json", "new", "notes", *late])
    assert [(out / name).read_text() for name in late] == ["late"] * 3
    assert (out / "notes").read_text() == "second, and saved as editors do"
    assert os.readlink(out / "link") == "nowhere"
    assert stat.S_IMODE((out / "private").stat().st_mode) == 0o700


def test_what_comes_in_the_way_while_it_is_written_is_kept_aside(tmp_path, monkeypatch, swaps):
    out = tmp_path / "out"
    write_directory(out, {"a": "1", "old": "1"}, FACTS)

    def write():
        (out / "a").write_text("edited")
        (out / "old").write_text("edited, and no longer written")
        (out / "new").mkdir()
        (out / "new" / "mine").write_text("mine")

    said = written_meanwhile(out, monkeypatch, write)
    assert said == ["'a' is now 'a.orig'", "'new' is now 'new.orig'"]
    kept = {"a": "2", "a.orig": "edited", "new": "2", "new.orig/mine": "mine"}
    kept["old"] = "edited, and no longer written"
    assert {name: (out / name).read_text() for name in kept} == kept
    assert listed(out) == sorted([*kept, "meshc.json"])


def write_notes(out, count, ready):
    """Write notes into a directory, one after the other; the names of those that were written."""
    written = []
    ready.set()
    for number in range(count):
        try:
            (out / f"note{number}").write_text(str(number))
        except FileNotFoundError:  # the directory was away for a moment, as the writer knows
            continue
        written.append(number)
    return written


def test_no_note_of_another_thread_is_lost(tmp_path, swaps):
    out, ready = tmp_path / "out", threading.Event()
    write_directory(out, {"a": "0"}, FACTS)
    with ThreadPoolExecutor() as pool:
        writing = pool.submit(write_notes, out, 400, ready)
        ready.wait(60)
        while not writing.done():
            write_directory(out, {"a": "1", "b": "1"}, FACTS)
        written = writing.result()
    assert written and {f"note{n}" for n in written} <= {*os.listdir(out)}
    assert all((out / f"note{n}").read_text() == str(n) for n in written)


def test_what_cannot_be_brought_over_is_left_and_named(tmp_path, monkeypatch, swaps):
    out = tmp_path / "out"
    write_directory(out, {"a": "1"}, FACTS)

    def refuse(self, entry, path):
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(replacing._Leaving, "_bring", refuse)
    with pytest.raises(MeshcError) as caught:
        written_meanwhile(out, monkeypatch, lambda: (out / "late").write_text("late"))
    (found,) = caught.value.diagnostics
    assert found.code == "unwritable" and (out / "a").read_text() == "2"
    (note,) = found.notes
    left = Path(note.split("'")[1])
    assert (left / "late").read_text() == "late"
    scratch._cleared.discard(tmp_path)
    write_directory(tmp_path / "other", {"a": "3"}, FACTS)
    assert (left / "late").read_text() == "late"


def killed(out, files, steps):
    """A process that writes ``out`` and is killed at the swap, or so many ``steps`` behind it."""
    settle, swapped, left = replacing._Leaving._settle, replacing._swapped, iter(range(steps))

    def counted(*arguments):
        if next(left, None) is None:
            os._exit(9)
        settle(*arguments)

    def at_the_swap(made, target):
        return os._exit(9) if made.name == "new" and not target.exists() else rename(made, target)

    rename = Path.rename
    child = os.fork()
    if child == 0:
        try:
            if steps < 0:
                replacing._swapped = lambda *paths: (swapped(*paths), os._exit(9))
                Path.rename = at_the_swap
            replacing._Leaving._settle = counted
            write_directory(out, files, FACTS)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.skipif(scratch.flock is None, reason="nobody can tell which processes are gone")
@pytest.mark.parametrize("steps", range(-1, 5))
def test_what_was_left_in_the_middle_is_finished_by_the_next(tmp_path, swaps, steps):
    out = tmp_path / "out"
    write_directory(out, {"a": "1", "sub/c": "1", "z": "1"}, FACTS)
    (out / "note").write_text("mine")
    killed(out, {"a": "2"}, steps)
    (left,) = (tmp_path / name for name in os.listdir(tmp_path) if name != "out")
    old = next(place for place in (left / "old", left / "new") if place.exists())
    (old / "late").write_text("of one who had it open")
    (old / "a").unlink(missing_ok=True)
    (old / "a").write_text("edited")
    scratch._cleared.discard(tmp_path)
    write_directory(tmp_path / "other", {"b": "3"}, FACTS)
    assert sorted(os.listdir(tmp_path)) == ["other", "out"]
    assert {"late", "note"} <= {*os.listdir(out)} and (out / "note").read_text() == "mine"
    edited = out / "a.orig" if (out / "a").read_text() == "2" else out / "a"
    assert edited.read_text() == "edited"
    assert listed(out) in (
        ["a", "a.orig", "late", "meshc.json", "note"],
        ["a", "late", "meshc.json", "note", "sub/c", "z"],  # the old one, put back
    )


def test_a_file_is_never_replaced_by_a_directory(tmp_path):
    out = tmp_path / "out"
    out.write_text("x")
    assert code(write_directory, out, {"a": ""}, FACTS, force=True) == "output-exists"
    assert out.read_text() == "x"


def test_the_working_directory_is_never_replaced(tmp_path, monkeypatch):
    inside = tmp_path / "work" / "inside"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    for place in (inside, inside.parent, tmp_path):
        assert code(check_free, place, force=True) == "output-exists"


def test_nothing_is_left_when_writing_fails(tmp_path):
    out = tmp_path / "out"
    write_directory(out, {"a": "1"}, FACTS)

    def broken(path):
        raise OSError(28, "No space left on device")

    assert code(write_directory, out, {"a": "2", "b": broken}, FACTS) == "unwritable"
    assert (out / "a").read_text() == "1"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("name", ["../escape", "/escape", "a/../../escape", ""])
def test_names_cannot_lead_out(tmp_path, name):
    with pytest.raises(ValueError, match="leads out"):
        write_directory(tmp_path / "out", {name: ""}, FACTS)
    assert os.listdir(tmp_path) == []


def test_a_link_is_followed(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    write_directory(real, {"a": "1"}, FACTS)
    link.symlink_to(real)
    write_directory(link, {"a": "2"}, FACTS)
    assert link.is_symlink()
    assert (real / "a").read_text() == "2"


def test_manifest_is_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        write_directory(tmp_path / name, {"b": "", "a": ""}, {"z": 1, "y": [1, 2]})
    texts = [(tmp_path / name / "meshc.json").read_bytes() for name in ("one", "two")]
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["files"] == ["a", "b", "meshc.json"]


def test_one_file_whole_or_not_at_all(tmp_path):
    path = tmp_path / "m.meshir"
    write_text(path, "one")
    write_text(path, "two")
    assert path.read_text() == "two"
    assert os.listdir(tmp_path) == ["m.meshir"]
    assert code(write_text, tmp_path / "missing" / "m", "x") == "unwritable"
    assert code(write_text, tmp_path, "x") == "unwritable"


def test_devices_are_written_to_not_replaced(tmp_path):
    write_text(tmp_path.__class__(os.devnull), "x")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_reading_refuses_what_is_no_text(tmp_path):
    path = tmp_path / "t"
    path.write_bytes(b"\xff\xfe")
    assert code(read_text, path, 100) == "unreadable"
    path.write_text("long" * 100)
    assert code(read_text, path, 100) == "unreadable"
    assert code(read_text, tmp_path, 100) == "unreadable"
    assert code(read_text, tmp_path / "missing", 100) == "unreadable"
    assert code(read_text, tmp_path / ("x" * 5000), 100) == "unreadable"
    path.write_bytes("\ufefftext".encode())
    assert read_text(path, 100).text == "text"
