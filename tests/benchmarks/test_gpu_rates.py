"""What the event model of a step rests on, measured without a GPU: kernels run in the executor on
a fake driver. Times mean nothing here, and none is looked at."""

import json

import event_rates
import kernels
import numpy as np
import pytest
import rates
from reduced import each

from meshc.backends.cuda.executor import CXX, QUICK, Grid, Library, modes
from meshc.backends.cuda.toolchain.toolkit import compile_cubin, disassemble, opcodes
from meshc.support.diagnostics import MeshcError

SMALL = event_rates.Scale(
    weights=1 << 20, read=1 << 14, meetings=3, launches=2, repeats=1, sizes=(8192, 32768),
    widths=(4096, 300), beside=(0, 3), tiles=(16384,), flying=(1, 4),
)  # fmt: skip
BLOCKS = 6
TILE = event_rates.TILE_BYTES
needs_executor = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


def needs_both(test):
    return pytest.mark.cuda_compiler(needs_executor(test))


@pytest.fixture
def small(fake, in_executor, monkeypatch, tmp_path):
    """``small(*arguments)``: exit code and numbers of a small run on six multiprocessors."""
    fake.set("multiprocessors", BLOCKS)
    fake.set("clusters", 3)
    in_executor(rates)
    monkeypatch.setattr(rates, "ALL", SMALL)
    numbers = tmp_path / "rates.json"

    def run(*arguments):
        given = ["--driver", fake.path, "--weights-mib", "1", "--json", str(numbers), *arguments]
        code = rates.main(given)
        return code, json.loads(numbers.read_text()) if numbers.is_file() else None

    return run


@needs_both
def test_all_parts_are_measured(small, fake, capsys):
    code, found = small()
    assert code == 0 and found["wrong"] == {} and fake.live == 0
    assert found["machine"]["name"] == "Fake GPU 0" and found["scale"]["weights"] == 1 << 20
    reads = [(r["how"], r["cluster"], r["blocks"], r["bytes"], r["flying"]) for r in found["reads"]]
    assert reads == [
        (how, cluster, BLOCKS // cluster * cluster, size, flying)
        for how, cluster in (("loads", 1), ("copies", 1), ("shared", 2), ("shared", 4))
        for size in SMALL.sizes
        for flying in SMALL.beside
    ]
    read = {(m["form"], m["width"]): m["bytes"] for m in found["meetings"]}
    assert read == {
        ("counter, f32", 4096): 16384, ("counter, f32", 300): 1216,  # words are an even number
        ("counter, f16", 4096): 8192, ("counter, f16", 300): 608,
        ("8-byte words, one f32", 4096): 32768, ("8-byte words, one f32", 300): 2400,
        ("8-byte words, two f16", 4096): 16384, ("8-byte words, two f16", 300): 1200,
        ("16-byte words, three f32", 4096): 21856, ("16-byte words, three f32", 300): 1600,
        ("16-byte words, six f16", 4096): 10944, ("16-byte words, six f16", 300): 800,
        ("counter, f32, norm to columns", 4096): 16384,
    }  # fmt: skip
    for one in (*found["reads"], *found["meetings"]):
        assert (one["weights"] > 0) == (one["flying"] > 0)
    for meet in found["meetings"]:
        assert (meet["told_ns"] > 0) == meet["form"].startswith("counter") and meet["tick_ns"] > 0
    streams = [(s["blocks"], s["tile"], s["flying"]) for s in found["streams"]]
    assert streams == [(1, TILE, 1), (BLOCKS, TILE, 1), (BLOCKS, TILE, 4)]
    assert len(found["launches"]) == 6
    out, progress = capsys.readouterr()
    assert progress.split() == list(rates.PARTS)
    for words in (
        "Fake GPU 0, 6 multiprocessors, CUDA 13.0",
        "## reads",
        "| shared by 4 | 4 | 32 |",
    ):
        assert words in out


# A part, and what of its kernels is written otherwise.
WRONG = (
    ("meetings", "2 * i) = {value_of(i, round)", "2 * i) = {value_of(i + 1, round)"),
    ("meetings", "store(words + i, tag | first)", "store(words + i, tag | second)"),
    ("meetings", "{third << 32 | first, tag | second}", "{first, tag | second}"),
    ("meetings", "(float)round, 1.0f, 2.0f", "(float)round, 9.0f, 2.0f"),
    ("reads", "load((const uint4*)(same + at + i * STEP))", "load((const uint4*)(same + at))"),
    ("reads", "ring.bring(same + at, piece)", "ring.bring(same, piece)"),
    ("reads", "(tiles + place * tile + at, from + at", "(tiles + place * tile + at, from"),
    ("streams", "n < most && !*stop", "n + 1 < most"),
    ("launches", "ran[mc::block()] = 1", "ran[0] = 1"),
)  # fmt: skip


@needs_both
@pytest.mark.parametrize(("part", "right", "wrong"), each(WRONG, 4))
def test_what_is_wrong_is_told_and_ends_the_part(part, right, wrong, small, monkeypatch, capsys):
    text = kernels.rates()
    assert text.count(right) == 1
    monkeypatch.setattr(rates, "text_of_rates", lambda: text.replace(right, wrong))
    code, found = small("--parts", part)
    assert code == 1 and list(found["wrong"]) == [part]
    assert f"{part} ended early:" in capsys.readouterr().out


@needs_both
def test_what_the_driver_refuses_ends_a_part_alone(small, fake):
    fake.set("clusters", 0)
    code, found = small("--parts", "reads,launches")
    assert code == 1 and list(found["wrong"]) == ["reads"]
    assert {r["how"] for r in found["reads"]} == {"loads", "copies"}  # what was measured is kept
    assert len(found["launches"]) == 6


@needs_both
def test_machine_code_can_be_made_elsewhere(small, fake, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "cubins"
    assert rates.main(["--prepare", str(folder)]) == 0
    monkeypatch.setattr(kernels, "compile_cubin", None)  # not asked
    found = kernels.Cubins(folder)
    assert all(found.find(text) is not None for text in (kernels.rates(), kernels.probes()))
    code, numbers = small("--cubins", str(folder), "--parts", "launches")
    assert code == 0 and set(numbers) >= {"machine", "launches"} and "reads" not in numbers


def test_without_a_gpu_it_says_so(fake, capsys):
    fake.set("devices", 0)
    assert rates.main(["--driver", fake.path]) == 1
    assert "error[cuda-device]: the driver finds no GPU" in capsys.readouterr().err


@needs_both
def test_too_few_weights_are_refused(small, fake, capsys):
    fake.set("multiprocessors", 132)
    code, found = small()
    assert code == 1 and found is None
    assert "1048576 bytes of weights are too few for 132 blocks" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [("--parts", "all"), ("--repeats", "0"), ("--weights-mib", "x")])
def test_bad_options(wrong, capsys):
    with pytest.raises(SystemExit):
        rates.main(list(wrong))
    assert "error:" in capsys.readouterr().err


# --- the kernels


@pytest.fixture(scope="module")
def library():
    return Library(kernels.rates(), toolchain=QUICK)


@needs_executor
@pytest.mark.parametrize("mode", each(modes((1, 2)), 7), ids=str)
@pytest.mark.parametrize("form", ["counter", "words_8", "words_16"])
def test_meetings_give_each_word_of_their_round(library, form, mode):
    """In all orders of threads: who is late finds the words of the round that it is in."""
    blocks, count, rounds = 5, 22, 40
    words = np.zeros((2, count, 1 if form == "words_8" else 2), np.uint64)
    weights = np.zeros((blocks, 2048), np.uint8)
    facts = np.zeros((blocks, 8), np.uint64)
    stamps = np.zeros((32, 3, blocks), np.uint64)
    grid = Grid(blocks, 288, 1, 8192, whole_grid=True)
    given = [
        words, np.uint32(count), np.int32(rounds), np.zeros(4096, np.float16).view(np.uint16),
        np.zeros(1, np.uint32), weights, np.uint64(2048), np.uint32(1024), np.int32(2), facts,
        stamps, np.zeros(blocks, np.float32),
    ]  # fmt: skip
    library.run(f"meet_{form}", grid, given, mode)
    assert (facts[:, 5] == 0).all() and (facts[:, 6] > 0).all()  # none wrong, some streamed
    assert (np.diff(stamps[:, 2].astype(np.int64), axis=0) > 0).all()


@pytest.mark.cuda_compiler
def test_words_are_whole_in_machine_code():
    """Loads and stores of 16 bytes are one each, and none of their words is left out."""
    cubin = compile_cubin(kernels.rates())
    for name, needs in cubin.kernels.items():
        assert needs.stack_bytes == needs.spill_bytes == needs.shared_bytes == 0, name
    try:
        found = opcodes(disassemble(cubin))
    except MeshcError:
        pytest.skip("there is no nvdisasm")
    whole = "LDG.E.128.STRONG.GPU"
    for name in ("read_loads", "meet_words_8", "meet_words_16"):
        assert found[name][whole] == 8, name
    assert found["meet_counter"]["LDG.E.128"] == 8
    assert found["meet_words_8"]["STG.E.64.STRONG.GPU"]
    assert found["meet_words_16"]["STG.E.128.STRONG.GPU"]
    assert found["read_shared"]["UBLKCP.S.G.MULTICAST"]
    assert all(found[name]["UBLKCP.S.G"] for name in found if name != "nothing")
