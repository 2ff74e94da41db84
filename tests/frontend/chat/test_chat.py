"""Chat templates: where they are found, what they write, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from chat_models import CHATML, HEADERS, INST, TURNS, VOCABULARY, by_hand, write_tokenizer

from meshc.cli import main
from meshc.driver import CompileRequest, load_any
from meshc.driver.chatting import open_chat
from meshc.driver.serving import ServeRequest, opened_service
from meshc.frontend.chat import (
    ChatTemplate,
    Conversation,
    conversation_of,
    find_chat_template,
    read_conversation,
    render_conversation,
    rendering,
    said_now,
)
from meshc.frontend.chat.sandbox import answer
from meshc.frontend.checkpoints import load_tokenizer, read_config
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.spans import Source

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.models

TINY = Path(__file__).parents[2] / "data" / "tiny" / "llama-3h1"
NOW = datetime(2023, 11, 14, 22, 13)
ASKS = Conversation.of("hi")


def written(template, conversation=ASKS, **variables):
    """What the sandbox answers, in this process."""
    return answer(
        {
            "template": template,
            "variables": {"messages": list(conversation.messages), **variables},
            "unknown": [],
            "now": NOW.isoformat(),
            "most": 10_000,
        }
    )


def refused(code, call, *args):
    """The one error, of ``code``, that ``call`` raises."""
    with pytest.raises(MeshcError) as error:
        call(*args)
    (found,) = error.value.diagnostics
    assert found.code == code, found.render()
    return found


def rendered(text, conversation=ASKS, **facts):
    template = ChatTemplate(Source("a.jinja", text), **facts)
    return render_conversation(template, conversation, NOW)


@pytest.fixture
def folder(tmp_path):
    """A tiny model with a tokenizer and, in its config, the template with turns."""
    shutil.copytree(TINY, tmp_path / "model")
    return write_tokenizer(tmp_path / "model", chat_template=TURNS)


def test_families_write_what_their_models_were_trained_on():
    talk = conversation_of(
        [
            {"role": "system", "content": " be brief "},
            {"role": "user", "content": "<b> hi & 'bye'"},
            {"role": "assistant", "content": "yes "},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
        ]
    )
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True}
    assert written(HEADERS, talk, **tokens)["text"] == (
        "<s><|head|>system<|/head|>\n\nAnswers are in English.\nbe brief<|eot|>"
        "<|head|>user<|/head|>\n\n<b> hi & 'bye'<|eot|><|head|>assistant<|/head|>\n\nyes<|eot|>"
        "<|head|>user<|/head|>\n\na\nb<|eot|><|head|>assistant<|/head|>\n\n"
    )
    assert written(INST, talk, **tokens)["text"] == (
        "<s>[INST]  be brief \n\n<b> hi & 'bye' [/INST] yes</s>[INST] a\nb [/INST]"
    )
    assert written(CHATML, ASKS, **tokens)["text"] == (
        "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert written("{{ {'é': '<'} | tojson }}")["text"] == '{"é": "<"}'
    assert written("{{ strftime_now('%d %b %Y') }}") == {"text": "14 Nov 2023", "dated": True}


@pytest.mark.parametrize(
    ("template", "words", "line"),
    [
        ("a\n{% for %}", "Expected", 2),
        ("\n\n{{ messages[7].role }}", "no element 7", 3),
        ("{% macro f(x) %}\n{{ x + 1 }}{% endmacro %}\n{{ f('a') }}", "concatenate str", 2),
        ("{{ ''.__class__.__mro__ }}", "unsafe", 1),
        ("{{ dict.__subclasses__() }}", "__subclasses__", 1),
        ("{% set ns = namespace(_a=1) %}", "no name '_a'", 1),
        ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "no name '__class__'", 1),
        ("{{ messages.append(1) }}", "unsafe", 1),
        ("{% include 'a' %}", "no loader", 1),
        ("{{ range(10 ** 9) }}", "Range too big", 1),
    ],
)
def test_a_template_that_fails_says_where(template, words, line):
    found = written(template)
    assert found["fault"] == "failed" and found["line"] == line and words in found["words"]


def test_faults_are_errors_with_their_place():
    found = refused("chat-template-invalid", rendered, "ab\n  {{ messages + 1 }}\n")
    assert "can only concatenate" in found.message
    assert (found.span.line, found.span.column) == (2, 3)
    found = refused("chat-refused", rendered, TURNS, Conversation.of("hi", "be brief"))
    assert found.message.endswith("says: no system turns") and found.span.line == 2
    found = refused(
        "chat-template-invalid", lambda: rendered("{{ pad_token }}", unknown={"pad_token"})
    )
    assert "uses 'pad_token'" in found.message


def test_a_template_that_takes_long_is_refused(monkeypatch):
    monkeypatch.setattr(rendering, "PROCESSOR_SECONDS", 1)
    found = refused("chat-template-costly", rendered, "{{ 9 ** (9 ** 9) }}")
    assert "seconds of a processor" in found.message


@pytest.mark.slow
def test_nested_loops_are_refused():
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    refused("chat-template-costly", rendered, loops)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (
            "{% set n = namespace(t='ab') %}{% for i in range(60) %}{% set n.t = n.t + n.t %}"
            "{% endfor %}{{ n.t }}",
            "512 MiB",
        ),
        ("{% for i in range(99) %}{{ 'abcd' * 999999 }}{% endfor %}", "16777216 characters"),
    ],
)
def test_a_template_that_writes_much_is_refused(template, words):
    assert words in refused("chat-template-costly", rendered, template).message


def test_where_templates_are_found(folder):
    assert find_chat_template(folder, "m").source.text == TURNS
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert find_chat_template(folder / "model.safetensors", "m").source.text == TURNS
    named = [{"name": "tools", "template": "a"}, {"name": "default", "template": "b"}]
    write_tokenizer(folder, chat_template=named, bos_token={"content": "<b>"}, pad_token=None)
    found = find_chat_template(folder, "m")
    assert found.source.text == "b" and found.unknown == frozenset()
    assert found.variables == {"bos_token": "<b>", "eos_token": "</s>", "unk_token": "<unk>"}
    write_tokenizer(folder, chat_template=None, tokenizer_class="LlamaTokenizer", bos_token=None)
    found = find_chat_template(folder, "m")
    assert found.source.text == "json" and {"bos_token", "pad_token"} < found.unknown
    (folder / "chat_template.jinja").write_text("own")
    assert find_chat_template(folder, "m").source.text == "own"
    further = folder / "additional_chat_templates"
    further.mkdir()
    (further / "tools.jinja").write_text("tools")
    assert find_chat_template(folder, "m").source.text == "own"
    (further / "default.jinja").write_text("first")
    assert find_chat_template(folder, "m").source.text == "first"
    for file in (folder / "chat_template.jinja", further / "default.jinja"):
        file.unlink()
    told = refused("chat-template-invalid", find_chat_template, folder, "m")
    assert "there are: tools" in told.message


def test_templates_that_are_none(folder):
    cases = (
        (None, "chat-template-missing", "has no chat template"),
        (7, "chat-template-invalid", "it is 7, no text"),
        ([{"name": "tools", "template": "a"}], "chat-template-invalid", "there are: tools"),
        ("a" * (1 << 20) + "b", "chat-template-invalid", "more than 1048576"),
    )
    for given, code, words in cases:
        write_tokenizer(folder, chat_template=given)
        assert words in refused(code, find_chat_template, folder, "m").message
    (folder / "chat_template.jinja").write_bytes(b"a\xff")
    assert "byte 1" in refused("chat-template-invalid", find_chat_template, folder, "m").message


def test_control_tokens_are_read_as_such_and_bos_once(folder):
    tokenizer = load_tokenizer(folder, read_config(folder))
    assert tokenizer.encode("hi")[0] == VOCABULARY["<s>"]
    ids = open_chat(folder, tokenizer, "m").ids(ASKS)
    assert ids == by_hand("<s>", "<turn>", "user\nhi", "</turn>", "\n", "<turn>", "model\n")
    declared = {"3": {"content": "<|head|>"}, "58": {"content": "<new>"}}
    write_tokenizer(folder, chat_template=TURNS, added_tokens_decoder=declared)
    found = refused("tokenizer-mismatch", load_tokenizer, folder, read_config(folder))
    assert '"<new>" is token 58' in found.message


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "there are no messages"),
        ("hi", "there are no messages"),
        (["hi"], 'message 1 is "hi"'),
        ([{"content": "hi"}], "the role of message 1 is null"),
        ([{"role": "user", "content": 1}], "the content of message 1 is 1"),
        ([{"role": "user", "content": "a"}, {"role": "tool"}], "the content of message 2 is null"),
        ([{"role": "assistant", "tool_calls": []}], "the content of message 1 is null"),
        ([{"role": "assistant", "tool_calls": {"a": 1}}], "the tool_calls of message 1"),
        ([{"role": "user", "content": [{"type": "image"}]}], "a part of message 1"),
        ([{"role": "user", "content": "a", "name": 3}], "the name of message 1"),
    ],
)
def test_messages_that_are_none(messages, words):
    assert words in refused("chat-invalid", conversation_of, messages).message


CALLED = [
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "so",
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": "5", "name": "f"},
]
CALLING = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}:{{ m.reasoning_content }}"
    "{% for c in m.tool_calls or [] %}{{ c | tojson }}{{ c.function.arguments }}{% endfor %}"
    "{{ m.tool_call_id }}{{ 'content' in m }}{% if m.content is none %}none{% endif %};"
    "{% endfor %}"
)


def test_templates_read_all_keys_of_messages(folder):
    """As in transformers: nulls are left out, thoughts have several names."""
    write_tokenizer(folder, chat_template=CALLING)
    template = find_chat_template(folder, "m")
    found = render_conversation(template, conversation_of(CALLED), NOW).text
    call = '{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\\"x\\": 1}"}}'
    assert found == (f'user:a:True;assistant::so{call}{{"x": 1}}False;tool:5:cTrue;')
    for name in ("thinking", "reasoning"):
        thought = [{"role": "assistant", "content": "a", name: "so"}]
        assert "a:so" in render_conversation(template, conversation_of(thought), NOW).text


PARTS = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
]
LOOP = "{% for part in m.content %}[{{ part.text }}]{% endfor %}"
EITHER = "{% if m.content is string %}{{ m.content }}{% else %}" + LOOP + "{% endif %}"
CHOSEN = (
    "{{ m.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join('+') }}"
)


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        ("{{ m.content }}", "s;a\nb;"),
        ("{{ m.content.strip() }}", "s;a\nb;"),
        ("{{ 'x' + m.content }}", "xs;xa\nb;"),
        ("{{ m.content | trim }}", "s;a\nb;"),
        ("{% if m.content is string %}{{ m.content }}{% endif %}", "s;a\nb;"),
        (EITHER, "s;[a][b];"),
        ("{% if m.role == 'user' %}" + CHOSEN + "{% endif %}", ";a+b;"),
        ("{% if m.role == 'user' %}{{ m.content[0]['text'] }}{% endif %}", ";a;"),
        (EITHER.replace("part.text", "part.text | upper"), "s;[A][B];"),
        (
            "{% if m.content is not string %}{{ m.content[1:] }}{% endif %}{{ m.content }}",
            "s;a\nb;",
        ),
        ("{% for p in m.content if p is mapping %}{{ p.get('text')[:1] }},{% endfor %}", ";a,b,;"),
        ("{{ m.content | tojson }}", '"s";' + json.dumps(PARTS[1]["content"]) + ";"),
    ],
)
def test_parts_reach_templates_that_know_them(one, wanted):
    template = "{% for m in messages %}" + one + ";{% endfor %}"
    source = Source("t", template)
    assert render_conversation(ChatTemplate(source), conversation_of(PARTS), NOW).text == wanted


def test_what_a_template_takes_is_found_for_each_message():
    """It reads the parts of one, writes the list of another, and passes over that of a third."""
    said = [("user", "ab"), ("assistant", "cd"), ("tool", "ef")]
    messages = [
        {"role": role, "content": [{"type": "text", "text": text} for text in texts]}
        for role, texts in said
    ]
    one = (
        "{% if m.role == 'assistant' %}{{ m.content }}{% elif m.content is string %}{{ m.content }}"
    )
    one += "{% elif m.role == 'user' %}{{ m.content | map(attribute='text') | join }}{% endif %}"
    source = Source("t", "{% for m in messages %}" + one + ";{% endfor %}")
    found = render_conversation(ChatTemplate(source), conversation_of(messages), NOW)
    assert found.text == "ab;c\nd;e\nf;"


def test_a_template_that_refuses_parts_is_asked_with_texts():
    template = "{% for m in messages %}{% if m.content is not string %}{{ raise_exception('no') }}"
    template += "{% endif %}{{ m.content }}{% endfor %}"
    talk = conversation_of(PARTS)
    assert render_conversation(ChatTemplate(Source("t", template)), talk, NOW).text == "sa\nb"


def test_messages_in_a_file(tmp_path):
    file = tmp_path / "talk.json"
    messages = [{"role": "user", "content": "hi", "name": "ann"}]
    file.write_text(json.dumps({"messages": messages}))
    assert read_conversation(file) == conversation_of(messages)
    file.write_text(json.dumps({"messages": messages, "tools": []}))
    found = refused("chat-invalid", read_conversation, file)
    assert found.span.column > 40 and "'tools' is no part" in found.message


def test_the_date_is_that_of_the_clock_or_of_the_environment(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert said_now() == datetime(2023, 11, 14, 22, 13, 20)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    refused("bad-argument", said_now)


def test_a_server_reads_messages_by_the_template(folder):
    loaded = load_any(str(folder), Diagnostics())
    request = CompileRequest(mesh="1x1", seq=32)
    service = opened_service(loaded, request, ServeRequest(chunk=8), Diagnostics())
    wanted = by_hand("<s>", "<turn>", "user\nhi", "</turn>", "\n", "<turn>", "model\n")
    assert service.read_chat(list(ASKS.messages), 32) == wanted
    refused("chat-invalid", service.read_chat, "hi", 32)
    refused("no-tokenizer", replace(service, tokenizer=None).read_chat, list(ASKS.messages), 32)


def test_a_run_reads_what_the_template_writes(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    (folder / "chat_template.jinja").write_text(TURNS + "{{ strftime_now('') }}")
    file = tmp_path / "talk.json"
    talk = [("user", "hi"), ("assistant", "yes"), ("user", "why")]
    messages = [{"role": role, "content": text} for role, text in talk]
    file.write_text(json.dumps({"messages": messages}))

    def run(*words):
        code = main(["run", str(folder), "--mesh", "1x1", "--max-tokens", "3", "--json", *words])
        out, err = capsys.readouterr()
        return code, (json.loads(out) if code == 0 else out), err

    code, found, err = run("--messages", str(file))
    ids = by_hand("<s>", "<turn>", "user\nhi", "</turn>", "\n", "<turn>", "model\nyes", "</turn>")
    ids += by_hand("\n", "<turn>", "user\nwhy", "</turn>", "\n", "<turn>", "model\n")
    assert code == 0 and found["prompt_ids"] == ids and "remark[chat-date]" in err
    assert found["tokens"] == run("--prompt-ids", ",".join(map(str, ids)))[1]["tokens"]
    code, _, err = run("--chat", "--prompt", "hi", "--system", "be brief")
    assert code == 1 and "error[chat-refused]: the model's chat template says: no system" in err
    assert "chat_template.jinja:2:1" in err
    assert run("--chat", "--prompt-ids", "5")[0] == 1
    assert "--system is given, but without --chat" in run("--prompt", "a", "--system", "b")[2]
