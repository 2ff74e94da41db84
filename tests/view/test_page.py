"""The page of a recorded compile, parsed as HTML and held against the compile's own files."""

import json
import re
from pathlib import Path

import pytest
from viewed import COMPILES, data, elements, page, recorded

from meshc.cli import main
from meshc.ir.parser import parse_module
from meshc.ir.printer import op_lines
from meshc.support.spans import Source

CSL = ("csl", "both", "mlp")


@pytest.mark.parametrize("name", COMPILES)
def test_the_page_needs_nothing_else(name):
    text = page(name)
    found = elements(text)
    assert len(text.encode()) < 5_000_000
    attributes = [(tag, key) for tag, given in found.found for key in given]
    assert [a for a in attributes if a[1] in ("src", "action", "srcset", "data-src")] == []
    links = [given["href"] for tag, given in found.found if tag == "a"]
    assert links == ["#main"] and not any(
        tag in ("link", "img", "iframe") for tag, _ in found.found
    )
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL)[1]
    assert not re.findall(r"fetch\(|XMLHttpRequest|WebSocket|import\(|@import|innerHTML", script)
    addresses = set(
        re.findall(
            r"https?://[^\s\"']+", script + re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
        )
    )
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a vocabulary


@pytest.mark.parametrize("name", COMPILES)
def test_every_op_has_its_source_line_and_emitted_lines(name):
    found = data(page(name))
    for phase in found["phases"]:
        last = phase["modules"][-1]
        module = parse_module(Source("last", last["text"]))
        ops = dict(op_lines(module))
        assert ops.keys() == {place[0] for place in last["places"]}
        for _, source, line, column, length in last["places"]:
            words = found["sources"][source]["text"].split("\n")[line - 1]
            assert words[column - 1 : column - 1 + length].strip()
        emitted = {entry[1] for entry in phase["emitted"]}
        assert emitted == ops.keys()
        for file, line, first, behind in phase["emitted"]:
            lines = found["files"][file]["text"].split("\n")[first - 1 : behind]
            assert lines and any(words.strip() for words in lines), (line, first)


@pytest.mark.parametrize("name", CSL)
def test_kernels_and_transfers_stand_on_their_emitted_lines(name):
    found = data(page(name))
    for phase in found["phases"]:
        module = parse_module(Source("last", phase["modules"][-1]["text"]))
        texts = {line: [] for line, _ in op_lines(module)}
        for file, line, first, behind in phase["emitted"]:
            texts[line] += found["files"][file]["text"].split("\n")[first - 1 : behind]
        for line, op in op_lines(module):
            words = "\n".join(texts[line])
            if op.NAME in ("tile.send", "tile.recv"):
                side = "out" if op.NAME == "tile.send" else "in"
                assert f"{op.channel}_{side}_" in words, op
            elif kernel := getattr(op, "kernel", ""):
                assert f"// {kernel} %" in words or f"{kernel}_" in words, op
                assert {*re.findall(r"// (\w+) %", words)} == {kernel}, (op, words)
                assert not re.search(r"_(in|out)_\d", words), (op, words)


@pytest.mark.parametrize("name", CSL)
def test_memory_is_that_of_the_report(name):
    for phase in data(page(name))["phases"]:
        folder = recorded(name)
        place = folder / phase["name"] / "report.json"
        told = json.loads((place if place.is_file() else folder / "report.json").read_text())
        memory, uses = told["memory"], phase["memory"]["uses"]
        assert sum(uses.values()) == memory["data"] + memory["padding"] + memory["code"]["bytes"]
        assert phase["memory"]["left"] == memory["left"] and min(uses.values()) >= 0
        assert {b["name"]: b["bytes"] for b in phase["memory"]["buffers"]} == memory["buffers"]
        for use in ("scratch", "tables", "variables"):
            assert uses[use] == memory[use]
        cycles = told["cycles_by_op"]
        rows = cycles[phase["name"]] if isinstance(cycles, dict) else cycles
        assert phase["clock"]["total"] == sum(row["cycles"] for row in rows)
        named = [row for row in phase["clock"]["rows"] if row["op"] != "begin and end"]
        assert [row["op"] for row in named if not row["lines"]] == []


def test_memory_of_a_gpu_is_what_compiling_says(capsys):
    found = data(page("cuda"))["phases"]
    capsys.readouterr()
    assert main(["compile", *COMPILES["cuda"]]) == 0
    words = re.search(
        r"(\d+) bytes of the GPU's memory: (\d+) of weights, (\d+) of caches",
        capsys.readouterr().out,
    )
    for phase in found:
        uses = phase["memory"]["uses"]
        assert [sum(uses.values()), uses["weights"], uses["caches"]] == [*map(int, words.groups())]


def test_the_timeline_of_events_is_the_predicted_step():
    found = data(page("cuda"))
    decode, timeline = found["phases"][0], found["timelines"][0]
    assert timeline["total"] == pytest.approx(decode["costs"]["total"])
    whole = [span for span in timeline["spans"] if span[0] == 0]
    layers = [span for span in whole if timeline["names"][span[3]] == "attend"]
    assert len(layers) == 3 and sum(span[2] for span in whole) == pytest.approx(timeline["total"])
    parts = sum(span[2] for span in timeline["spans"] if span[0] > 0)
    assert parts == pytest.approx(timeline["total"])


@pytest.mark.parametrize("name", COMPILES)
def test_changes_lead_from_module_to_module(name):
    for phase in data(page(name))["phases"]:
        texts = [module["text"].split("\n") for module in phase["modules"]]
        for before, after, changes in zip(texts[:-1], texts[1:], phase["changes"][1:], strict=True):
            made, at = [], 0
            for first, behind, start, end in changes:
                made += before[at:first] + after[start:end]
                at = behind
            assert made + before[at:] == after
            assert changes


def test_colors_of_routes_are_those_of_the_report():
    (phase,) = data(page("csl"))["phases"]
    told = json.loads((recorded("csl") / "report.json").read_text())
    shown = {row["color"] for rows in phase["routes"]["colors"].values() for row in rows}
    assert shown == set(told["colors"]["used"])
    for channel in phase["routes"]["channels"]:
        assert channel["hops"] == told["channels"][channel["name"]]["hops"]


EVIL = "</script><img src=x onerror=alert(1)>"


def test_names_of_others_are_only_text(tmp_path):
    """A model's source may say anything in its comments, and a file any name."""
    plain = Path(COMPILES["mlp"][0]).read_text(encoding="utf-8")
    text = tmp_path / "<img src=x onerror=1>.mesh"
    text.write_text(f"# {EVIL}\u2028<!-- {EVIL}\n{plain}", encoding="utf-8")
    out = tmp_path / "page.html"
    assert main(["view", str(text), "--mesh", "4x4", "-o", str(out)]) == 0
    made = out.read_text(encoding="utf-8")
    found = elements(made)
    assert not any(tag in ("img", "b") for tag, _ in found.found)
    assert made.count("</script>") == 2 and "\u2028" not in made
    shown = json.loads(found.data)
    assert EVIL in shown["sources"][0]["text"] and "<img" in shown["sources"][0]["name"]


def test_without_a_record_there_is_no_page(tmp_path, capsys):
    folder = tmp_path / "out"
    assert main(["compile", *COMPILES["mlp"], "-o", str(folder)]) == 0
    assert main(["view", str(folder)]) == 1
    assert "error[no-record]" in capsys.readouterr().err


def test_an_edited_file_is_refused(tmp_path, capsys):
    folder = tmp_path / "out"
    assert main(["compile", *COMPILES["mlp"], "--record", "-o", str(folder)]) == 0
    with open(folder / "main.csl", "a", encoding="utf-8") as stream:
        stream.write("// mine\n")
    assert main(["view", str(folder)]) == 1
    assert "error[record-invalid]" in capsys.readouterr().err


def test_flags_of_a_compile_are_refused_for_a_directory(capsys):
    assert main(["view", str(recorded("mlp")), "--mesh", "2x2"]) == 1
    assert "--mesh says what to compile" in capsys.readouterr().err
