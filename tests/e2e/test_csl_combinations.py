"""What a program for CSL may be asked for, drawn together: element types, batches of requests, one
program for both phases or two, prompts in chunks, regions, policies of caches, windows, sinks,
learned positions and both architectures. A combination gives the logits of the interpreter of one
request, or is refused."""

import pytest
from csl_decoding import TINY
from csl_layers import wafer
from csl_prompts import Conversation, model_text
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from meshc.support.diagnostics import MeshcError

SHORT = {"does-not-fit", "too-many-routes", "too-many-queues", "csl-queues", "csl-memory-full"}
"""Refusals of programs that need more than a core has."""
FOLDERS = sorted(folder.name for folder in TINY.iterdir())
JOINED = ("one", "copied", "moved")
"""What asks for one program, which is refused where there is none."""


def sizes(dice):
    """Those of a small llama, and what other families add to it."""
    groups = dice.randint(1, 3)
    return {
        "E": dice.randint(2, 14),
        "H": groups * dice.randint(1, 3),
        "G": groups,
        "D": 2 * dice.randint(1, 3),
        "F": dice.randint(2, 14),
        "layers": dice.randint(1, 3),
        "window": dice.choice([0, dice.randint(1, 9)]),
        "every": dice.randint(1, 3),
        "sinks": dice.choice([True, False, False]),
        "learned": dice.choice([0, 0, dice.randint(8, 20)]),
        "bound": dice.choice([0.0, 0.0, 0.25]),
    }


@st.composite
def combinations(draw):
    """A model, or sizes of one, how it is compiled, and the lengths of prompts that the host is
    given together. Meshes are square more often than not, since weights move on these alone. All is
    thrown with dice, so that each example is another combination, and none is made smaller."""
    dice = draw(st.randoms(use_true_random=True))
    rows, regions, across = dice.randint(1, 3), dice.choice([1, 1, 2, 3]), dice.randint(1, 3)
    columns = dice.choice([rows, rows, dice.randint(1, 3)])
    phases = dice.choice(["two", "auto", *JOINED])
    batch = dice.choice([1, 1, 1, 2] if phases in JOINED else [1, 2, 3, 4])
    seq, plane = dice.randint(2, 8), f"y={rows},x={columns}"
    options = {
        "mesh": f"r={regions},{plane}" if regions > 1 else plane,
        "dtype": dice.choice(["f32", "f16", "bf16", "bf16"]),
        "kv": dice.choice(["auto", "shift", "cyclic", "concat"]),
        "seq": seq,
        "chunk": dice.choice([None, dice.randint(rows, rows + 4)]),
        "batch": batch,
        "phases": phases,
    }
    if phases in ("two", "auto") and batch > 1:  # test_csl_decode.py has steps of one request
        options["phase"] = dice.choice(["both", "both", "both", "decode"])
    together = batch if batch > 1 else 2
    return {
        "model": dice.choice([sizes(dice), sizes(dice), dice.choice(FOLDERS)]),
        "arch": dice.choice(["wse2", "wse3"]),
        "wafer": (across * columns, -(-regions // across) * rows),
        "options": options,
        "lengths": [
            [dice.randint(1, seq) for _ in range(dice.randint(1, together))]
            for _ in range(dice.randint(1, 2))
        ],
    }


def loses_positions(case):
    """Whether a window cannot tell the positions of the tokens in a cache that is handed on."""
    windowed = not isinstance(case["model"], str) and case["model"].get("window")
    return windowed and case["options"].get("kv") in ("shift", "concat")


def check(case, folder):
    """Compile and run what was drawn: caches are filled to the last slot, and a token more is
    refused. Tells what became of it."""
    options, path = dict(case["options"]), TINY / str(case["model"])
    if not isinstance(case["model"], str):
        path = folder / "drawn.mesh"
        path.write_text(model_text(options["dtype"], **case["model"]))
    options["device"] = wafer(folder, case["arch"], *case["wafer"])
    alone = options.get("phase") == "decode"
    try:
        talk = Conversation(path, folder, **options)
    except MeshcError as refusal:
        codes = {d.code for d in refusal.diagnostics}
        known = {"one-program"} if options["phases"] in JOINED else set()
        known |= {"unsupported-layout"} if loses_positions(case) else set()
        assert codes <= SHORT | known, refusal
        return f"refused: {', '.join(sorted(codes))}"
    joined = talk.folders == [""] and not alone
    assert options.get("batch", 1) == 1 or not joined
    assert joined or options["phases"] in ("two", "auto")
    for lengths in case["lengths"]:
        count = talk.room - max(lengths) + 1
        talk.refuses(max(lengths), count + 1)
        found = talk.compare_all(lengths, count)
        assert found.agrees, (lengths, count, found)
    return "one program" if joined else "a program each"


SMALLEST = {"E": 5, "H": 2, "G": 1, "D": 2, "F": 3, "layers": 2}
ADDED = {"window": 2, "every": 2, "sinks": True, "learned": 6, "bound": 0.25}


@pytest.mark.parametrize(
    ("own", "lengths"),
    [
        ({"phase": "decode", "batch": 2, "seq": 4, "layers": 1}, [[2, 1]]),
        pytest.param({"phases": "copied", "kv": "cyclic"}, [[3]], marks=pytest.mark.slow),
        pytest.param({"phases": "two", "batch": 2, "chunk": 2}, [[4, 1]], marks=pytest.mark.slow),
        pytest.param({"phases": "moved", "mesh": "y=2,x=2"}, [[4], [2]], marks=pytest.mark.slow),
    ],
    ids=["steps", "one program", "chunks", "weights that move"],
)
def test_what_other_families_add(own, lengths, tmp_path):
    """Windows in every second layer, sinks, learned positions and bounds in one model."""
    options = {"mesh": "y=2,x=1", "dtype": "f32", "seq": 5, "phases": "auto", **own}
    model = SMALLEST | ADDED | {"layers": options.pop("layers", 2)}
    case = {"model": model, "arch": "wse3", "wafer": (2, 2), "options": options}
    assert not check(case | {"lengths": lengths}, tmp_path).startswith("refused")


SMALL = {"E": 6, "H": 2, "G": 1, "D": 2, "F": 4, "layers": 3}
SNAKE = {"mesh": "r=3,y=1,x=1", "dtype": "bf16", "seq": 3}


@pytest.mark.parametrize(
    ("own", "lengths"),
    [
        pytest.param({"phases": "copied", "chunk": 1}, [[3], [2]], marks=pytest.mark.slow),
        pytest.param(
            {"phases": "auto", "batch": 2, "chunk": 2, "kv": "shift"},
            [[3, 1]],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["one program, a PE that no region has", "requests behind each other"],
)
def test_regions_in_a_snake(own, lengths, tmp_path):
    case = {"model": SMALL, "arch": "wse3", "wafer": (2, 2), "options": SNAKE | own}
    wanted = "one program" if own["phases"] == "copied" else "a program each"
    assert check(case | {"lengths": lengths}, tmp_path) == wanted
    assert [*tmp_path.rglob("idle.csl")]


def _drawn(count, **options):
    @settings(max_examples=count, deadline=None, suppress_health_check=[*HealthCheck], **options)
    @given(case=combinations())
    def run(tmp_path_factory, case):
        event(check(case, tmp_path_factory.mktemp("combined")))

    return run


test_a_combination = _drawn(1, derandomize=True)
test_many_combinations = pytest.mark.slow(_drawn(200))
