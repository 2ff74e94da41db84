"""Phase prefill of tiny_llama_prefill: what every core runs.

Mesh (columns x rows): 2 x 2 cores; element type f32.

A statement works on the memory of each core, on all cores that its guard (on=..) lets
through. Only channels carry data from core to core; wait ends the transfers it names.

Kernels, the result first:
    add          out = a + b
    copy         out = a
    div          out = a / b, b repeated over trailing dims
    exp_sub      out = exp(a - m), m repeated over trailing dims
    fill         every element becomes `value`
    gemm         out[.., m, n] = a[.., m, k] b[.., k, n], added to out if `accumulate`; b is [.., n,
                 k] if `transposed`; products of a leading dim that out has once are added up
    mask_causal  s[.., r, j] = -inf where the key's position key + key_step*j is beyond the query's
                 query + query_step*r, or is not below limit
    mul          out = a * b
    ring_set     state = (0, count): a ring buffer whose first `count` slots are filled
    rms_scale    out[.., e] = a[.., e] / sqrt(s[..] / count + eps) * gain[e]
    rope         out[.., r, 2i:2i+2] = a[.., r, 2i:2i+2] turned by (position + step*r) * freq[i]
    rotate       a[i] = a[(i + by) mod n] over the first dim
    row_max      out[..] = largest of a over trailing dims
    row_sum      out[..] = sum of a over trailing dims
    scale        out = a * factor
    silu         out = a / (1 + exp(-a))
    square_sum   out[..] = sum of a*a over trailing dims
"""

from mesh_runtime import Fabric, Hop, Phase, element, wait
from mesh_runtime.kernels import (
    add,
    copy,
    div,
    exp_sub,
    fill,
    gemm,
    mask_causal,
    mul,
    ring_set,
    rms_scale,
    rope,
    rotate,
    row_max,
    row_sum,
    scale,
    silu,
    square_sum,
)


def prefill(fabric: Fabric) -> Phase:
    """Bind the program to the cores of ``fabric``."""
    phase = Phase(fabric, "prefill", interleaved=("y", "x", "xd"))
    core = phase.core

    # Memory of each core: name, element type, extents.
    x = phase.buffer("x", "f32", 8, 24, role="in")
    q_1_k_1_x_5 = phase.buffer("q_1_k_1_x_5", "f32", 8, 40)
    x_8_x_10 = phase.buffer("x_8_x_10", "f32", 8, 128)
    h_ss = phase.buffer("h.ss", "f32", 8)
    attn_norm = phase.buffer("attn_norm", "f32", 2, 24, role="weight", stacked=1)
    h = phase.buffer("h", "f32", 8, 24)
    left_chunks = phase.buffer("left_chunks", "f32", 2, 8, 24, stacked=1)
    wq_wk_wv = phase.buffer("wq_wk_wv", "f32", 2, 1, 24, 40, role="weight", stacked=1)
    weight_chunks = phase.buffer("weight_chunks", "f32", 2, 24, 40, stacked=1)
    rope_frequency_lanes = phase.buffer("rope_frequency_lanes", "f32", 2, role="weight")
    kv_cache = phase.buffer("kv_cache", "f32", 2, 2, 2, 8, 4, role="state", stacked=2)
    kv_state = phase.buffer("kv_state", "i32", 2, 2, role="state", stacked=1)
    s_3 = phase.buffer("s_3", "f32", 2, 8, 6, 8, stacked=1)
    key_chunks = phase.buffer("key_chunks", "f32", 2, 2, 8, 4, stacked=1)
    score_chunks = phase.buffer("score_chunks", "f32", 2, 8, 6, 8, stacked=1)
    s_max = phase.buffer("s.max", "f32", 8, 6)
    s_sum = phase.buffer("s.sum", "f32", 8, 6)
    x_6 = phase.buffer("x_6", "f32", 8, 6, 4)
    value_chunks = phase.buffer("value_chunks", "f32", 2, 2, 8, 4, stacked=1)
    x_7 = phase.buffer("x_7", "f32", 8, 24)
    left_chunks_1 = phase.buffer("left_chunks_1", "f32", 2, 8, 24, stacked=1)
    wo = phase.buffer("wo", "f32", 2, 1, 24, 24, role="weight", stacked=1)
    weight_chunks_1 = phase.buffer("weight_chunks_1", "f32", 2, 24, 24, stacked=1)
    h_1_ss = phase.buffer("h_1.ss", "f32", 8)
    ffn_norm = phase.buffer("ffn_norm", "f32", 2, 24, role="weight", stacked=1)
    h_1 = phase.buffer("h_1", "f32", 8, 24)
    left_chunks_2 = phase.buffer("left_chunks_2", "f32", 2, 8, 24, stacked=1)
    w_gate_w_up = phase.buffer("w_gate_w_up", "f32", 2, 1, 24, 128, role="weight", stacked=1)
    weight_chunks_2 = phase.buffer("weight_chunks_2", "f32", 2, 24, 128, stacked=1)
    x_12 = phase.buffer("x_12", "f32", 8, 24)
    left_chunks_3 = phase.buffer("left_chunks_3", "f32", 2, 8, 64, stacked=1)
    w_down = phase.buffer("w_down", "f32", 2, 1, 64, 24, role="weight", stacked=1)
    weight_chunks_3 = phase.buffer("weight_chunks_3", "f32", 2, 64, 24, stacked=1)

    # Channels: where the messages of each core go.
    every_x = core.every(2)
    chain_x_1 = phase.channel("chain_x_1", Hop(to=(core.y, core.x - 1), where=core.x >= 1))
    cast_x = phase.channel(
        "cast_x", Hop(to=(core.y, every_x), where=(every_x >= 1) & (core.x == 0))
    )
    ring_x = phase.channel(
        "ring_x",
        Hop(to=(core.y, 1), where=core.x == 0),
        Hop(to=(core.y, 1 - core.x), where=core.x == 1),
    )
    ring_y = phase.channel(
        "ring_y",
        Hop(to=(1, core.x), where=core.y == 0),
        Hop(to=(1 - core.y, core.x), where=core.y == 1),
    )

    # Guards: the cores that take part in a statement.
    x_is_1 = phase.where(core.x == 1)
    x_is_0 = phase.where(core.x == 0)
    cast_x_receivers = phase.where(core.x >= 1)
    ring_x_senders = phase.where(core.rank_y >= 1)
    ring_y_senders = phase.where(core.rank_xd >= 1)

    # Exchanges between cores that occur again and again.
    @phase.recorded
    def all_reduce_add_x(view):
        """Along chain_x_1, cast_x."""
        sent = chain_x_1.send(view, on=x_is_1)
        got = chain_x_1.recv(view, combine="add", on=x_is_0)
        wait(got, sent)
        sent_2 = cast_x.send(view, on=x_is_0)
        got_2 = cast_x.recv(view, on=cast_x_receivers)
        wait(got_2, sent_2)

    @phase.recorded
    def all_reduce_max_x(view):
        """Along chain_x_1, cast_x."""
        sent = chain_x_1.send(view, on=x_is_1)
        got = chain_x_1.recv(view, combine="max", on=x_is_0)
        wait(got, sent)
        sent_2 = cast_x.send(view, on=x_is_0)
        got_2 = cast_x.recv(view, on=cast_x_receivers)
        wait(got_2, sent_2)

    def step(len_):
        extent = (len_ + 1) // 2
        for layer in range(2):
            square_sum(h_ss[:extent], x[:extent])
            all_reduce_add_x(h_ss[:extent])
            rms_scale(h[:extent], x[:extent], h_ss[:extent], attn_norm[layer], count=48, eps=1e-05)
            copy(left_chunks[0, :extent], h[:extent])
            copy(weight_chunks[:1], wq_wk_wv[layer])
            sent_2_2 = ring_x.send(left_chunks[0, :extent], on=ring_x_senders)
            got_2_2 = ring_x.recv(left_chunks[1, :extent], on=ring_x_senders)
            wait(got_2_2, sent_2_2)
            rotate(left_chunks[:2, :extent], by=core.rank_y % 2)
            fill(q_1_k_1_x_5[:extent, :40], value=0.0)
            sent_3 = ring_x.send(left_chunks[0, :extent])
            got_3 = ring_x.recv(left_chunks[1, :extent])
            sent_4 = ring_y.send(weight_chunks[0])
            got_4 = ring_y.recv(weight_chunks[1])
            gemm(
                q_1_k_1_x_5[:extent, :40],
                left_chunks[0, :extent],
                weight_chunks[0],
                accumulate=True,
            )
            wait(got_3, got_4, sent_3, sent_4)
            gemm(
                q_1_k_1_x_5[:extent, :40],
                left_chunks[1, :extent],
                weight_chunks[1],
                accumulate=True,
            )
            rope(
                q_1_k_1_x_5[:extent, :24].shaped(extent, 6, 4).ordered(1, 0, 2),
                q_1_k_1_x_5[:extent, :24].shaped(extent, 6, 4).ordered(1, 0, 2),
                rope_frequency_lanes,
                position=core.rank_y,
                step=2,
            )
            rope(
                q_1_k_1_x_5[:extent, 24:32].shaped(extent, 2, 4).ordered(1, 0, 2),
                q_1_k_1_x_5[:extent, 24:32].shaped(extent, 2, 4).ordered(1, 0, 2),
                rope_frequency_lanes,
                position=core.rank_y,
                step=2,
            )
            copy(
                kv_cache[layer, 0, :, :extent],
                q_1_k_1_x_5[:extent, 24:32].shaped(extent, 2, 4).ordered(1, 0, 2),
            )
            copy(
                kv_cache[layer, 1, :, :extent],
                q_1_k_1_x_5[:extent, 32:40].shaped(extent, 2, 4).ordered(1, 0, 2),
            )
            ring_set(kv_state[layer], count=(len_ - core.rank_y + 1) // 2)
            copy(key_chunks[0, :, :extent], kv_cache[layer, 0, :, :extent])
            sent_5 = ring_y.send(key_chunks[0, :, :extent], on=ring_y_senders)
            got_5 = ring_y.recv(key_chunks[1, :, :extent], on=ring_y_senders)
            wait(got_5, sent_5)
            rotate(key_chunks[:2, :, :extent], by=core.rank_xd % 2)
            fill(score_chunks, value=0.0)
            for t in range(2):
                sent_6 = ring_y.send(key_chunks[t % 2, :, :extent])
                got_6 = ring_y.recv(key_chunks[(t + 1) % 2, :, :extent])
                gemm(
                    score_chunks[t % 2, :extent, :, :extent]
                    .shaped(extent, 2, 3, extent)
                    .ordered(1, 2, 0, 3),
                    q_1_k_1_x_5[:extent, :24].shaped(extent, 2, 3, 4).ordered(1, 2, 0, 3),
                    key_chunks[t % 2, :, :extent].shaped(2, 1, extent, 4),
                    accumulate=True,
                    transposed=True,
                )
                sent_7 = ring_x.send(score_chunks[t % 2, :extent, :, :extent])
                got_7 = ring_x.recv(score_chunks[(t + 1) % 2, :extent, :, :extent])
                wait(got_6, got_7, sent_6, sent_7)
            scale(
                s_3[0, :extent, :, :extent],
                score_chunks[0, :extent, :, :extent],
                factor=0.35355339059327373,
            )
            mask_causal(
                s_3[0, :extent, :, :extent].ordered(1, 0, 2),
                query=core.rank_y,
                query_step=2,
                key=(core.rank_xd + core.rank_y) % 2,
                key_step=2,
                limit=len_,
            )
            row_max(s_max[:extent], s_3[:1, :extent, :, :extent].ordered(1, 2, 0, 3))
            all_reduce_max_x(s_max[:extent])
            exp_sub(
                s_3[:1, :extent, :, :extent].ordered(1, 2, 0, 3),
                s_3[:1, :extent, :, :extent].ordered(1, 2, 0, 3),
                s_max[:extent],
            )
            row_sum(s_sum[:extent], s_3[:1, :extent, :, :extent].ordered(1, 2, 0, 3))
            sent_10 = chain_x_1.send(s_sum[:extent], on=x_is_1)
            got_10 = chain_x_1.recv(s_sum[:extent], combine="add", on=x_is_0)
            wait(got_10, sent_10)
            sent_11 = cast_x.send(s_sum[:extent], on=x_is_0)
            got_11 = cast_x.recv(s_sum[:extent], on=cast_x_receivers)
            copy(value_chunks[0, :, :extent], kv_cache[layer, 1, :, :extent])
            wait(got_11, sent_11)
            sent_12 = ring_y.send(value_chunks[0, :, :extent], on=ring_y_senders)
            got_12 = ring_y.recv(value_chunks[1, :, :extent], on=ring_y_senders)
            wait(got_12, sent_12)
            rotate(value_chunks[:2, :, :extent], by=core.rank_xd % 2)
            fill(x_6[:extent], value=0.0)
            sent_13 = ring_x.send(s_3[0, :extent, :, :extent])
            got_13 = ring_x.recv(s_3[1, :extent, :, :extent])
            sent_14 = ring_y.send(value_chunks[0, :, :extent])
            got_14 = ring_y.recv(value_chunks[1, :, :extent])
            gemm(
                x_6[:extent].shaped(extent, 2, 3, 4).ordered(1, 2, 0, 3),
                s_3[0, :extent, :, :extent].shaped(extent, 2, 3, extent).ordered(1, 2, 0, 3),
                value_chunks[0, :, :extent].shaped(2, 1, extent, 4),
                accumulate=True,
            )
            wait(got_13, got_14, sent_13, sent_14)
            gemm(
                x_6[:extent].shaped(extent, 2, 3, 4).ordered(1, 2, 0, 3),
                s_3[1, :extent, :, :extent].shaped(extent, 2, 3, extent).ordered(1, 2, 0, 3),
                value_chunks[1, :, :extent].shaped(2, 1, extent, 4),
                accumulate=True,
            )
            div(x_6[:extent], x_6[:extent], s_sum[:extent])
            copy(left_chunks_1[0, :extent], x_6[:extent].shaped(extent, 24))
            copy(weight_chunks_1[:1], wo[layer])
            sent_15 = ring_x.send(left_chunks_1[0, :extent], on=ring_x_senders)
            got_15 = ring_x.recv(left_chunks_1[1, :extent], on=ring_x_senders)
            wait(got_15, sent_15)
            rotate(left_chunks_1[:2, :extent], by=core.rank_y % 2)
            fill(x_7[:extent], value=0.0)
            sent_16 = ring_x.send(left_chunks_1[0, :extent])
            got_16 = ring_x.recv(left_chunks_1[1, :extent])
            sent_17 = ring_y.send(weight_chunks_1[0])
            got_17 = ring_y.recv(weight_chunks_1[1])
            gemm(x_7[:extent], left_chunks_1[0, :extent], weight_chunks_1[0], accumulate=True)
            wait(got_16, got_17, sent_16, sent_17)
            gemm(x_7[:extent], left_chunks_1[1, :extent], weight_chunks_1[1], accumulate=True)
            add(x[:extent], x[:extent], x_7[:extent])
            square_sum(h_1_ss[:extent], x[:extent])
            all_reduce_add_x(h_1_ss[:extent])
            rms_scale(
                h_1[:extent], x[:extent], h_1_ss[:extent], ffn_norm[layer], count=48, eps=1e-05
            )
            copy(left_chunks_2[0, :extent], h_1[:extent])
            copy(weight_chunks_2[:1], w_gate_w_up[layer])
            sent_20 = ring_x.send(left_chunks_2[0, :extent], on=ring_x_senders)
            got_20 = ring_x.recv(left_chunks_2[1, :extent], on=ring_x_senders)
            wait(got_20, sent_20)
            rotate(left_chunks_2[:2, :extent], by=core.rank_y % 2)
            fill(x_8_x_10[:extent, :128], value=0.0)
            sent_21 = ring_x.send(left_chunks_2[0, :extent])
            got_21 = ring_x.recv(left_chunks_2[1, :extent])
            sent_22 = ring_y.send(weight_chunks_2[0])
            got_22 = ring_y.recv(weight_chunks_2[1])
            gemm(
                x_8_x_10[:extent, :128],
                left_chunks_2[0, :extent],
                weight_chunks_2[0],
                accumulate=True,
            )
            wait(got_21, got_22, sent_21, sent_22)
            gemm(
                x_8_x_10[:extent, :128],
                left_chunks_2[1, :extent],
                weight_chunks_2[1],
                accumulate=True,
            )
            silu(x_8_x_10[:extent, :64], x_8_x_10[:extent, :64])
            mul(x_8_x_10[:extent, :64], x_8_x_10[:extent, :64], x_8_x_10[:extent, 64:128])
            copy(left_chunks_3[0, :extent], x_8_x_10[:extent, :64])
            copy(weight_chunks_3[:1], w_down[layer])
            sent_23 = ring_x.send(left_chunks_3[0, :extent], on=ring_x_senders)
            got_23 = ring_x.recv(left_chunks_3[1, :extent], on=ring_x_senders)
            wait(got_23, sent_23)
            rotate(left_chunks_3[:2, :extent], by=core.rank_y % 2)
            fill(x_12[:extent], value=0.0)
            sent_24 = ring_x.send(left_chunks_3[0, :extent])
            got_24 = ring_x.recv(left_chunks_3[1, :extent])
            sent_25 = ring_y.send(weight_chunks_3[0])
            got_25 = ring_y.recv(weight_chunks_3[1])
            gemm(x_12[:extent], left_chunks_3[0, :extent], weight_chunks_3[0], accumulate=True)
            wait(got_24, got_25, sent_24, sent_25)
            gemm(x_12[:extent], left_chunks_3[1, :extent], weight_chunks_3[1], accumulate=True)
            add(x[:extent], x[:extent], x_12[:extent])

    # Constants of the program.
    phase.constant("rope_frequency", [1.0, 0.1, 0.01, 0.001])

    # Logical tensors: the element that each lane of a buffer holds.
    def x_lanes(i_l, i_e):
        return element(0, 2 * i_l + core.rank_y, i_e + 24 * core.rank_x)

    phase.port("in", "x", {"B": 1, "L": 16, "E": 48}, x, x_lanes)

    def attn_norm_lanes(layer, i0):
        return element(layer, i0 + 24 * core.rank_x)

    phase.port("in", "attn_norm", {"layers": 2, "E": 48}, attn_norm, attn_norm_lanes)

    def wq_lanes(layer, s, q, f):
        k = (core.rank_x + core.rank_y + s) % 2
        home = core.core_x(k)
        lane = q
        return element(
            layer,
            lane + 24 * core.ring_x(home),
            6 * core.xh + f // 4,
            2 * core.rank_xd + 4 * (f % 2) + (f % 4) // 2,
            where=(f >= 0, f <= 23, 4 * core.rank_xd + f % 4 <= 7),
        )

    phase.port("in", "wq", {"layers": 2, "E": 48, "H": 6, "D": 8}, wq_wk_wv, wq_lanes)

    def wk_lanes(layer, s, q, f):
        k = (core.rank_x + core.rank_y + s) % 2
        home = core.core_x(k)
        lane = q
        return element(
            layer,
            lane + 24 * core.ring_x(home),
            2 * core.xh + f // 4 - 6,
            2 * core.rank_xd + 4 * (f % 2) + (f % 4) // 2,
            where=(f >= 24, f <= 31, 4 * core.rank_xd + f % 4 <= 7),
        )

    phase.port("in", "wk", {"layers": 2, "E": 48, "G": 2, "D": 8}, wq_wk_wv, wk_lanes)

    def wv_lanes(layer, s, q, f):
        k = (core.rank_x + core.rank_y + s) % 2
        home = core.core_x(k)
        lane = q
        return element(
            layer,
            lane + 24 * core.ring_x(home),
            2 * core.xh + f // 4 - 8,
            4 * core.rank_xd + f % 4,
            where=(f >= 32, f <= 39),
        )

    phase.port("in", "wv", {"layers": 2, "E": 48, "G": 2, "D": 8}, wq_wk_wv, wv_lanes)

    def rope_frequency_lanes_2(i):
        return element(i + 2 * core.rank_xd)

    phase.port("in", "rope_frequency", {"D_pairs": 4}, rope_frequency_lanes, rope_frequency_lanes_2)

    def wo_lanes(layer, s, q, f):
        k = (core.rank_x + core.rank_y + s) % 2
        home = core.core_x(k)
        lane = q
        return element(
            layer,
            6 * (home // 2) + lane // 4,
            lane % 4 + 4 * (core.ring_xd(home % 2)),
            f + 24 * core.rank_x,
        )

    phase.port("in", "wo", {"layers": 2, "H": 6, "D": 8, "E": 48}, wo, wo_lanes)

    def ffn_norm_lanes(layer, i0):
        return element(layer, i0 + 24 * core.rank_x)

    phase.port("in", "ffn_norm", {"layers": 2, "E": 48}, ffn_norm, ffn_norm_lanes)

    def w_gate_lanes(layer, s, q, f):
        k = (core.rank_x + core.rank_y + s) % 2
        home = core.core_x(k)
        lane = q
        return element(
            layer, lane + 24 * core.ring_x(home), f + 64 * core.rank_x, where=(f >= 0, f <= 63)
        )

    phase.port("in", "w_gate", {"layers": 2, "E": 48, "F": 128}, w_gate_w_up, w_gate_lanes)

    def w_up_lanes(layer, s, q, f):
        k = (core.rank_x + core.rank_y + s) % 2
        home = core.core_x(k)
        lane = q
        return element(
            layer,
            lane + 24 * core.ring_x(home),
            f + 64 * core.rank_x - 64,
            where=(f >= 64, f <= 127),
        )

    phase.port("in", "w_up", {"layers": 2, "E": 48, "F": 128}, w_gate_w_up, w_up_lanes)

    def w_down_lanes(layer, s, q, f):
        k = (core.rank_x + core.rank_y + s) % 2
        home = core.core_x(k)
        lane = q
        return element(layer, lane + 64 * core.ring_x(home), f + 24 * core.rank_x)

    phase.port("in", "w_down", {"layers": 2, "F": 128, "E": 48}, w_down, w_down_lanes)

    def x_4_lanes(i_l, i_e):
        return element(0, 2 * i_l + core.rank_y, i_e + 24 * core.rank_x)

    phase.port("out", "x_4", {"B": 1, "L": 16, "E": 48}, x, x_4_lanes)

    return phase.runs(step, {"len": (1, 16)})
