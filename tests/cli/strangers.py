"""What strangers type: whatever is wrong ends in words."""

from __future__ import annotations

import pytest

from meshc.cli import main


def ends_in_words(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """Assert that a command fails with an error or its usage, prints nothing, and has no trace."""
    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert code in (1, 2), (out, err)
    assert out == "" and ("error[" in err if code == 1 else "usage" in err)
    assert "Traceback" not in err and "None" not in err
