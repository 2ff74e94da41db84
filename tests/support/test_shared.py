"""Results that equal arguments share, and hashes that are worked out once."""

import os
import pickle
import subprocess
import sys

import pytest

from meshc.ir.affine import Cond, Expr
from meshc.ir.types import DType, Layout, TensorType
from meshc.support.shared import shared

KEYS = (
    Expr.var("x") + 1,
    Cond.lt(Expr.var("x"), 3),
    Layout(),
    TensorType(DType("f32"), ("X", "E")),
)


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


def test_hashes_stay_in_their_process() -> None:
    """Those of texts differ from process to process, so a key that was sent is hashed anew."""
    for key in KEYS:
        assert hash(key) == hash(pickle.loads(pickle.dumps(key)))
    code = (
        "import pickle, sys\nsent = pickle.load(sys.stdin.buffer)\n"
        f"sys.path.insert(0, {os.path.dirname(__file__)!r})\nfrom test_shared import KEYS\n"
        "assert all(own in {key} for own, key in zip(KEYS, sent, strict=True))"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(KEYS),
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
