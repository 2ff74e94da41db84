"""Mesh-level ops on shards against plain NumPy; wrong layouts are noticed or give wrong numbers."""

import numpy as np
import pytest
from interp_tile_texts import module_of

from meshc.interp.mesh import run_mesh
from meshc.support.diagnostics import MeshcError

RANDOM = np.random.default_rng(17)
DIMS = "L = 5, E = 10, F = 13, H = 6, G = 2, D = 6, S = 11, N = 3"


def mesh_module(params, result, body, mesh="y = 3, x = 4 (xh = 2, xd = 2)", dims=DIMS):
    return module_of(
        f"module @t level(mesh) {{\n dims {dims}\n mesh {mesh}\n"
        f" func @f({params}) -> ({result}) {{\n{body}\n }}\n}}"
    )


def noise(*shape):
    return RANDOM.standard_normal(shape)


MESHES = [
    "y = 3, x = 4 (xh = 2, xd = 2)",
    "y = 3 interleaved, x = 4 (xh = 2, xd = 2 interleaved)",
    "r = 2, y = 3 interleaved, x = 4 interleaved (xh = 2, xd = 2)",
]

NORM_AND_PRODUCT = """
    %ss = mesh.square_sum %x {dim = E} : f32[L]<+y>
    %ms = mesh.all_reduce %ss {axis = y} : f32[L]<>
    %h = mesh.rms_scale %x, %ms, %g {dim = E, eps = 0.1} : f32[L, E]<E_y:4>
    %u = mesh.gemv %h, %w {contract = [E]} : f32[L, F]<F_x:4 +y>
    %v = mesh.all_reduce %u {axis = y} : f32[L, F]<F_x:4>
    %m = mesh.relayout %v : f32[L, F]<F_y:5 +x>
    %z = mesh.all_reduce %m {axis = x} : f32[L, F]<F_y:5>
    mesh.return %v, %z"""
NORM_PARAMS = "in %x: f32[L, E]<E_y:4>, weight %g: f32[E]<E_y:4>, weight %w: f32[E, F]<E_y:4 F_x:4>"
NORM_RESULTS = "f32[L, F]<F_x:4>, f32[L, F]<F_y:5>"


@pytest.mark.parametrize("mesh", MESHES)
def test_norm_product_and_relayout(mesh):
    module = mesh_module(NORM_PARAMS, NORM_RESULTS, NORM_AND_PRODUCT, mesh)
    x, g, w = noise(5, 10), noise(10), noise(10, 13)
    v, z = run_mesh(module, {"x": x, "g": g, "w": w})
    expected = x / np.sqrt((x**2).mean(1, keepdims=True) + 0.1) * g @ w
    np.testing.assert_allclose(v, expected)
    np.testing.assert_allclose(z, expected)


@pytest.mark.parametrize("mesh", MESHES)
def test_a_norm_of_two_dims_one_of_which_several_cores_hold(mesh):
    body = """
    %share = mesh.square_sum %x {dim = F, also = [E]} : f32[L]<+x>
    %ss = mesh.all_reduce %share {axis = x} : f32[L]<>
    %z = mesh.rms_scale %x, %ss, %g {dim = F, also = [E], eps = 0.1}
      : f32[L, E, F]<E_xh*2:10 F_xd:7>
    mesh.return %z"""
    given = "in %x: f32[L, E, F]<E_xh*2:10 F_xd:7>, weight %g: f32[E, F]<E_xh*2:10 F_xd:7>"
    module = mesh_module(given, "f32[L, E, F]<E_xh*2:10 F_xd:7>", body, mesh)
    x, g = noise(5, 10, 13), noise(10, 13)
    (z,) = run_mesh(module, {"x": x, "g": g})
    mean = (x**2).mean((1, 2), keepdims=True)
    np.testing.assert_allclose(z, x / np.sqrt(mean + 0.1) * g)


def test_a_missing_reduction_is_noticed():
    body = NORM_AND_PRODUCT.replace("%ms = mesh.all_reduce %ss {axis = y} : f32[L]<>", "")
    module = mesh_module(NORM_PARAMS, NORM_RESULTS, body.replace("%x, %ms", "%x, %ss"))
    arrays = {"x": noise(5, 10), "g": noise(10), "w": noise(10, 13)}
    v, _ = run_mesh(module, arrays)
    right, _ = run_mesh(mesh_module(NORM_PARAMS, NORM_RESULTS, NORM_AND_PRODUCT), arrays)
    assert not np.allclose(v, right)
    unsummed = NORM_AND_PRODUCT.replace("return %v, %z", "return %u, %z")
    with pytest.raises(MeshcError, match=r"interp-layout.*'u' is a partial sum over y"):
        run_mesh(mesh_module(NORM_PARAMS, NORM_RESULTS, unsummed), arrays)


def test_a_weight_laid_out_otherwise_gives_wrong_numbers():
    params = NORM_PARAMS.replace("E_y:4 F_x:4", "E_y%:4 F_x:4")
    arrays = {"x": noise(5, 10), "g": noise(10), "w": noise(10, 13)}
    wrong, _ = run_mesh(mesh_module(params, NORM_RESULTS, NORM_AND_PRODUCT), arrays)
    right, _ = run_mesh(mesh_module(NORM_PARAMS, NORM_RESULTS, NORM_AND_PRODUCT), arrays)
    assert not np.allclose(wrong, right)


def test_lanes_that_do_not_match_are_noticed():
    params = NORM_PARAMS.replace("%g: f32[E]<E_y:4>", "%g: f32[E]<E_y:5>")
    with pytest.raises(MeshcError, match=r"interp-shape.*5 lanes of E beside 4"):
        run_mesh(
            mesh_module(params, NORM_RESULTS, NORM_AND_PRODUCT),
            {"x": noise(5, 10), "g": noise(10), "w": noise(10, 13)},
        )
    body = NORM_AND_PRODUCT.replace("f32[L, E]<E_y:4>", "f32[L, E]<E_y:5>")
    with pytest.raises(MeshcError, match=r"gives \[5, 4\] lanes per core, but %h has \[5, 5\]"):
        run_mesh(
            mesh_module(NORM_PARAMS, NORM_RESULTS, body),
            {"x": noise(5, 10), "g": noise(10), "w": noise(10, 13)},
        )


def test_a_replica_that_another_core_computed_otherwise_is_noticed():
    body = """%s = mesh.row_sum %x {dim = E} : f32[L]<>
        mesh.return %s"""
    module = mesh_module("in %x: f32[L, E]<E_y:4>", "f32[L]<>", body)
    with pytest.raises(MeshcError, match="'s' differs between replicas"):
        run_mesh(module, {"x": noise(5, 10)})


@pytest.mark.parametrize("mesh", MESHES)
def test_mesh_gemm_reads_skewed_weights(mesh):
    module = mesh_module(
        "in %x: f32[L, E]<L_y%:2 E_x:3>, weight %w: f32[E, F]<E_y>>x:4 F_x:4>",
        "f32[L, F]<L_y%:2 F_x:4>",
        """%y = mesh.gemm %x, %w {contract = [E], axis = x} : f32[L, F]<L_y%:2 F_x:4>
           mesh.return %y""",
        mesh,
    )
    x, w = noise(5, 10), noise(10, 13)
    np.testing.assert_allclose(run_mesh(module, {"x": x, "w": w})[0], x @ w)
    np.testing.assert_allclose(run_mesh(module, {"x": x[:3], "w": w})[0], x[:3] @ w)


ATTENTION = """
    %kc, %vc = mesh.append %kp, %kn, %vp, %vn {dim = S, rows = L}
      : f32[S, G, D]<S_y~:4 G_xh:1 D_xd:4>, f32[S, G, D]<S_y~:4 G_xh:1 D_xd:4>
    %s = mesh.gemv %q, %kc {contract = [D], group = [H, G]} : f32[L, H, S]<H_xh:3 S_y~:4 +xd>
    %t = mesh.all_reduce %s {axis = xd} : f32[L, H, S]<H_xh:3 S_y~:4>
    %m = mesh.mask %t {dim = S, rows = L, kind = causal} : f32[L, H, S]<H_xh:3 S_y~:4>
    %a = mesh.row_max %m {dim = S} : f32[L, H]<H_xh:3 +y>
    %b = mesh.all_reduce %a {axis = y, reduce = max} : f32[L, H]<H_xh:3>
    %p = mesh.exp_sub %m, %b : f32[L, H, S]<H_xh:3 S_y~:4>
    %c = mesh.row_sum %p {dim = S} : f32[L, H]<H_xh:3 +y>
    %o = mesh.gemv %p, %vc {contract = [S], group = [H, G]} : f32[L, H, D]<H_xh:3 D_xd:4 +y>
    %d, %e = mesh.all_reduce %o, %c {axis = y}
      : f32[L, H, D]<H_xh:3 D_xd:4>, f32[L, H]<H_xh:3>
    %r = mesh.div %d, %e : f32[L, H, D]<H_xh:3 D_xd:4>
    mesh.return %r, %kc, %vc"""
HEADS = "G_xh:1 D_xd:4"
ATTENTION_PARAMS = (
    f"in %q: f32[L, H, D]<H_xh:3 D_xd:4>, in %kn: f32[L, G, D]<{HEADS}>, "
    f"in %vn: f32[L, G, D]<{HEADS}>, state %kp: f32[S, G, D]<S_y~:4 {HEADS}>, "
    f"state %vp: f32[S, G, D]<S_y~:4 {HEADS}>"
)
ATTENTION_RESULTS = (
    f"f32[L, H, D]<H_xh:3 D_xd:4>, f32[S, G, D]<S_y~:4 {HEADS}>, f32[S, G, D]<S_y~:4 {HEADS}>"
)


def attention(q, k, v, pos):
    """Causal attention of the last rows of a sequence; three query heads for each k and v."""
    k, v = np.repeat(k, 3, 1), np.repeat(v, 3, 1)
    scores = np.einsum("lhd,shd->lhs", q, k)
    hidden = np.arange(len(k))[None, :] > pos + np.arange(len(q))[:, None]
    scores = np.where(hidden[:, None, :], -np.inf, scores)
    weights = np.exp(scores - scores.max(2, keepdims=True))
    return np.einsum("lhs,shd->lhd", weights / weights.sum(2, keepdims=True), v)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize(("rows", "pos"), [(1, 0), (1, 10), (5, 0), (4, 6)])
def test_attention_over_a_cache_spread_over_rows(mesh, rows, pos):
    dims = DIMS.replace("L = 5", f"L = {rows}")
    module = mesh_module(ATTENTION_PARAMS, ATTENTION_RESULTS, ATTENTION, mesh, dims)
    old_k, old_v = np.zeros((11, 2, 6)), np.zeros((11, 2, 6))
    old_k[:pos], old_v[:pos] = noise(pos, 2, 6), noise(pos, 2, 6)
    q, kn, vn = noise(rows, 6, 6), noise(rows, 2, 6), noise(rows, 2, 6)
    k, v = old_k.copy(), old_v.copy()
    k[pos : pos + rows], v[pos : pos + rows] = kn, vn
    arrays = {"q": q, "kn": kn, "vn": vn, "kp": old_k, "vp": old_v}
    r, kc, vc = run_mesh(module, arrays, {"pos": pos})
    np.testing.assert_allclose(r, attention(q, k, v, pos))
    np.testing.assert_array_equal(kc, k)
    np.testing.assert_array_equal(vc, v)


def test_heads_without_their_group_are_noticed():
    """With H over y, a core has query heads whose keys are elsewhere."""
    body = """%s = mesh.gemv %q, %k {contract = [D], group = [H, G]} : f32[L, H, S]<H_y:2>
        mesh.return %s"""
    module = mesh_module(
        "in %q: f32[L, H, D]<H_y:2>, in %k: f32[S, G, D]<G_xh:1>", "f32[L, H, S]<H_y:2>", body
    )
    with pytest.raises(MeshcError, match="lacks the group of one of its heads"):
        run_mesh(module, {"q": noise(5, 6, 6), "k": noise(11, 2, 6)})


def test_prefill_products_leave_scores_skewed():
    scores = "L_y%:2 H_xh:3 S_xd>>y%:6"
    body = f"""%s = mesh.gemm_t %q, %k {{contract = [D], group = [H, G], axis = xd}}
          : f32[L, H, S]<{scores}>
        %m = mesh.mask %s {{dim = S, rows = L, kind = causal}} : f32[L, H, S]<{scores}>
        %a = mesh.row_max %m {{dim = S}} : f32[L, H]<L_y%:2 H_xh:3 +xd>
        %b = mesh.all_reduce %a {{axis = xd, reduce = max}} : f32[L, H]<L_y%:2 H_xh:3>
        %p = mesh.exp_sub %m, %b : f32[L, H, S]<{scores}>
        %c = mesh.row_sum %p {{dim = S}} : f32[L, H]<L_y%:2 H_xh:3 +xd>
        %e = mesh.all_reduce %c {{axis = xd}} : f32[L, H]<L_y%:2 H_xh:3>
        %o = mesh.gemm %p, %v {{contract = [S], group = [H, G], axis = xd, left_aligned = true}}
          : f32[L, H, D]<L_y%:2 H_xh:3 D_xd:4>
        %r = mesh.div %o, %e : f32[L, H, D]<L_y%:2 H_xh:3 D_xd:4>
        mesh.return %r"""
    module = mesh_module(
        "in %q: f32[L, H, D]<L_y%:2 H_xh:3 D_xd:4>, state %k: f32[S, G, D]<S_y~:4 G_xh:1 D_xd:4>, "
        "state %v: f32[S, G, D]<S_y~:4 G_xh:1 D_xd:4>",
        "f32[L, H, D]<L_y%:2 H_xh:3 D_xd:4>",
        body,
        MESHES[1],
    )
    q, k, v = noise(5, 6, 6), noise(11, 2, 6), noise(11, 2, 6)
    (r,) = run_mesh(module, {"q": q, "k": k, "v": v})
    np.testing.assert_allclose(r, attention(q, k, v, 0))
    (r,) = run_mesh(module, {"q": q[:4], "k": k, "v": v})
    np.testing.assert_allclose(r, attention(q[:4], k, v, 0))


def test_rope_turns_pairs_on_each_core():
    layout = "L_y%:2 H_xh:3 D_xd:4"
    body = f"""%y = mesh.rope %x {{dim = D, rows = L, theta = 50.0, style = interleaved}}
          : f32[L, H, D]<{layout}>
        mesh.return %y"""
    module = mesh_module(f"in %x: f32[L, H, D]<{layout}>", f"f32[L, H, D]<{layout}>", body)
    x = noise(5, 6, 6)
    angle = np.outer(3 + np.arange(5), 50.0 ** (-np.arange(3) / 3))[:, None]
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
    (y,) = run_mesh(module, {"x": x}, {"pos": 3})
    np.testing.assert_allclose(y[..., 0::2], turned.real)
    np.testing.assert_allclose(y[..., 1::2], turned.imag)


@pytest.mark.parametrize("layout", ["D_xd:3", "D_x%:2"])
def test_pairs_that_are_torn_are_noticed(layout):
    body = f"""%y = mesh.rope %x {{dim = D, rows = L, style = interleaved}} : f32[L, D]<{layout}>
        mesh.return %y"""
    module = mesh_module(f"in %x: f32[L, D]<{layout}>", f"f32[L, D]<{layout}>", body)
    with pytest.raises(MeshcError, match="a pair of D is not on one core"):
        run_mesh(module, {"x": noise(5, 6)})


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mesh.add %x, %y", lambda x, y: x + y),
        ("mesh.mul %x, %y", lambda x, y: x * y),
        ("mesh.div %x, %y", lambda x, y: x / y),
        ("mesh.scale %x {factor = 0.25}", lambda x, y: x / 4),
        ("mesh.silu %x", lambda x, y: x / (1 + np.exp(-x))),
        ("mesh.gelu %x {form = tanh}", None),
    ],
)
def test_pointwise(line, expected):
    module = mesh_module(
        "in %x: f32[L, E]<L_y%:2 E_x:3>, in %y: f32[E]<E_x:3>",
        "f32[L, E]<L_y%:2 E_x:3>",
        f"%z = {line} : f32[L, E]<L_y%:2 E_x:3>\n mesh.return %z",
    )
    x, y = noise(5, 10), noise(10)
    (z,) = run_mesh(module, {"x": x, "y": y})
    if expected is None:
        cubic = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
        np.testing.assert_allclose(z, 0.5 * x * (1 + np.tanh(cubic)))
    else:
        np.testing.assert_allclose(z, expected(x, y))


@pytest.mark.parametrize("stack", ["N, E, F]<E_y:4 F_x:4>", "N, E, F]<N_r:2 E_y:4 F_x:4>"])
def test_layers_are_a_loop_also_over_regions(stack):
    body = f"""%y, %us = mesh.repeat %x, %ws {{dim = N}}
          : f32[L, E]<E_y:4>, f32[N, L, F]<{"N_r:2 " if "N_r" in stack else ""}F_x:4>
          (%h: f32[L, E]<E_y:4>, %w: f32[E, F]<E_y:4 F_x:4>) {{
        %p = mesh.gemv %h, %w {{contract = [E]}} : f32[L, F]<F_x:4 +y>
        %u = mesh.all_reduce %p {{axis = y}} : f32[L, F]<F_x:4>
        %q = mesh.gemv %u, %w {{contract = [F]}} : f32[L, E]<E_y:4 +x>
        %v = mesh.all_reduce %q {{axis = x}} : f32[L, E]<E_y:4>
        mesh.yield %v, %u
      }}
      mesh.return %y, %us"""
    module = mesh_module(
        f"in %x: f32[L, E]<E_y:4>, weight %ws: f32[{stack}",
        "f32[L, E]<E_y:4>, f32[N, L, F]<F_x:4>",
        body,
        "r = 2, y = 3, x = 4 interleaved",
    )
    x, ws = noise(5, 10), noise(3, 10, 13)
    y, us = run_mesh(module, {"x": x, "ws": ws})
    for layer in range(3):
        np.testing.assert_allclose(us[layer], x @ ws[layer])
        x = x @ ws[layer] @ ws[layer].T
    np.testing.assert_allclose(y, x)


def test_an_append_beyond_the_cache_is_diagnosed():
    module = mesh_module(
        "state %c: f32[S, D]<S_y~:4>, in %n: f32[L, D]<>",
        "f32[S, D]<S_y~:4>",
        "%k = mesh.append %c, %n {dim = S, rows = L} : f32[S, D]<S_y~:4>\n mesh.return %k",
    )
    with pytest.raises(MeshcError, match="row 11 does not fit S"):
        run_mesh(module, {"n": noise(5, 6)}, {"pos": 7})
