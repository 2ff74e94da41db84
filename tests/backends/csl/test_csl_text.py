"""Long lines of emitted CSL."""

from meshc.backends.csl.spelling.lines import WIDTH, wrapped


def test_a_short_line_stays():
    assert wrapped("    @fmovs(a, b); // copy") == ["    @fmovs(a, b); // copy"]


def test_a_long_comment_breaks_between_words():
    words = ", ".join(f"receive on ring_{n}" for n in range(12))
    lines = wrapped(f"    // {words}")
    assert len(lines) > 1
    assert all(len(line) <= WIDTH and line.startswith("    // ") for line in lines)
    assert " ".join(line.removeprefix("    // ") for line in lines) == words


def test_a_comment_behind_long_code_goes_before_it():
    arguments = ", ".join(f"argument_{n}" for n in range(12))
    first, *rest = wrapped(f"    call({arguments}); // what it came from")
    assert first == "    // what it came from"
    assert rest[0] == "    call(" and rest[-1] == "    );"
    assert "".join(line.strip() for line in rest) == f"call({arguments.replace(', ', ',')});"
