"""Texts and token ids of conversations against ``apply_chat_template`` of transformers."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from chat_models import CONTROL, TEMPLATES, VOCABULARY, write_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from meshc.driver.chatting import open_chat
from meshc.frontend.chat import (
    Conversation,
    conversation_of,
    find_chat_template,
    render_conversation,
)
from meshc.frontend.chat.sandbox import answer
from meshc.frontend.checkpoints import load_tokenizer, read_config

pytestmark = [pytest.mark.oracle, pytest.mark.models]

TINY = Path(__file__).parents[2] / "data" / "tiny" / "llama-3h1"
TEXTS = st.lists(st.sampled_from((*CONTROL, *"ab \n?'\"é<&{%")), max_size=8).map("".join)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(("system", "user", "assistant", "tool")), "content": TEXTS},
        optional={
            "name": TEXTS,
            "tool_call_id": TEXTS,
            "reasoning_content": TEXTS,
            "thinking": TEXTS,
        },
    ),
    min_size=1,
    max_size=6,
)
# Half of the conversations alternate, as some templates take no others.
TALKS = MESSAGES | st.lists(TEXTS, min_size=1, max_size=6).map(
    lambda texts: [
        {"role": ("user", "assistant")[number % 2], "content": text}
        for number, text in enumerate(texts)
    ]
)


def both(folder: Path, template: str) -> tuple[Any, Any]:
    """The tokenizer of transformers, and how we read conversations."""
    transformers = pytest.importorskip("transformers")
    config = read_config(TINY)
    write_tokenizer(folder, chat_template=template)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    return theirs, open_chat(folder, load_tokenizer(folder, config), "tiny")


def told(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    """The text that transformers writes, or what the template says against it."""
    exceptions = pytest.importorskip("jinja2.exceptions")
    try:
        found = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return str(found)
    except exceptions.TemplateError as error:
        return f"! {error}"


def ours(chat: Any, messages: list[dict[str, str]]) -> str:
    """The same of the sandbox, in this process."""
    variables = {"messages": conversation_of(messages).messages, "tools": None, "documents": None}
    found = answer(
        {
            "template": chat.template.source.text,
            "variables": chat.template.variables | variables | {"add_generation_prompt": True},
            "unknown": sorted(chat.template.unknown),
            "now": datetime.now().isoformat(),
            "most": 1 << 20,
        }
    )
    return str(found["text"]) if "text" in found else f"! {found['words']}"


@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_and_ids_are_those_of_transformers(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    theirs, chat = both(tmp_path_factory.mktemp(name), TEMPLATES[name])
    seen = set()

    @settings(max_examples=300)
    @given(messages=TALKS)
    def check(messages: list[dict[str, str]]) -> None:
        text = told(theirs, messages)
        assert ours(chat, messages) == text
        seen.add(text.startswith("! "))
        if not text.startswith("! "):
            ids = theirs(text, add_special_tokens=False)["input_ids"]
            assert chat.tokenizer.encode_rendered(text) == ids

    check()
    assert False in seen


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_process_gives_the_same(name: str, tmp_path: Path) -> None:
    theirs, chat = both(tmp_path, TEMPLATES[name])
    messages = [{"role": "user", "content": "<|end|>  ab é\n"}]
    template = find_chat_template(tmp_path, "tiny")
    found = render_conversation(template, Conversation(tuple(messages)), datetime.now())
    assert found.text == told(theirs, messages)
    ids = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert chat.ids(Conversation(tuple(messages))) == ids
    assert ids.count(VOCABULARY["<s>"]) <= 1
