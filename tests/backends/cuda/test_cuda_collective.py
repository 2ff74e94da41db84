"""Collectives of several GPUs with residual sum and norm, in the executor and as machine code."""

import itertools
from functools import cache

import numpy as np
import pytest
from collective_reference import Case, mistakes, plan, run

from meshc.backends.cuda.executor import (
    CXX,
    QUICK,
    WATCHED,
    Library,
    Mode,
    modes,
)
from meshc.backends.cuda.kernels.chunk_tiles import DoesNotFit
from meshc.backends.cuda.kernels.collective.kernel import (
    DTYPES,
    FORMS,
    TRANSPORTS,
    Collective,
    link_bytes,
    own_rows,
    text,
)
from meshc.backends.cuda.toolchain.toolkit import compile_cubin, disassemble, opcodes

GPUS = (1, 2, 3, 4, 8, 16)
EPSILON = 1e-5
# Two words of a thread and a row that is no whole number of words; several warps, threads without a
# word; rows of one or two words.
SHAPES = {
    "wide": (Collective("all_reduce_norm", 300, "bf16", epsilon=EPSILON), 32),
    "wide_peers": (Collective("all_reduce_norm", 300, "bf16", "peers", EPSILON), 32),
    "half": (Collective("all_reduce_norm", 520, "f16", epsilon=EPSILON), None),
    "kept": (Collective("reduce_scatter_norm", 33, "bf16", epsilon=EPSILON), None),
    "sums": (Collective("all_reduce", 40, "f16", "peers"), None),
    "scattered": (Collective("reduce_scatter", 65, "bf16", "peers"), None),
    "gathered": (Collective("all_gather", 70, "f32"), None),
}
PLANS = {name: plan(shape, 2, threads) for name, (shape, threads) in SHAPES.items()}

executor = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


@cache
def library(toolchain=QUICK):
    return Library("".join(text(p, name) for name, p in PLANS.items()), toolchain=toolchain)


def check(name, rows, gpus, mode=None, toolchain=QUICK, in_place=False):
    case = Case(SHAPES[name][0], rows, gpus)
    found = run(library(toolchain), name, PLANS[name], case, mode, in_place)
    worst, worst_stream = mistakes(found, case)
    assert worst <= 1 and worst_stream <= 1, (name, rows, gpus, mode)
    assert found.link_bytes == link_bytes(SHAPES[name][0], rows, gpus)
    return found


@executor
@pytest.mark.parametrize("gpus", GPUS)
def test_rows_are_within_a_unit_of_the_reference(gpus):
    """Also where there are fewer rows than GPUs, or rows that these do not divide."""
    for name, rows in itertools.product(PLANS, (1, gpus + 1)):
        check(name, rows, gpus)


@executor
@pytest.mark.parametrize("name", PLANS)
def test_all_modes_give_the_same_bits(name):
    first = check(name, 7, 3)
    assert all(first.same(check(name, 7, 3, mode)) for mode in modes())


@executor
@pytest.mark.slow
@pytest.mark.parametrize("gpus", GPUS)
@pytest.mark.parametrize("name", PLANS)
def test_all_modes_give_the_same_bits_for_all_sizes(name, gpus):
    for rows in (0, 1, gpus - 1, gpus, 3 * gpus + 1, 4 * gpus):
        first = check(name, rows, gpus)
        assert all(first.same(check(name, rows, gpus, mode)) for mode in modes((1, 2)))


@executor
def test_sums_may_be_replaced_where_they_are():
    for name in ("wide", "wide_peers"):
        for mode in (Mode(), Mode("random", True)):
            assert check(name, 7, 3).same(check(name, 7, 3, mode, in_place=True))


@executor
def test_both_transports_give_the_same_bits():
    assert check("wide", 9, 4).same(check("wide_peers", 9, 4))


@executor
@pytest.mark.slow
def test_nothing_races():
    """Plain accesses too, of shared memory and of symmetric memory."""
    for name, mode in itertools.product(PLANS, (Mode(), Mode("random", True, 3))):
        check(name, 5, 2, mode, WATCHED)


@executor
@pytest.mark.slow
@pytest.mark.parametrize("hidden", [1, 7, 8, 64, 2880, 4100, 8192, 32768])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_any_hidden_size(hidden, transport):
    shape = Collective("all_reduce_norm", hidden, "bf16", transport, EPSILON)
    chosen = plan(shape)
    case = Case(shape, 5, 3)
    found = run(Library(text(chosen, "one"), toolchain=QUICK), "one", chosen, case)
    worst, worst_stream = mistakes(found, case)
    assert worst <= 1 and worst_stream <= 1


@executor
@pytest.mark.slow
@pytest.mark.parametrize("blocks", [2, 8])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_rows_of_a_large_model_on_eight_gpus(transport, blocks):
    """Of Llama-3.3-70B, by as many multiprocessors as TokenWeave gives to communication."""
    shape = Collective("all_reduce_norm", 8192, "bf16", transport, EPSILON)
    chosen = plan(shape, blocks)
    case, library = Case(shape, 20, 8), Library(text(chosen, "one"), toolchain=QUICK)
    found = [run(library, "one", chosen, case, m) for m in (Mode(), Mode("random", True))]
    worst, worst_stream = mistakes(found[0], case)
    assert worst <= 1 and worst_stream <= 1 and found[0].same(found[1])
    assert found[0].link_bytes == link_bytes(shape, 20, 8)


def test_every_row_has_one_gpu():
    for gpus, rows in itertools.product(range(1, 17), range(40)):
        assert sum(own_rows(rows, rank, gpus) for rank in range(gpus)) == rows


@pytest.mark.parametrize("hidden", [1, 8, 100, 4096, 5120, 8192, 12288, 32768])
def test_threads_have_words_and_no_more_than_registers_hold(hidden):
    chosen = plan(Collective("all_reduce_norm", hidden, "bf16"))
    words = chosen.shape.pitch // 8
    assert chosen.shape.pitch - 8 < hidden <= chosen.shape.pitch
    assert chosen.threads % 32 == 0 and chosen.threads <= 512
    assert words <= 8 * chosen.threads and chosen.threads < words + 128


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("shape", "blocks", "words"),
    [
        (
            Collective("broadcast", 64, "bf16"),
            8,
            "no form 'broadcast' of a collective, but all_red",
        ),
        (Collective("all_reduce", 64, "bf16", "mail"), 8, "no transport 'mail'"),
        (Collective("all_gather", 64, "f64"), 8, "no type 'f64'"),
        (Collective("reduce_scatter", 64, "f32"), 8, "sums of f32"),
        (Collective("all_reduce_norm", 32769, "f16"), 8, "of 32768 that registers hold"),
        (Collective("all_gather", 16385, "f32"), 8, "of 16384 that registers hold"),
        (Collective("all_reduce", 0, "f16"), 8, "rows of 0 values"),
        (Collective("all_reduce", 64, "f16"), 0, "0 blocks of a collective"),
    ],
)
def test_what_does_not_fit_is_refused(shape, blocks, words):
    with pytest.raises(DoesNotFit, match=words):
        plan(shape, blocks)


def machine_code(shape):
    cubin = compile_cubin(text(plan(shape, 8), "rows"))
    return cubin.kernels["rows"], opcodes(disassemble(cubin))["rows"]


def check_code(shape):
    needs, code = machine_code(shape)
    assert (needs.spill_bytes, needs.stack_bytes, needs.shared_bytes) == (0, 0, 0)
    assert needs.registers <= 128
    assert not {name.split(".")[0] for name in code} & {"LDL", "STL"}
    # Sums in the switch, in f32; signals with the scope of the system.
    kind = {"bf16": "BF16x8", "f16": "F16x8"}.get(shape.dtype)
    summed = [name for name in code if name.startswith("LDGMC") and f"F32ADD.{kind}" in name]
    assert bool(summed) == (shape.reduces and shape.transport == "multimem")
    loaded = any(name.startswith("LDG.E.128.STRONG.SYS") for name in code)
    assert loaded == (shape.reduces and shape.transport == "peers")
    assert ("STG.E.128.STRONG.SYS" in code) == shape.spreads
    assert code["ATOMG.E.CAS.STRONG.SYS"] >= 4


@pytest.mark.cuda_compiler
def test_the_fused_kernel_sums_in_the_switch():
    check_code(Collective("all_reduce_norm", 8192, "bf16", "multimem", EPSILON))


@pytest.mark.slow
@pytest.mark.cuda_compiler
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("form", FORMS)
def test_no_form_spills(form, transport):
    for dtype, hidden in itertools.product(DTYPES, (64, 2880, 5120, 8192, 16384, 32768)):
        if dtype != "f32":
            check_code(Collective(form, hidden, dtype, transport, EPSILON))
        elif form == "all_gather" and hidden <= 16384:
            check_code(Collective(form, hidden, dtype, transport))


def test_the_text_does_not_depend_on_numbers_of_gpus_or_rows():
    """One kernel serves all of them; the bytes are the same each time."""
    assert text(PLANS["wide"], "one") == text(PLANS["wide"], "one")
    assert np.unique([chosen.signals(16) for chosen in PLANS.values()]) == [32]
