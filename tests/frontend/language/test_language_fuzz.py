"""Whatever the text, the answer is a module or diagnosed errors."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshc.frontend.language import elaborate, parse_model, phases
from meshc.frontend.language.loader import library_source
from meshc.support.diagnostics import MeshcError, known_codes
from meshc.support.spans import Source

TOKEN = re.compile(r'"[^"\n]*"|\d+(?:\.\d+)?(?:e-?\d+)?|\w+|->|==|\S')
VOCABULARY = """
model block main param heads share weights accumulate repeat return when if else use blocks true
false not and or f16 cache.k prefill ( ) [ ] { } , = -> @ + - * / == x w E H G D L S B layers
0 1 2.5 "a" rope softmax append embed transpose sqrt
"""
WORDS = VOCABULARY.split()


def _attempt(text: str) -> None:
    try:
        model = parse_model(Source("fuzz.mesh", text))
        for phase in phases(model):
            assert elaborate(model, phase, seq=4).function.body.ops
    except MeshcError as error:
        assert error.diagnostics
        assert {d.code for d in error.diagnostics} <= set(known_codes())
        assert str(error)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=40))
def test_words_in_any_order(words: list[str]) -> None:
    _attempt(" ".join(words))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=16))
def test_words_in_main(words: list[str]) -> None:
    head = "model m(E=4, H=4, G=2, D=2, layers=2) { param w[E, H, D] main(x[B, L, E]) {"
    _attempt(f"{head} {' '.join(words)} return x }} }}")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_any_characters(text: str) -> None:
    _attempt(text)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_library_with_words_exchanged(family: str) -> None:
    tokens = TOKEN.findall(re.sub(r"#[^\n]*", "", library_source(family).text))
    rng = random.Random(family)
    for _ in range(60):
        changed = list(tokens)
        for _ in range(rng.choice([1, 1, 2, 4])):
            place = rng.randrange(len(changed))
            changed[place : place + rng.choice([0, 1, 1])] = rng.choice(
                [[], [rng.choice(tokens)], [rng.choice(WORDS)]]
            )
        _attempt(" ".join(changed))
