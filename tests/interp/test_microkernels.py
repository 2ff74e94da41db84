"""Each microkernel against plain NumPy, through a one-core machine."""

import math

import numpy as np
import pytest
from interp_tile_texts import module_of

from meshc.interp.kernels import MICROKERNELS
from meshc.interp.rounding import rounded
from meshc.interp.tile import TileMachine
from meshc.ir.kernels import KERNELS
from meshc.ir.types import DType
from meshc.support.diagnostics import MeshcError

RANDOM = np.random.default_rng(23)
DIMS = {2: "A", 3: "B", 4: "C", 5: "D", 6: "E", 7: "F", 8: "G"}


def test_the_whole_catalogue_has_a_meaning():
    assert sorted(MICROKERNELS) == sorted(KERNELS)


def run(line, out, dtype="f32", scalars=None, **arrays):
    """Run one statement on one core; ``%out`` starts as ``out`` and is returned."""
    arrays = {"out": np.asarray(out), **{n: np.asarray(a) for n, a in arrays.items()}}
    text = ["dims " + ", ".join(f"{d} = {n}" for n, d in DIMS.items())]
    if scalars:
        text.append("scalars " + ", ".join(f"{n} = 0..100" for n in scalars))
    text.append("mesh y = 1, x = 1")
    for name, array in arrays.items():
        kind = "i32" if array.dtype.kind == "i" else dtype
        lanes = ", ".join(f"i{k}" for k in range(array.ndim))
        dims = ", ".join(DIMS[n] for n in array.shape)
        text.append(f"buffer %{name} : {kind}[{', '.join(map(str, array.shape))}]")
        for direction in ("in", "out") if name == "out" else ("in",):
            text.append(
                f"port @{name}_{direction} {direction} {kind}[{dims}] : %{name} "
                f"{{lanes = [{lanes}], element = [{lanes}]}}"
            )
    text.append(f"program @p {{\n{line}\n}}")
    machine = TileMachine(module_of("module @t level(tile) {\n" + "\n".join(text) + "\n}"))
    for name, array in arrays.items():
        machine.load(f"{name}_in", array)
    return machine.run(scalars)["out_out"]


def noise(*shape):
    return RANDOM.standard_normal(shape)


def close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-6)


def test_fill_copy_scale():
    close(run("tile.fill %out {value = 2.5}", noise(2, 3)), np.full((2, 3), 2.5))
    a = noise(2, 3)
    close(run("tile.copy %out, %a", noise(2, 3), a=a), a)
    close(run("tile.scale %out, %a {factor = -0.5}", noise(2, 3), a=a), -0.5 * a)


def test_add_and_mul_spread_over_leading_dims():
    a, b = noise(2, 3, 4), noise(4)
    close(run("tile.add %out, %a, %b", noise(2, 3, 4), a=a, b=b), a + b)
    close(run("tile.mul %out, %a, %b", noise(2, 3, 4), a=a, b=b), a * b)


def test_div_and_exp_sub_spread_over_trailing_dims():
    a, b = noise(2, 3, 4), 2 + noise(2, 3)
    close(run("tile.div %out, %a, %b", noise(2, 3, 4), a=a, b=b), a / b[..., None])
    close(run("tile.exp_sub %out, %a, %b", noise(2, 3, 4), a=a, b=b), np.exp(a - b[..., None]))


def test_activations():
    a = 3 * noise(2, 3)
    close(run("tile.silu %out, %a", noise(2, 3), a=a), a / (1 + np.exp(-a)))
    erf = np.vectorize(lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))))
    close(run("tile.gelu %out, %a {form = erf}", noise(2, 3), a=a), erf(a))
    close(run("tile.sigmoid %out, %a", noise(2, 3), a=a), 1 / (1 + np.exp(-a)))
    close(run("tile.quick_gelu %out, %a", noise(2, 3), a=a), a / (1 + np.exp(-1.702 * a)))
    close(run("tile.tanh %out, %a", noise(2, 3), a=a), np.tanh(a))
    root = math.sqrt(2 / math.pi)
    tanh = 0.5 * a * (1 + np.tanh(root * (a + 0.044715 * a**3)))
    close(run("tile.gelu %out, %a {form = tanh}", noise(2, 3), a=a), tanh)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_gemm(accumulate, transposed):
    out, a = noise(2, 3, 5), noise(2, 3, 4)
    b = noise(5, 4) if transposed else noise(4, 5)
    flags = f"accumulate = {str(accumulate).lower()}, transposed = {str(transposed).lower()}"
    got = run(f"tile.gemm %out, %a, %b {{{flags}}}", out, a=a, b=b)
    close(got, a @ (b.T if transposed else b) + (out if accumulate else 0))


@pytest.mark.parametrize("accumulate", [False, True])
def test_products_of_dims_that_the_result_has_once_are_added_up(accumulate):
    out, a, b = noise(3, 5), noise(2, 3, 4), noise(2, 4, 5)
    flags = f"accumulate = {str(accumulate).lower()}, transposed = false"
    got = run(f"tile.gemm %out as [1, 3, 5], %a, %b {{{flags}}}", out, a=a, b=b)
    close(got, (a @ b).sum(0) + (out if accumulate else 0))


def test_reductions_over_trailing_dims():
    a = noise(2, 3, 4)
    close(run("tile.square_sum %out, %a", noise(2, 3), a=a), (a * a).sum(-1))
    close(run("tile.row_sum %out, %a", noise(2), a=a), a.sum((1, 2)))
    close(run("tile.row_max %out, %a", noise(2, 3), a=a), a.max(-1))
    close(run("tile.row_max %out[0], %a", noise(2), a=a)[0], a.max())


def test_the_first_of_the_largest():
    a = np.array([[1, 4, 4], [-2, -2, -3], [-np.inf, -np.inf, -np.inf], [0, np.nan, 1]])
    tops = np.array([4.0, -2.0, -np.inf, np.nan])
    call = "tile.first_at %out, %a, %b {rank = pos, block = 3, limit = 8}"

    def found(rank):
        return list(run(call, noise(4), scalars={"pos": rank}, a=a, b=tops))

    assert found(0) == [-1, 0, 0, -np.inf]
    assert found(2) == [-7, -6, -6, -np.inf]
    assert found(3) == [-np.inf] * 4


def test_at_least():
    a = noise(2, 3)
    a[0] = -np.inf
    close(run("tile.at_least %out, %a {value = -0.25}", noise(2, 3), a=a), np.maximum(a, -0.25))


CHOICE = "count = {}, groups = {}, kept_groups = {}, group_top = {}, normalise = {}, biased = {}"


def chosen(*options, **arrays):
    """Gates of the scores ``a``, whose bias is ``b``, from zeros."""
    names = ", ".join(f"%{name}" for name in arrays)
    line = f"tile.top_k %out, {names} {{{CHOICE.format(*options)}}}"
    return run(line, np.zeros(arrays["a"].shape), **arrays)


def test_top_k_takes_the_first_of_equal_scores():
    a = np.array([[3.0, 1, 3, 2, 3], [0, 0, 0, 0, 0], [-1, -2, -3, -4, -1]])
    got = chosen(2, 1, 1, 1, "false", "false", a=a)
    close(got, [[3, 0, 3, 0, 0], [0, 0, 0, 0, 0], [-1, 0, 0, 0, -1]])
    close(chosen(2, 1, 1, 1, "true", "false", a=a)[0], [0.5, 0, 0.5, 0, 0])


def test_top_k_counts_a_bias_for_the_choice_alone():
    a, bias = np.array([[0.4, 0.3, 0.2, 0.1]] * 2), np.array([0.0, 0, 0.5, 0.35])
    close(chosen(2, 1, 1, 1, "false", "true", a=a, b=bias), [[0, 0, 0.2, 0.1]] * 2)


def test_top_k_of_groups():
    """Group 1 has the two largest together, group 0 the largest alone."""
    a = np.array([[9.0, 0, 5, 6, 1, 2]] * 2)
    close(chosen(2, 3, 1, 2, "false", "false", a=a), [[0, 0, 5, 6, 0, 0]] * 2)
    close(chosen(2, 3, 1, 1, "false", "false", a=a), [[9, 0, 0, 0, 0, 0]] * 2)
    close(chosen(2, 3, 2, 1, "false", "false", a=a), [[9, 0, 0, 6, 0, 0]] * 2)


def test_merged_softmaxes_are_those_over_all_elements():
    """Values weighted by two softmaxes over 3 and 4 elements, merged, over all 7."""
    scores, values = 5 * noise(2, 7), noise(7)

    def own(part):
        top = scores[:, part].max(1)
        weights = np.exp(scores[:, part] - top[:, None])
        return np.concatenate([weights @ values[part], weights.sum(1), top])

    out, a = own(slice(0, 3)), own(slice(3, 7))
    got = run("tile.merge_softmax %out, %a {count = 2}", out, a=a)
    close(got, own(slice(0, 7)))


def test_merging_with_a_core_that_saw_nothing_changes_nothing():
    lowest = float(np.finfo(np.float32).min)
    some, nothing = np.array([3.0, 2.0, -900.0]), np.array([0.0, 0.0, lowest])
    line = "tile.merge_softmax %out, %a {count = 1}"
    close(run(line, some, a=nothing), some)
    close(run(line, nothing, a=some), some)
    close(run(line, nothing, a=nothing), nothing)


@pytest.mark.parametrize("seed", range(20))
def test_merging_keeps_the_numeric_bound(seed):
    """Four units of roundoff for each merge (docs/mesh-level.md), of the sum of magnitudes."""
    rng, stages = np.random.default_rng(seed), 40
    parts = rng.standard_normal((stages, 3)).astype(np.float32)
    parts[:, 1] = rng.random(stages) * 100 + 1
    parts[:, 2] *= 10.0 ** rng.integers(-1, 2)
    got, merge = parts[0], MICROKERNELS["merge_softmax"]
    for part in parts[1:]:
        got = merge(got, [part], {"count": 1})
    assert got.dtype == np.float32
    exact = parts.astype(np.float64)
    shares = np.exp(exact[:, 2] - exact[:, 2].max())
    for lane in (0, 1):
        off = abs(got[lane] - shares @ exact[:, lane])
        assert off <= 4 * (stages - 1) * 2.0**-24 * (shares @ np.abs(exact[:, lane]))
    assert got[2] == parts[:, 2].max()


def test_what_is_no_row_of_softmaxes_is_refused():
    for out, a, count in (
        (noise(5), noise(5), 2),
        (noise(4), noise(4), 2),
        (noise(6), noise(3), 1),
    ):
        with pytest.raises(MeshcError, match="softmaxes"):
            run(f"tile.merge_softmax %out, %a {{count = {count}}}", out, a=a)


def test_rms_scale():
    a, s, g = noise(2, 4), 1 + noise(2) ** 2, noise(4)
    got = run("tile.rms_scale %out, %a, %s, %g {count = 9, eps = 0.5}", noise(2, 4), a=a, s=s, g=g)
    close(got, a / np.sqrt(s / 9 + 0.5)[:, None] * g)


def test_inverse_rms():
    s = 1 + noise(2) ** 2
    got = run("tile.inverse_rms %out, %s {count = 9, eps = 0.5}", noise(2), s=s)
    close(got, 1 / np.sqrt(s / 9 + 0.5))


def test_rope_turns_pairs_by_row():
    a, f = noise(2, 3, 4), np.array([1.0, 0.1])
    line = "tile.rope %out, %a, %f {position = pos, step = 5}"
    got = run(line, noise(2, 3, 4), a=a, f=f, scalars={"pos": 7})
    pairs = (a[..., 0::2] + 1j * a[..., 1::2]) * np.exp(1j * np.outer(7 + 5 * np.arange(3), f))
    close(got[..., 0::2], pairs.real)
    close(got[..., 1::2], pairs.imag)


def test_mask_causal():
    s = noise(2, 3, 5)
    got = run(
        "tile.mask_causal %out {query = pos, query_step = 2, key = 1, key_step = 3, limit = 10}",
        s,
        scalars={"pos": 4},
    )
    for row in range(3):
        for j in range(5):
            seen = 1 + 3 * j <= 4 + 2 * row and 1 + 3 * j < 10
            close(got[:, row, j], s[:, row, j] if seen else [-np.inf] * 2)


def test_ring_buffer_kernels():
    state = np.array([3, 2])
    close(run("tile.ring_set %out {count = pos}", state, scalars={"pos": 4}), [0, 4])
    close(run("tile.ring_grow %out", state), [3, 3])
    close(run("tile.ring_drop %out {capacity = 4}", state), [0, 1])
    ring, entry = noise(2, 4, 3), noise(2, 3)
    close(run("tile.ring_oldest %out, %a, %state", entry, a=ring, state=state), ring[:, 3])
    pushed = ring.copy()
    pushed[:, (3 + 2) % 4] = entry
    close(run("tile.ring_push %out, %b, %state", ring, b=entry, state=state), pushed)
    live = run("tile.mask_slots %out, %state", ring.transpose(0, 2, 1), state=state)
    close(np.isfinite(live[0, 0]), [True, False, False, True])


def test_rotate_and_select_lanes():
    a = noise(5, 2)
    line = "tile.rotate %out {by = pos}"
    close(run(line, a, scalars={"pos": 2}), [a[(i + 2) % 5] for i in range(5)])
    b = noise(6)
    line = 'tile.select_lanes %out, %b {shift = "pos - 2"}'
    close(run(line, noise(3), b=b, scalars={"pos": 0}), [0, 0, b[0]])
    close(run(line, noise(3), b=b, scalars={"pos": 7}), [b[5], 0, 0])


@pytest.mark.parametrize(("dtype", "digits"), [("f16", 11), ("bf16", 8)])
def test_half_types_round_at_every_store(dtype, digits):
    a = noise(4) * 100
    exact = run("tile.scale %out, %a {factor = 1.0}", noise(4), dtype, a=a)
    again = run("tile.scale %out, %a {factor = 1.0}", noise(4), dtype, a=exact)
    np.testing.assert_array_equal(exact, again)
    assert np.abs(exact / a - 1).max() <= 2.0**-digits
    assert (exact != a.astype(np.float32)).any()


def test_bf16_rounds_to_nearest_even():
    values = np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, np.inf, 1 + 1.1 * 2.0**-8])
    expected = [1.0, 1.0, 1 + 2.0**-6, -1.0, np.inf, 1 + 2.0**-7]
    np.testing.assert_array_equal(rounded(values, DType.BF16), np.float32(expected))
    assert np.isnan(rounded(np.array([np.nan]), DType.BF16)).all()
