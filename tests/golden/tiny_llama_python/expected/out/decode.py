"""Phase decode of tiny_llama_decode: what every core runs.

Mesh (columns x rows): 2 x 2 cores; element type f32.

A statement works on the memory of each core, on all cores that its guard (on=..) lets
through. Only channels carry data from core to core; wait ends the transfers it names.

Kernels, the result first:
    add          out = a + b
    copy         out = a
    div          out = a / b, b repeated over trailing dims
    exp_sub      out = exp(a - m), m repeated over trailing dims
    gemm         out[.., m, n] = a[.., m, k] b[.., k, n], added to out if `accumulate`; b is [.., n,
                 k] if `transposed`; products of a leading dim that out has once are added up
    inverse_rms  out = 1 / sqrt(s / count + eps)
    mask_slots   s[.., j] = -inf where slot j of a ring buffer with state (head, count) holds
                 nothing
    mul          out = a * b
    ring_grow    state count + 1
    ring_push    the newest slot of ring a[.., cap, :] = b[.., :]
    rope         out[.., r, 2i:2i+2] = a[.., r, 2i:2i+2] turned by (position + step*r) * freq[i]
    row_max      out[..] = largest of a over trailing dims
    row_sum      out[..] = sum of a over trailing dims
    scale        out = a * factor
    silu         out = a / (1 + exp(-a))
    square_sum   out[..] = sum of a*a over trailing dims
"""

from mesh_runtime import Fabric, Hop, Phase, element, memo, wait
from mesh_runtime.kernels import (
    add,
    copy,
    div,
    exp_sub,
    gemm,
    inverse_rms,
    mask_slots,
    mul,
    ring_grow,
    ring_push,
    rope,
    row_max,
    row_sum,
    scale,
    silu,
    square_sum,
)


def decode(fabric: Fabric) -> Phase:
    """Bind the program to the cores of ``fabric``."""
    phase = Phase(fabric, "decode", interleaved=("y", "x", "xd"))
    core = phase.core

    # Memory of each core: name, element type, extents.
    x = phase.buffer("x", "f32", 24, role="in")
    result_3_result_1_ss = phase.buffer("result_3_result_1.ss", "f32", 129)
    q_1_k_1_x_5_h_ss = phase.buffer("q_1_k_1_x_5_h.ss", "f32", 41)
    x_6_s_sum = phase.buffer("x_6_s.sum", "f32", 30)
    x_8_x_10_h_1_ss = phase.buffer("x_8_x_10_h_1.ss", "f32", 129)
    attn_norm = phase.buffer("attn_norm", "f32", 2, 24, role="weight", stacked=1)
    h = phase.buffer("h", "f32", 24)
    wq_wk_wv = phase.buffer("wq_wk_wv", "f32", 2, 24, 40, role="weight", stacked=1, by_columns=True)
    rope_frequency_lanes = phase.buffer("rope_frequency_lanes", "f32", 2, role="weight")
    kv_cache = phase.buffer("kv_cache", "f32", 2, 2, 2, 8, 4, role="state", stacked=2)
    kv_state = phase.buffer("kv_state", "i32", 2, 2, role="state", stacked=1)
    s_2 = phase.buffer("s_2", "f32", 6, 8)
    s_max = phase.buffer("s.max", "f32", 6)
    x_7 = phase.buffer("x_7", "f32", 24)
    wo = phase.buffer("wo", "f32", 2, 24, 24, role="weight", stacked=1, by_columns=True)
    ffn_norm = phase.buffer("ffn_norm", "f32", 2, 24, role="weight", stacked=1)
    h_1 = phase.buffer("h_1", "f32", 24)
    w_gate_w_up = phase.buffer(
        "w_gate_w_up", "f32", 2, 24, 128, role="weight", stacked=1, by_columns=True
    )
    x_12 = phase.buffer("x_12", "f32", 24)
    w_down = phase.buffer("w_down", "f32", 2, 64, 24, role="weight", stacked=1)
    final_norm = phase.buffer("final_norm", "f32", 24, role="weight")
    lm_head = phase.buffer("lm_head", "f32", 24, 128, role="weight", by_columns=True)
    result = phase.buffer("result", "f32", 128, role="out")

    # Channels: where the messages of each core go.
    every_y = core.every(2)
    every_x = core.every(2)
    chain_y_1 = phase.channel("chain_y_1", Hop(to=(core.y - 1, core.x), where=core.y >= 1))
    cast_y = phase.channel(
        "cast_y", Hop(to=(every_y, core.x), where=(every_y >= 1) & (core.y == 0))
    )
    chain_xd_1 = phase.channel("chain_xd_1", Hop(to=(core.y, core.x - 1), where=core.x >= 1))
    cast_xd = phase.channel(
        "cast_xd", Hop(to=(core.y, every_x), where=(every_x >= 1) & (core.x == 0))
    )

    # Guards: the cores that take part in a statement.
    y_is_1 = phase.where(core.y == 1)
    y_is_0 = phase.where(core.y == 0)
    cast_y_receivers = phase.where(core.y >= 1)
    x_is_1 = phase.where(core.x == 1)
    x_is_0 = phase.where(core.x == 0)
    cast_xd_receivers = phase.where(core.x >= 1)

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
    def all_reduce_add_x(view):
        """Along chain_xd_1, cast_xd."""
        sent = chain_xd_1.send(view, on=x_is_1)
        got = chain_xd_1.recv(view, combine="add", on=x_is_0)
        wait(got, sent)
        sent_2 = cast_xd.send(view, on=x_is_0)
        got_2 = cast_xd.recv(view, on=cast_xd_receivers)
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

    # Parts of loops that are the same in every run.
    @phase.recorded
    def q_1_k_1_x_5_h_ss_of_layer(layer):
        square_sum(q_1_k_1_x_5_h_ss[40:41], x.shaped(1, 24))
        mul(h, x, attn_norm[layer])
        gemm(q_1_k_1_x_5_h_ss[:40].shaped(1, 40), h.shaped(1, 24), wq_wk_wv[layer])
        all_reduce_add_y(q_1_k_1_x_5_h_ss[:41])
        inverse_rms(q_1_k_1_x_5_h_ss[40:41], q_1_k_1_x_5_h_ss[40:41], count=48, eps=1e-05)
        mul(
            q_1_k_1_x_5_h_ss[:40].shaped(10, 4, 1),
            q_1_k_1_x_5_h_ss[:40].shaped(10, 4, 1),
            q_1_k_1_x_5_h_ss[40:41],
        )

    @phase.recorded
    def x_of_layer(layer):
        gemm(
            s_2.shaped(2, 3, 8),
            q_1_k_1_x_5_h_ss[:24].shaped(2, 3, 4),
            kv_cache[layer, 0],
            transposed=True,
        )
        all_reduce_add_x(s_2)
        scale(s_2, s_2, factor=0.35355339059327373)
        mask_slots(s_2, kv_state[layer])
        row_max(s_max, s_2)
        all_reduce_max_y(s_max)
        exp_sub(s_2, s_2, s_max)
        row_sum(x_6_s_sum[24:30], s_2)
        gemm(x_6_s_sum[:24].shaped(2, 3, 4), s_2.shaped(2, 3, 8), kv_cache[layer, 1])
        all_reduce_add_y(x_6_s_sum[:30])
        div(x_6_s_sum[:24].shaped(6, 4), x_6_s_sum[:24].shaped(6, 4), x_6_s_sum[24:30])
        gemm(x_7.shaped(1, 24), x_6_s_sum[:24].shaped(1, 24), wo[layer])
        all_reduce_add_x(x_7)
        add(x, x, x_7)
        square_sum(x_8_x_10_h_1_ss[128:129], x.shaped(1, 24))
        mul(h_1, x, ffn_norm[layer])
        gemm(x_8_x_10_h_1_ss[:128].shaped(1, 128), h_1.shaped(1, 24), w_gate_w_up[layer])
        all_reduce_add_y(x_8_x_10_h_1_ss[:129])
        inverse_rms(x_8_x_10_h_1_ss[128:129], x_8_x_10_h_1_ss[128:129], count=48, eps=1e-05)
        mul(
            x_8_x_10_h_1_ss[:128].shaped(128, 1),
            x_8_x_10_h_1_ss[:128].shaped(128, 1),
            x_8_x_10_h_1_ss[128:129],
        )
        silu(x_8_x_10_h_1_ss[:64], x_8_x_10_h_1_ss[:64])
        mul(x_8_x_10_h_1_ss[:64], x_8_x_10_h_1_ss[:64], x_8_x_10_h_1_ss[64:128])
        gemm(x_12.shaped(1, 24), x_8_x_10_h_1_ss[:64].shaped(1, 64), w_down[layer])
        all_reduce_add_x(x_12)
        add(x, x, x_12)

    def step(pos):
        for layer in range(2):
            q_1_k_1_x_5_h_ss_of_layer(layer)
            rope(
                q_1_k_1_x_5_h_ss[:32].shaped(8, 1, 4),
                q_1_k_1_x_5_h_ss[:32].shaped(8, 1, 4),
                rope_frequency_lanes,
                position=pos,
                step=1,
            )
            ring_push(
                kv_cache[layer, 0],
                q_1_k_1_x_5_h_ss[24:32].shaped(2, 4),
                kv_state[layer],
                on=ring_push_cores(pos),
            )
            ring_push(
                kv_cache[layer, 1],
                q_1_k_1_x_5_h_ss[32:40].shaped(2, 4),
                kv_state[layer],
                on=ring_push_cores(pos),
            )
            ring_grow(kv_state[layer], on=ring_push_cores(pos))
            x_of_layer(layer)
        square_sum(result_3_result_1_ss[128:129], x.shaped(1, 24))
        mul(x, x, final_norm)
        gemm(result_3_result_1_ss[:128].shaped(1, 128), x.shaped(1, 24), lm_head)
        all_reduce_add_y(result_3_result_1_ss[:129])
        inverse_rms(
            result_3_result_1_ss[128:129], result_3_result_1_ss[128:129], count=48, eps=1e-05
        )
        mul(
            result_3_result_1_ss[:128].shaped(128, 1),
            result_3_result_1_ss[:128].shaped(128, 1),
            result_3_result_1_ss[128:129],
        )
        copy(result, result_3_result_1_ss[:128])

    # Constants of the program.
    phase.constant("rope_frequency", [1.0, 0.1, 0.01, 0.001])

    # Logical tensors: the element that each lane of a buffer holds.
    def x_lanes(i_e):
        return element(0, 0, i_e + 24 * core.rank_y)

    phase.port("in", "x", {"B": 1, "L": 1, "E": 48}, x, x_lanes)

    def attn_norm_lanes(layer, i0):
        return element(layer, i0 + 24 * core.rank_y)

    phase.port("in", "attn_norm", {"layers": 2, "E": 48}, attn_norm, attn_norm_lanes)

    def wq_lanes(layer, k, f):
        return element(
            layer,
            k + 24 * core.rank_y,
            6 * core.xh + f // 4,
            2 * core.rank_xd + 4 * (f % 2) + (f % 4) // 2,
            where=(f >= 0, f <= 23, 4 * core.rank_xd + f % 4 <= 7),
        )

    phase.port("in", "wq", {"layers": 2, "E": 48, "H": 6, "D": 8}, wq_wk_wv, wq_lanes)

    def wk_lanes(layer, k, f):
        return element(
            layer,
            k + 24 * core.rank_y,
            2 * core.xh + f // 4 - 6,
            2 * core.rank_xd + 4 * (f % 2) + (f % 4) // 2,
            where=(f >= 24, f <= 31, 4 * core.rank_xd + f % 4 <= 7),
        )

    phase.port("in", "wk", {"layers": 2, "E": 48, "G": 2, "D": 8}, wq_wk_wv, wk_lanes)

    def wv_lanes(layer, k, f):
        return element(
            layer,
            k + 24 * core.rank_y,
            2 * core.xh + f // 4 - 8,
            4 * core.rank_xd + f % 4,
            where=(f >= 32, f <= 39),
        )

    phase.port("in", "wv", {"layers": 2, "E": 48, "G": 2, "D": 8}, wq_wk_wv, wv_lanes)

    def rope_frequency_lanes_2(i):
        return element(i + 2 * core.rank_xd)

    phase.port("in", "rope_frequency", {"D_pairs": 4}, rope_frequency_lanes, rope_frequency_lanes_2)

    def wo_lanes(layer, k, f):
        return element(layer, 6 * core.xh + k // 4, 4 * core.rank_xd + k % 4, f + 24 * core.rank_y)

    phase.port("in", "wo", {"layers": 2, "H": 6, "D": 8, "E": 48}, wo, wo_lanes)

    def ffn_norm_lanes(layer, i0):
        return element(layer, i0 + 24 * core.rank_y)

    phase.port("in", "ffn_norm", {"layers": 2, "E": 48}, ffn_norm, ffn_norm_lanes)

    def w_gate_lanes(layer, k, f):
        return element(layer, k + 24 * core.rank_y, f + 64 * core.rank_x, where=(f >= 0, f <= 63))

    phase.port("in", "w_gate", {"layers": 2, "E": 48, "F": 128}, w_gate_w_up, w_gate_lanes)

    def w_up_lanes(layer, k, f):
        return element(
            layer, k + 24 * core.rank_y, f + 64 * core.rank_x - 64, where=(f >= 64, f <= 127)
        )

    phase.port("in", "w_up", {"layers": 2, "E": 48, "F": 128}, w_gate_w_up, w_up_lanes)

    def w_down_lanes(layer, k, f):
        return element(layer, k + 64 * core.rank_x, f + 24 * core.rank_y)

    phase.port("in", "w_down", {"layers": 2, "F": 128, "E": 48}, w_down, w_down_lanes)

    def final_norm_lanes(i0):
        return element(i0 + 24 * core.rank_y)

    phase.port("in", "final_norm", {"E": 48}, final_norm, final_norm_lanes)

    def lm_head_lanes(k, f):
        return element(k + 24 * core.rank_y, f + 128 * core.rank_x)

    phase.port("in", "lm_head", {"E": 48, "V": 256}, lm_head, lm_head_lanes)

    def logits_lanes(i_v):
        return element(0, 0, i_v + 128 * core.rank_x, where=(core.rank_y == 0,))

    phase.port("out", "logits", {"B": 1, "L": 1, "V": 256}, result, logits_lanes)

    return phase.runs(step, {"pos": (0, 15)})
