"""Pieces of text are final: no half of a character, nothing of a text to stop at."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.serving.texts import Flow


class Bytes:
    """Tokens are the bytes of UTF-8, of which characters may need several."""

    def encode(self, text):
        return list(text.encode())

    def continuation(self, prompt, ids):
        return bytes(ids).decode(errors="replace")


def pieces(text, stops=()):
    """The pieces that the bytes of ``text`` give, up to a stop."""
    flow, found = Flow(Bytes(), [], stops), []
    ids = list(text.encode())
    for number, token in enumerate(ids):
        found.append(flow.push(token, last=number == len(ids) - 1))
        if flow.stopped:
            break
    return found, flow


@given(text=st.text(min_size=1))
def test_pieces_are_whole_characters_and_make_the_text(text):
    found, _ = pieces(text)
    assert "".join(found) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in found)


@given(text=st.text("ab", min_size=1), stops=st.lists(st.text("ab", min_size=1), max_size=3))
def test_nothing_of_a_stop_is_given_out(text, stops):
    found, flow = pieces(text, stops)
    shown = text
    for end in range(1, len(text) + 1):
        places = [text[:end].find(stop) for stop in stops if stop in text[:end]]
        if places:
            shown = text[: min(places)]
            break
    assert "".join(found) == shown
    assert flow.stopped == (shown != text or any(stop in text for stop in stops))


@pytest.mark.parametrize(("shown", "wanted"), [(True, "abc"), (False, "ab")])
def test_a_token_that_ends_a_text_may_be_left_out(shown, wanted):
    flow = Flow(Bytes(), [], ())
    first = [flow.push(token, last=False) for token in b"ab"]
    assert "".join([*first, flow.push(ord("c"), last=True, shown=shown)]) == wanted
