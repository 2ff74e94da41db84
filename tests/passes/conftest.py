"""Pass files: ``tests/passes/<pass>/<case>.meshir`` with pipeline, input and expected text.

    # passes: canonicalize,eliminate-transpose
    # remarks: transpose-eliminated
    module ... input ...
    # ---
    module ... expected ...

Instead of a module, the expected part may be the messages of the errors that are wanted.
"""

import pytest


class PassCase:
    """One file."""

    MARK = "# ---\n"

    def __init__(self, path):
        self.path = path
        text = path.read_text(encoding="utf-8")
        head, _, self.expected = text.partition(self.MARK)
        lines = head.splitlines(keepends=True)
        self.comments = [line for line in lines if line.startswith("#")]
        self.given = "".join(line for line in lines if not line.startswith("#"))

    def fact(self, name):
        """The text after ``# name:``, or an empty text."""
        start = f"# {name}:"
        return next((c[len(start) :].strip() for c in self.comments if c.startswith(start)), "")

    def rewrite(self, result):
        """Replace the expected part."""
        self.path.write_text("".join(self.comments) + self.given + self.MARK + result)


@pytest.fixture
def pass_case():
    return PassCase
