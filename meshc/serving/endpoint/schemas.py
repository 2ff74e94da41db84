"""Answers that fit a JSON schema: which tokens may come next, as the library llguidance finds them.
The only user of that package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from meshc.serving.endpoint.refusals import Refused
from meshc.serving.sampling import Array, Choose
from meshc.support.diagnostics import fail

FIELD = "response_format"
_MOST_CHARACTERS = 1 << 16
_FORM = {"whitespace_flexible": False}
"""No white space but in texts: an answer may not go on with spaces for ever."""


class Schemas:
    """What answers may hold. ``described`` gives the tokenizer in the JSON of the ``tokenizers``
    package, which the first schema reads; of ``vocab`` tokens those in ``eos`` end a text."""

    def __init__(self, described: Callable[[], str], vocab: int, eos: Sequence[int]) -> None:
        self._described, self._vocab, self._eos = described, vocab, eos

    @cached_property
    def _tokens(self) -> Any:
        return LLTokenizer(self._described(), n_vocab=self._vocab, eos_token=list(self._eos))

    def fitting(self, schema: str) -> Callable[[Choose], Choose]:
        """What makes of a way to choose tokens one that keeps to ``schema``, a JSON object. Takes
        up to some seconds. Raises :class:`Refused` for a schema that is none, or is not supported.
        """
        if len(schema) > _MOST_CHARACTERS:
            words = f"the schema has {len(schema)} characters, more than {_MOST_CHARACTERS}"
            raise Refused(400, words, FIELD)
        try:
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides=_FORM)
            first = LLMatcher(self._tokens, grammar, log_level=0, limits=_limits())
            problem = first.get_error()
        except ValueError as error:
            problem = str(error)
        if problem:
            words = f"the schema is not supported: {problem.splitlines()[0][:200]}"
            raise Refused(400, words, FIELD, "invalid_value")
        return lambda then: _Fitting(then, first.deep_copy(), self._vocab)


class _Fitting:
    """Chooses tokens as ``then`` does, among those that ``matcher`` lets come."""

    def __init__(self, then: Choose, matcher: Any, vocab: int) -> None:
        self._then, self._matcher, self._vocab = then, matcher, vocab

    def __call__(self, logits: Array) -> int:
        """The next token behind ``logits`` ``[vocab]``. Raises ``run-refused``."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, count=self._vocab, bitorder="little").astype(bool)
        if self._matcher.is_error() or not allowed.any():
            fail("run-refused", "no token fits the schema, or finding one takes too long")
        token = self._then(np.where(allowed, logits, np.float32(-np.inf)))
        self._matcher.consume_token(token)
        return token


def _limits() -> Any:
    """A step may hold up other requests for a tenth of a second or so."""
    return LLParserLimits(
        initial_lexer_fuel=200_000,
        step_lexer_fuel=20_000,
        step_max_items=20_000,
        max_lexer_states=50_000,
    )
