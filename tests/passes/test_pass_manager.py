"""The manager: levels, facts, broken passes, instruments."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

import meshc
from meshc.devices import device
from meshc.ir.ops import graph
from meshc.passes.instruments import PrintAfter, Statistics, Timing
from meshc.verify import FACTS, check_fact

TEXT = """module @m level(graph) {
  dims L = 3, E = 4, F = 5
  func @main(in %x: f32[L, E], weight %w: f32[F, E]) -> (f32[L, F]) {
    %t = graph.transpose %w {dims = [E, F]} : f32[E, F]
    %y = graph.matmul %x, %t {contract = [E]} : f32[L, F]
    graph.return %y
  }
}
"""


def run(pipeline, text=TEXT, instruments=()):
    passes = meshc.parse_pipeline(pipeline) if isinstance(pipeline, str) else pipeline
    module = meshc.parse(text)
    module.device = module.device or device("ideal")
    return meshc.PassManager(passes, instruments).run(module)


def codes(error):
    return [d.code for d in error.value.diagnostics]


def test_facts_are_established_carried_and_dropped():
    assert run("eliminate-transpose").holds == {"transpose_free"}
    module = run("eliminate-transpose,partition{grid=2x2},place-interleave")
    assert module.holds == {"transpose_free", "partitioned", "padding_safe", "placed"}
    # Facts of other levels end where the level does.
    tail = "shift-kv-cache,select-collective,expand-programs"
    lowered = run(f"eliminate-transpose,partition{{grid=2x2}},place-interleave,{tail}")
    assert lowered.level == "tile"
    assert "partitioned" not in lowered.holds


def test_partition_is_told_its_mesh():
    with pytest.raises(meshc.MeshcError, match="partition is not told its mesh") as error:
        run("eliminate-transpose,partition")
    assert codes(error) == ["bad-option"]


def test_missing_fact_names_who_provides_it():
    with pytest.raises(meshc.MeshcError) as error:
        run("partition")
    assert codes(error) == ["missing-fact"]
    (found,) = error.value.diagnostics
    assert "transpose_free" in found.message
    assert "established by eliminate-transpose" in found.notes[0]


def test_wrong_level():
    with pytest.raises(meshc.MeshcError) as error:
        run("plan-memory")
    assert codes(error) == ["wrong-level"]
    assert "tile level" in error.value.diagnostics[0].message


def test_bad_ir_going_in_is_the_users_mistake():
    broken = meshc.parse(TEXT)
    del broken.function.body.ops[-1]
    with pytest.raises(meshc.MeshcError) as error:
        meshc.PassManager([]).run(broken)
    assert codes(error) == ["invalid-ir"]


@dataclass(frozen=True)
class Crash(meshc.Pass):
    """Divides by zero."""

    NAME: ClassVar[str] = "crash"

    def run(self, module, report):
        module.dims["L"] //= 0
        return module


@dataclass(frozen=True)
class Damage(meshc.Pass):
    """Leaves a function without an end."""

    NAME: ClassVar[str] = "damage"

    def run(self, module, report):
        del module.function.body.ops[-1]
        return module


@dataclass(frozen=True)
class Lie(meshc.Pass):
    """Claims what does not hold."""

    NAME: ClassVar[str] = "lie"
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"transpose_free"})

    def run(self, module, report):
        return module


@dataclass(frozen=True)
class Undo(meshc.Pass):
    """Puts a transpose back."""

    NAME: ClassVar[str] = "undo"
    INVALIDATES: ClassVar[frozenset[str]] = frozenset({"transpose_free"})

    def run(self, module, report):
        return module


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (Crash(), "crash: ZeroDivisionError"),
        (Damage(), "damage left IR that does not verify"),
        (Lie(), "lie claims 'transpose_free', which does not hold"),
    ],
)
def test_a_broken_pass_is_an_internal_error_that_can_be_seen_again(broken, words):
    """The reproducer holds the module before the pass and the passes that were left."""
    passes = [meshc.Canonicalize(), broken, meshc.EliminateTranspose()]
    with pytest.raises(meshc.InternalError, match=words) as error:
        run(passes)
    assert error.value.reproducer.pipeline == f"{broken.NAME},eliminate-transpose"
    again = meshc.parse(error.value.reproducer.text)
    assert meshc.print_module(again) == meshc.print_module(run("canonicalize"))


def test_invalidated_facts_go():
    assert run([meshc.EliminateTranspose(), Undo()]).holds == set()


def test_remarks_are_collected():
    report = meshc.Diagnostics()
    meshc.PassManager([meshc.EliminateTranspose()]).run(meshc.parse(TEXT), report)
    (remark,) = report.messages
    assert (remark.severity, remark.code) == ("remark", "transpose-eliminated")
    assert "an all-to-all of 20 elements over columns + rows - 2 hops" in remark.message


def test_instruments_see_every_pass():
    texts = []
    timing, statistics = Timing(), Statistics()
    every = PrintAfter(texts.append)
    run("canonicalize,eliminate-transpose", instruments=[timing, statistics, every])
    assert [t.pass_text for t in timing.times] == ["canonicalize", "eliminate-transpose"]
    assert timing.table().splitlines()[-1].startswith("total")
    assert statistics.table().splitlines()[0].startswith("canonicalize: graph: 3 ops")
    assert statistics.table().splitlines()[1].startswith("eliminate-transpose: graph: 2 ops")
    assert [t.splitlines()[0] for t in texts] == [
        "# after canonicalize",
        "# after eliminate-transpose",
    ]
    assert "holds(transpose_free)" in texts[1]


def test_print_after_one_pass():
    texts = []
    chosen = PrintAfter(texts.append, frozenset({"eliminate-transpose"}))
    run("canonicalize,eliminate-transpose", instruments=[chosen])
    assert len(texts) == 1


def test_every_dump_can_be_resumed():
    """Whatever stands between two passes, read back and continued, ends in the same bytes."""
    names = [
        "canonicalize",
        "eliminate-transpose",
        "partition{grid=2x2}",
        "place-interleave",
        "shift-kv-cache",
        "select-collective",
        "split-regions",
        "expand-programs",
        "allocate-routes",
        "schedule-tasks",
        "plan-memory",
    ]
    texts = []
    last = meshc.print_module(run(",".join(names), instruments=[PrintAfter(texts.append)]))
    for position, text in enumerate(texts, start=1):
        assert meshc.print_module(run(",".join(names[position:]), text)) == last


def test_facts_claimed_by_a_text_are_checked():
    with pytest.raises(meshc.MeshcError) as error:
        meshc.parse(TEXT.replace("level(graph)", "level(graph) holds(transpose_free)"))
    assert codes(error) == ["transposes-left"]
    with pytest.raises(meshc.MeshcError) as error:
        meshc.parse(TEXT.replace("level(graph)", "level(graph) holds(routed, quick)"))
    assert codes(error) == ["unknown-fact", "unknown-fact"]


def test_every_fact_of_a_pass_has_a_checker_and_a_provider():
    claimed = {fact for cls in meshc.PASSES for fact in cls.ESTABLISHES}
    wanted = {fact for cls in meshc.PASSES for fact in cls.REQUIRES | cls.INVALIDATES}
    assert claimed == set(FACTS)
    assert wanted <= claimed


def test_transpose_free_finds_what_is_left():
    module = meshc.parse(TEXT)
    with pytest.raises(meshc.MeshcError) as error:
        check_fact(module, "transpose_free")
    assert codes(error) == ["transposes-left"]
    assert error.value.diagnostics[0].span.line == 4
    assert isinstance(module.function.body.ops[0], graph.Transpose)
