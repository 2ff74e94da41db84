"""Pieces of text are final: no half of a character, nothing of a text to stop at."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.serving.texts import Flow


class Bytes:
    """Tokens are the bytes of UTF-8, of which characters may need several; others are control
    tokens."""

    def encode(self, text):
        return list(text.encode())

    def continuation(self, prompt, ids):
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    def control_text(self, token):
        return {256: "<ab>", 257: "<b"}.get(token, "")


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


letters_and_controls = st.lists(st.sampled_from([*b"ab>", 256, 257]), min_size=1)


def spelled(ids, controls=True):
    texts = (chr(i) if i < 256 else Bytes().control_text(i) for i in ids if controls or i < 256)
    return "".join(texts)


@given(ids=letters_and_controls, stops=st.lists(st.text("ab<>", min_size=1), max_size=3))
def test_stops_are_found_in_control_tokens_which_are_not_shown(ids, stops):
    flow, found = Flow(Bytes(), [], stops), []
    for number, token in enumerate(ids):
        found.append(flow.push(token, last=number == len(ids) - 1))
        if flow.stopped:
            break
    taken = ids[: len(found)]
    stopped = [spelled(taken).find(stop) for stop in stops if stop in spelled(taken)]
    assert flow.stopped == any(stop in spelled(ids) for stop in stops)
    kept, length = [], 0
    for token in taken:
        length += len(spelled([token]))
        if token < 256 and (not stopped or length <= min(stopped)):
            kept.append(token)
    assert "".join(found) == spelled(kept, controls=False)
    assert not any(stop in spelled(taken[:-1]) for stop in stops)
