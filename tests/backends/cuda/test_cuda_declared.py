"""Integers that emitted steps declare, without those that nothing reads."""

from textwrap import dedent

import pytest

from meshc.backends.cuda.tasks.integer_declarations import used_alone

CASES = {
    "one of two": (
        """
        {
            const int b = 0, g = task / f(8, 2);
            use(g);
        }
        use(b);
        """,
        """
        {
            const int g = task / f(8, 2);
            use(g);
        }
        use(b);
        """,
    ),
    "none, with a note": ("const int b = me / 16;  // request\nuse(bb, me);\n", "use(bb, me);\n"),
    "what another needs": (
        "const int b = 1, g = b + 1;\nconst int h = g;\nuse(h);\n",
        "const int b = 1, g = b + 1;\nconst int h = g;\nuse(h);\n",
    ),
    "what another needed": ("const int b = 1, g = b + 1;\nconst int h = g;\nuse();\n", "use();\n"),
    "its own in a block": (
        """
        const int b = 1;
        for (;;) {
            const int b = 2;
            use(b);
        }
        """,
        """
        for (;;) {
            const int b = 2;
            use(b);
        }
        """,
    ),
    "both": (
        """
        const int b = 1;
        for (;;) {
            const int b = 2;
            use(b);
        }
        use(b);
        """,
    ),
    "made of the one outside": (
        """
        const int b = 1;
        for (;;) {
            const int c = b, b = c + 1;
            use(b);
        }
        """,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_used_alone(case):
    given, *wanted = (dedent(text).strip().split("\n") for text in CASES[case])
    assert used_alone(given) == (wanted[0] if wanted else given)


def test_a_comparison_ends_no_part():
    """``>=`` closes nothing: a window that some layers have."""
    lines = [
        "const int seen = (layer == 0 || layer >= 1) ? max(pos - 1, 0) : 0, unused = 1;",
        "use(seen);",
    ]
    assert used_alone(lines) == [lines[0].removesuffix(", unused = 1;") + ";", lines[1]]
