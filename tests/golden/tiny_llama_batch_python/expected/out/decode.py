"""Phase decode of tiny_llama_decode: what every core runs.

Mesh (columns x rows): 1 x 2 cores; element type f32.

A statement works on the memory of each core, on all cores that its guard (on=..) lets
through. Only channels carry data from core to core; wait ends the transfers it names.

Kernels, the result first:
    add           out = a + b
    div           out = a / b, b repeated over trailing dims
    exp_sub       out = exp(a - m), m repeated over trailing dims
    gemm          out[.., m, n] = a[.., m, k] b[.., k, n], added to out if `accumulate`; b is [..,
                  n, k] if `transposed`; products of a leading dim that out has once are added up
    mask_slots    s[.., j] = -inf where slot j of a ring buffer with state (head, count) holds
                  nothing
    mul           out = a * b
    ring_grow     state count + 1
    ring_push     the newest slot of ring a[.., cap, :] = b[.., :]
    rms_scale     out[.., e] = a[.., e] / sqrt(s[..] / count + eps) * gain[e]
    rope          out[.., r, 2i:2i+2] = a[.., r, 2i:2i+2] turned by (position + step*r) * freq[i]
    row_max       out[..] = largest of a over trailing dims
    row_sum       out[..] = sum of a over trailing dims
    scale         out = a * factor
    select_lanes  out[i] = a[i + shift] where that lane exists, else 0
    silu          out = a / (1 + exp(-a))
    square_sum    out[..] = sum of a*a over trailing dims
"""

from mesh_runtime import Fabric, Hop, Phase, element, memo, wait
from mesh_runtime.kernels import (
    add,
    div,
    exp_sub,
    gemm,
    mask_slots,
    mul,
    ring_grow,
    ring_push,
    rms_scale,
    rope,
    row_max,
    row_sum,
    scale,
    select_lanes,
    silu,
    square_sum,
)


def decode(fabric: Fabric) -> Phase:
    """Bind the program to the cores of ``fabric``."""
    phase = Phase(fabric, "decode", interleaved=("y", "x", "xd"))
    core = phase.core

    # Memory of each core: name, element type, extents.
    x = phase.buffer("x", "f32", 2, 48, role="in")
    q_1_k_1_x_5 = phase.buffer("q_1_k_1_x_5", "f32", 2, 80)
    x_6_s_sum = phase.buffer("x_6_s.sum", "f32", 2, 54)
    x_8_x_10 = phase.buffer("x_8_x_10", "f32", 2, 128)
    h_ss = phase.buffer("h.ss", "f32", 2)
    attn_norm = phase.buffer("attn_norm", "f32", 1, 48, role="weight", stacked=1)
    h = phase.buffer("h", "f32", 2, 48)
    h_1 = phase.buffer("h_1", "f32", 2, 24)
    wq_wk_wv = phase.buffer("wq_wk_wv", "f32", 1, 24, 80, role="weight", stacked=1)
    rope_frequency_lanes = phase.buffer("rope_frequency_lanes", "f32", 4, role="weight")
    kv_cache = phase.buffer(
        "kv_cache", "f32", 1, 2, 2, 2, 4, 8, role="state", stacked=1, requests=1
    )
    kv_state = phase.buffer("kv_state", "i32", 1, 2, 2, role="state", stacked=2, requests=1)
    s_2 = phase.buffer("s_2", "f32", 2, 6, 4)
    s_max = phase.buffer("s.max", "f32", 2, 6)
    x_7 = phase.buffer("x_7", "f32", 2, 24)
    wo = phase.buffer("wo", "f32", 1, 48, 24, role="weight", stacked=1)
    x_7_1 = phase.buffer("x_7_1", "f32", 2, 48)
    h_1_ss = phase.buffer("h_1.ss", "f32", 2)
    ffn_norm = phase.buffer("ffn_norm", "f32", 1, 48, role="weight", stacked=1)
    h_1_1 = phase.buffer("h_1_1", "f32", 2, 48)
    w_gate_w_up = phase.buffer("w_gate_w_up", "f32", 1, 48, 128, role="weight", stacked=1)
    x_12 = phase.buffer("x_12", "f32", 2, 48)
    w_down = phase.buffer("w_down", "f32", 1, 64, 48, role="weight", stacked=1)
    result_1_ss = phase.buffer("result_1.ss", "f32", 2)
    final_norm = phase.buffer("final_norm", "f32", 48, role="weight")
    result = phase.buffer("result", "f32", 2, 128, role="out")
    lm_head = phase.buffer("lm_head", "f32", 48, 128, role="weight")

    # Channels: where the messages of each core go.
    every_y = core.every(2)
    chain_y_1 = phase.channel("chain_y_1", Hop(to=(core.y - 1, core.x), where=core.y >= 1))
    cast_y = phase.channel(
        "cast_y", Hop(to=(every_y, core.x), where=(every_y >= 1) & (core.y == 0))
    )

    # Guards: the cores that take part in a statement.
    y_is_1 = phase.where(core.y == 1)
    y_is_0 = phase.where(core.y == 0)
    cast_y_receivers = phase.where(core.y >= 1)

    @memo
    def ring_push_cores(pos):
        return phase.where(core.rank_y == pos % 2)

    # Exchanges between cores that occur again and again.
    @phase.recorded
    def all_reduce_add_y(view):
        """Along chain_y_1, cast_y."""
        sent = chain_y_1.send(view, on=y_is_1)
        got = chain_y_1.recv(view, combine="add", on=y_is_0)
        wait(got, sent)
        sent_2 = cast_y.send(view, on=y_is_0)
        got_2 = cast_y.recv(view, on=cast_y_receivers)
        wait(got_2, sent_2)

    @phase.recorded
    def all_reduce_max_y(view):
        """Along chain_y_1, cast_y."""
        sent = chain_y_1.send(view, on=y_is_1)
        got = chain_y_1.recv(view, combine="max", on=y_is_0)
        wait(got, sent)
        sent_2 = cast_y.send(view, on=y_is_0)
        got_2 = cast_y.recv(view, on=cast_y_receivers)
        wait(got_2, sent_2)

    def step(pos_of_each):
        square_sum(h_ss, x)
        rms_scale(h, x, h_ss, attn_norm[0], count=48, eps=1e-05)
        select_lanes(h_1.ordered(1, 0), h.ordered(1, 0), shift=24 * core.rank_y - 48 * core.rank_x)
        gemm(q_1_k_1_x_5[:, :80], h_1, wq_wk_wv[0])
        all_reduce_add_y(q_1_k_1_x_5[:, :80])
        for request, pos in enumerate(pos_of_each):
            rope(
                q_1_k_1_x_5[request, :64].shaped(8, 1, 8),
                q_1_k_1_x_5[request, :64].shaped(8, 1, 8),
                rope_frequency_lanes,
                position=pos,
                step=1,
            )
            ring_push(
                kv_cache[0, request, 0],
                q_1_k_1_x_5[request, 48:64].shaped(2, 8),
                kv_state[0, request],
                on=ring_push_cores(pos),
            )
            ring_push(
                kv_cache[0, request, 1],
                q_1_k_1_x_5[request, 64:80].shaped(2, 8),
                kv_state[0, request],
                on=ring_push_cores(pos),
            )
            ring_grow(kv_state[0, request], on=ring_push_cores(pos))
        gemm(
            s_2.shaped(2, 2, 3, 4),
            q_1_k_1_x_5[:, :48].shaped(2, 2, 3, 8),
            kv_cache[0, :, 0],
            transposed=True,
        )
        scale(s_2, s_2, factor=0.35355339059327373)
        for request_1 in range(2):
            mask_slots(s_2[request_1], kv_state[0, request_1])
        row_max(s_max, s_2)
        all_reduce_max_y(s_max)
        exp_sub(s_2, s_2, s_max)
        row_sum(x_6_s_sum[:, 48:54], s_2)
        gemm(x_6_s_sum[:, :48].shaped(2, 2, 3, 8), s_2.shaped(2, 2, 3, 4), kv_cache[0, :, 1])
        all_reduce_add_y(x_6_s_sum[:, :54])
        div(
            x_6_s_sum[:, :48].shaped(2, 6, 8),
            x_6_s_sum[:, :48].shaped(2, 6, 8),
            x_6_s_sum[:, 48:54],
        )
        gemm(x_7, x_6_s_sum[:, :48].shaped(2, 48), wo[0])
        select_lanes(
            x_7_1.ordered(1, 0), x_7.ordered(1, 0), shift=48 * core.rank_x - 24 * core.rank_y
        )
        all_reduce_add_y(x_7_1)
        add(x, x, x_7_1)
        square_sum(h_1_ss, x)
        rms_scale(h_1_1, x, h_1_ss, ffn_norm[0], count=48, eps=1e-05)
        gemm(x_8_x_10[:, :128], h_1_1, w_gate_w_up[0])
        silu(x_8_x_10[:, :64], x_8_x_10[:, :64])
        mul(x_8_x_10[:, :64], x_8_x_10[:, :64], x_8_x_10[:, 64:128])
        gemm(x_12, x_8_x_10[:, :64], w_down[0])
        all_reduce_add_y(x_12)
        add(x, x, x_12)
        square_sum(result_1_ss, x)
        rms_scale(x, x, result_1_ss, final_norm, count=48, eps=1e-05)
        gemm(result, x, lm_head)

    # Constants of the program.
    phase.constant("rope_frequency", [1.0, 0.1, 0.01, 0.001])

    # Logical tensors: the element that each lane of a buffer holds.
    def x_lanes(i_b, i_e):
        return element(i_b, 0, i_e + 48 * core.rank_x)

    phase.port("in", "x", {"B": 2, "L": 1, "E": 48}, x, x_lanes)

    def attn_norm_lanes(layer, i0):
        return element(layer, i0 + 48 * core.rank_x)

    phase.port("in", "attn_norm", {"layers": 1, "E": 48}, attn_norm, attn_norm_lanes)

    def wq_lanes(layer, k, f):
        return element(
            layer,
            k + 24 * core.rank_y,
            6 * core.xh + f // 8,
            4 * core.rank_xd + 4 * (f % 2) + (f % 8) // 2,
            where=(f >= 0, f <= 47, 8 * core.rank_xd + f % 8 <= 7),
        )

    phase.port("in", "wq", {"layers": 1, "E": 48, "H": 6, "D": 8}, wq_wk_wv, wq_lanes)

    def wk_lanes(layer, k, f):
        return element(
            layer,
            k + 24 * core.rank_y,
            2 * core.xh + f // 8 - 6,
            4 * core.rank_xd + 4 * (f % 2) + (f % 8) // 2,
            where=(f >= 48, f <= 63, 8 * core.rank_xd + f % 8 <= 7),
        )

    phase.port("in", "wk", {"layers": 1, "E": 48, "G": 2, "D": 8}, wq_wk_wv, wk_lanes)

    def wv_lanes(layer, k, f):
        return element(
            layer,
            k + 24 * core.rank_y,
            2 * core.xh + f // 8 - 8,
            8 * core.rank_xd + f % 8,
            where=(f >= 64, f <= 79),
        )

    phase.port("in", "wv", {"layers": 1, "E": 48, "G": 2, "D": 8}, wq_wk_wv, wv_lanes)

    def rope_frequency_lanes_2(i):
        return element(i + 4 * core.rank_xd)

    phase.port("in", "rope_frequency", {"D_pairs": 4}, rope_frequency_lanes, rope_frequency_lanes_2)

    def wo_lanes(layer, k, f):
        return element(layer, 6 * core.xh + k // 8, 8 * core.rank_xd + k % 8, f + 24 * core.rank_y)

    phase.port("in", "wo", {"layers": 1, "H": 6, "D": 8, "E": 48}, wo, wo_lanes)

    def ffn_norm_lanes(layer, i0):
        return element(layer, i0 + 48 * core.rank_x)

    phase.port("in", "ffn_norm", {"layers": 1, "E": 48}, ffn_norm, ffn_norm_lanes)

    def w_gate_lanes(layer, k, f):
        return element(layer, k + 48 * core.rank_x, f + 64 * core.rank_y, where=(f >= 0, f <= 63))

    phase.port("in", "w_gate", {"layers": 1, "E": 48, "F": 128}, w_gate_w_up, w_gate_lanes)

    def w_up_lanes(layer, k, f):
        return element(
            layer, k + 48 * core.rank_x, f + 64 * core.rank_y - 64, where=(f >= 64, f <= 127)
        )

    phase.port("in", "w_up", {"layers": 1, "E": 48, "F": 128}, w_gate_w_up, w_up_lanes)

    def w_down_lanes(layer, k, f):
        return element(layer, k + 64 * core.rank_y, f + 48 * core.rank_x)

    phase.port("in", "w_down", {"layers": 1, "F": 128, "E": 48}, w_down, w_down_lanes)

    def final_norm_lanes(i0):
        return element(i0 + 48 * core.rank_x)

    phase.port("in", "final_norm", {"E": 48}, final_norm, final_norm_lanes)

    def lm_head_lanes(k, f):
        return element(k + 48 * core.rank_x, f + 128 * core.rank_y)

    phase.port("in", "lm_head", {"E": 48, "V": 256}, lm_head, lm_head_lanes)

    def logits_lanes(i_b, i_v):
        return element(i_b, 0, i_v + 128 * core.rank_y, where=(core.rank_x == 0,))

    phase.port("out", "logits", {"B": 2, "L": 1, "V": 256}, result, logits_lanes)

    return phase.runs(step, {"pos": (0, 7)}, several={"pos": 2})
