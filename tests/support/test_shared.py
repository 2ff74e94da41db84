"""Results that equal arguments share."""

import pytest

from meshc.support.shared import shared


def test_equal_arguments_share_a_result() -> None:
    calls: list[tuple[int, int]] = []

    @shared
    def pair(left: int, right: int) -> list[int]:
        calls.append((left, right))
        return [left, right]

    assert pair(1, 2) is pair(1, 2)
    assert pair(2, 1) == [2, 1]
    assert calls == [(1, 2), (2, 1)]


def test_a_call_that_raises_is_made_again() -> None:
    calls: list[int] = []

    @shared
    def refuse(number: int) -> int:
        calls.append(number)
        raise ValueError(str(number))

    for _ in range(2):
        with pytest.raises(ValueError, match="7"):
            refuse(7)
    assert calls == [7, 7]
