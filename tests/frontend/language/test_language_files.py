"""Files: reading, `use`, and what must not be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshc.frontend.language import elaborate, load_model, parse_model
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source

BLOCK = "block double(x[E]) { return x + x }\n"
MODEL = "model m(E=4) { main(x[E]) { return double(x) } }\n"


def _code(path: Path) -> str:
    with pytest.raises(MeshcError) as caught:
        load_model(path)
    (found,) = caught.value.diagnostics
    return found.code


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_blocks_of_a_file_beside(tmp_path: Path) -> None:
    _write(tmp_path / "parts" / "double.mesh", BLOCK)
    path = _write(tmp_path / "m.mesh", 'use "parts/double.mesh"\n' + MODEL)
    assert len(elaborate(load_model(path), "main").function.body.ops) == 2


def test_used_files_follow_their_own_folder_and_are_not_reexported(tmp_path: Path) -> None:
    _write(tmp_path / "a" / "inner.mesh", "block inner(x[E]) { return x * 2 }")
    _write(
        tmp_path / "a" / "outer.mesh",
        'use "inner.mesh"\nblock outer(x[E]) { return inner(x) }',
    )
    head = 'use "a/outer.mesh"\nmodel m(E=4) { main(x[E]) { return '
    assert load_model(_write(tmp_path / "ok.mesh", head + "outer(x) } }"))
    assert _code(_write(tmp_path / "bad.mesh", head + "inner(x) } }")) == "unknown-function"


@pytest.mark.parametrize(
    "target",
    [
        "../double.mesh",
        "/etc/passwd",
        "/tmp/x.mesh",
        "double.txt",
        "a/../../double.mesh",
        "no.mesh",
    ],
)
def test_paths_that_lead_elsewhere_are_refused(tmp_path: Path, target: str) -> None:
    _write(tmp_path / "double.mesh", BLOCK)
    path = _write(tmp_path / "inside" / "m.mesh", f'use "{target}"\n' + MODEL)
    assert _code(path) == "bad-use"


def test_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    _write(tmp_path / "double.mesh", BLOCK)
    path = _write(tmp_path / "inside" / "m.mesh", 'use "link.mesh"\n' + MODEL)
    (tmp_path / "inside" / "link.mesh").symlink_to(tmp_path / "double.mesh")
    assert _code(path) == "bad-use"


def test_files_that_use_each_other_are_refused(tmp_path: Path) -> None:
    _write(tmp_path / "a.mesh", 'use "b.mesh"\n' + BLOCK)
    _write(tmp_path / "b.mesh", 'use "a.mesh"\nblock other(x[E]) { return x }')
    assert _code(_write(tmp_path / "m.mesh", 'use "a.mesh"\n' + MODEL)) == "bad-use"


def test_one_block_name_from_two_files_is_refused(tmp_path: Path) -> None:
    _write(tmp_path / "a.mesh", BLOCK)
    _write(tmp_path / "b.mesh", BLOCK)
    path = _write(tmp_path / "m.mesh", 'use "a.mesh" use "b.mesh"\n' + MODEL)
    assert _code(path) == "duplicate-name"


def test_a_text_has_no_files_beside_it() -> None:
    with pytest.raises(MeshcError, match="no file cannot use"):
        parse_model(Source("<stdin>", 'use "a.mesh"\n' + MODEL))


def test_unknown_library_file_is_refused() -> None:
    with pytest.raises(MeshcError, match="did you mean 'blocks'"):
        parse_model(Source("<stdin>", "use block_s\n" + MODEL))


def test_mistake_in_a_used_file_is_placed_there(tmp_path: Path) -> None:
    _write(tmp_path / "double.mesh", "block double(x[E]) { return x ++ }")
    path = _write(tmp_path / "m.mesh", 'use "double.mesh"\n' + MODEL)
    with pytest.raises(MeshcError) as caught:
        load_model(path)
    span = caught.value.diagnostics[0].span
    assert span is not None
    assert span.source.name.endswith("double.mesh")


def test_files_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "m.mesh"
    assert _code(path) == "source-unreadable"
    assert _code(tmp_path) == "source-unreadable"
    path.write_bytes(b"model m {\n  # caf\xe9\n}")
    assert _code(path) == "source-not-utf8"
    path.write_bytes(bytes(range(256)) * 4)
    assert _code(path) == "source-not-utf8"
    path.write_bytes(b"#" * 60_000)
    assert _code(path) == "source-too-large"
    path.write_bytes(b"\0" * 3_000_000)
    assert _code(path) == "source-too-large"


def test_byte_order_mark_and_line_ends_of_windows(tmp_path: Path) -> None:
    path = tmp_path / "m.mesh"
    path.write_bytes(b"\xef\xbb\xbf" + (BLOCK + MODEL).replace("\n", "\r\n").encode())
    assert load_model(path).name == "m"


def test_the_caret_of_a_tabbed_line() -> None:
    with pytest.raises(MeshcError) as caught:
        parse_model(Source("t.mesh", "model m(E=4) {\n\tmain(x[E]) {\n\t\treturn y\n\t}\n}"))
    lines = caught.value.diagnostics[0].render().split("\n")
    assert lines[3].index("y") == lines[4].index("^")
