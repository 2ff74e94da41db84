"""What is kept is found again whole, or not at all."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from meshc.support import cache, native


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "meshc"


@pytest.mark.parametrize("name", ["XDG_CACHE_HOME", "HOME"])
def test_the_folder_is_absolute(name, tmp_path, monkeypatch):
    """Compilers run in other folders than meshc."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(name, ".")
    assert cache.cache_folder() == tmp_path / ".cache" / "meshc"


def test_nothing_is_kept_at_first():
    assert cache.recall("key") is None


def test_what_is_kept_is_recalled(own_cache):
    path = cache.keep("key", b"data", ".so")
    assert (path.suffix, path.parent) == (".so", own_cache / "key")
    assert cache.recall("key") == path and path.read_bytes() == b"data"
    assert cache.recall("other") is None
    assert [p for p in own_cache.rglob("*") if p.is_file()] == [path]


@pytest.mark.parametrize("harm", [b"", b"dat", b"datb"])
def test_what_is_damaged_is_not_recalled_and_can_be_kept_again(harm):
    path = cache.keep("key", b"data")
    path.write_bytes(harm)
    assert cache.recall("key") is None
    assert cache.keep("key", b"data") == path == cache.recall("key")
    assert path.read_bytes() == b"data"


def test_a_damaged_file_does_not_hide_a_sound_one():
    first, second = cache.keep("key", b"one"), cache.keep("key", b"two")
    for damaged, sound in ((first, second), (second, first)):
        data = damaged.read_bytes()
        damaged.write_bytes(b"x")
        assert cache.recall("key") == sound
        damaged.write_bytes(data)


def test_a_file_that_is_in_use_is_replaced_not_changed():
    path = cache.keep("key", b"data")
    with path.open("rb") as held:
        path.unlink()
        path.write_bytes(b"harm")
        cache.keep("key", b"data")
        assert held.read() == b"data"


def keep_and_recall(number, folder):
    """Damage what is kept, heal it, and count how often something else than that is found."""
    os.environ["XDG_CACHE_HOME"] = folder
    wrong = 0
    for turn in range(60):
        path = cache.keep("key", b"data" * 1000)
        if (turn + number) % 3 == 0:
            harmed = path.with_name(f"harmed{number}")
            harmed.write_bytes(b"data")
            harmed.replace(path)
        found = cache.recall("key")
        if found is not None:
            wrong += not found.exists()
    return wrong


def test_processes_share_a_cache(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.starmap(keep_and_recall, [(n, str(tmp_path)) for n in range(2)]) == [0, 0]
    cache.keep("key", b"data" * 1000)
    assert cache.recall("key").read_bytes() == b"data" * 1000


def make_slowly(folder):
    """What is kept, and how often this process made it."""
    os.environ["XDG_CACHE_HOME"] = folder
    made = []

    def make():
        made.append(1)
        time.sleep(0.5)
        return b"data"

    return cache.recall_or_make("key", make).read_bytes(), len(made)


def test_one_process_makes_what_several_need(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(make_slowly, [str(tmp_path)] * 2, chunksize=1)
    assert [data for data, _ in found] == [b"data"] * 2 and sum(n for _, n in found) == 1


def fail_to_make():
    raise ValueError


def test_who_fails_to_make_something_holds_nobody_up():
    for _ in range(2):
        with pytest.raises(ValueError):
            cache.recall_or_make("key", fail_to_make)
    assert cache.recall_or_make("key", lambda: b"data").read_bytes() == b"data"


def hold_for_ever(folder, held):
    os.environ["XDG_CACHE_HOME"] = folder

    def make():
        held.set()
        time.sleep(600)
        return b""

    cache.recall_or_make("key", make)


def test_who_dies_while_making_something_holds_nobody_up(tmp_path):
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    holder = context.Process(target=hold_for_ever, args=(str(tmp_path), held))
    holder.start()
    assert held.wait(60)
    holder.kill()
    holder.join()
    assert cache.recall_or_make("key", lambda: b"data").read_bytes() == b"data"


@pytest.mark.parametrize("refusal", [BlockingIOError, OSError])
def test_without_a_lock_one_makes_it_too(refusal, monkeypatch):
    def refuse(*_):
        raise refusal

    monkeypatch.setattr(cache, "flock", refuse)
    monkeypatch.setattr(cache, "_MOST_SECONDS", 0.1)
    assert cache.recall_or_make("key", lambda: b"data").read_bytes() == b"data"


def a_file(path):
    path.write_text("no folder")


def a_pipe(path):
    os.mkfifo(path)


def a_link_to_nothing(path):
    path.symlink_to("nowhere")


def a_link_to_itself(path):
    path.symlink_to(path.name)


@pytest.fixture
def forgetful(monkeypatch):
    """As in a new process, which has no folder of its own yet."""
    monkeypatch.setattr(cache, "_private", cache._Private())


UNUSABLE = [a_file, a_pipe, a_link_to_nothing, a_link_to_itself]


@pytest.mark.parametrize("level", ["cache", "entry"])
@pytest.mark.parametrize("kind", UNUSABLE)
def test_what_is_no_folder_is_done_without(kind, level, own_cache, forgetful, capsys):
    place = own_cache if level == "cache" else own_cache / "key"
    place.parent.mkdir(parents=True, exist_ok=True)
    kind(place)
    made = []
    for _ in range(2):
        path = cache.recall_or_make("key", lambda: made.append(1) or b"data", ".so")
        assert path.read_bytes() == b"data" and path.suffix == ".so"
    assert len(made) == 1 and own_cache not in path.parents
    said = capsys.readouterr().err
    assert said.count("remark[cache]") == 1 and str(own_cache) in said


@pytest.mark.parametrize("kind", UNUSABLE)
def test_what_lies_where_a_kept_file_belongs_is_replaced(kind, own_cache, forgetful, capsys):
    path = cache.keep("key", b"data")
    path.unlink()
    kind(path)
    assert cache.recall("key") is None
    assert cache.recall_or_make("key", lambda: b"data") == path
    assert path.read_bytes() == b"data" and not path.is_symlink()
    assert capsys.readouterr().err == ""


def test_a_folder_where_a_kept_file_belongs_is_left_alone(own_cache, forgetful, capsys):
    place = cache.keep("key", b"data")
    place.unlink()
    place.mkdir()
    (place / "notes").write_text("mine")
    path = cache.recall_or_make("key", lambda: b"data")
    assert path != place and path.read_bytes() == b"data"
    assert (place / "notes").read_text() == "mine"
    assert "remark[cache]" in capsys.readouterr().err


def test_errors_of_making_are_no_errors_of_the_cache(forgetful, capsys):
    def refuse():
        raise FileNotFoundError("the compiler")

    with pytest.raises(FileNotFoundError, match="the compiler"):
        cache.recall_or_make("key", refuse)
    assert capsys.readouterr().err == ""


def test_a_library_that_is_not_loaded_from_the_cache_is_loaded_from_elsewhere(
    own_cache, forgetful, monkeypatch, capsys
):
    """As on a disk that is mounted for data alone."""
    kept = cache.keep("key", b"library", ".so")
    loaded = []

    def load(path, mode):
        if own_cache in Path(path).parents:
            raise OSError("failed to map segment from shared object")
        loaded.append(Path(path).read_bytes())

    monkeypatch.setattr(native.ct, "CDLL", load)
    native.opened(kept)
    assert loaded == [b"library"] and "remark[cache]" in capsys.readouterr().err
