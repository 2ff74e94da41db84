"""Phase prefill of tiny_llama_prefill: what every core runs.

Mesh (columns x rows): 1 x 2 cores; element type f32.

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
    x = phase.buffer("x", "f32", 4, 48, role="in")
    q_1_k_1_x_5 = phase.buffer("q_1_k_1_x_5", "f32", 4, 80)
    x_8_x_10 = phase.buffer("x_8_x_10", "f32", 4, 256)
    h_ss = phase.buffer("h.ss", "f32", 4)
    attn_norm = phase.buffer("attn_norm", "f32", 1, 48, role="weight", stacked=1)
    h = phase.buffer("h", "f32", 4, 48)
    left_chunks = phase.buffer("left_chunks", "f32", 2, 4, 24)
    wq_wk_wv = phase.buffer("wq_wk_wv", "f32", 1, 1, 24, 80, role="weight", stacked=1)
    weight_chunks = phase.buffer("weight_chunks", "f32", 2, 24, 80, stacked=1)
    rope_frequency_lanes = phase.buffer("rope_frequency_lanes", "f32", 4, role="weight")
    kv_cache = phase.buffer("kv_cache", "f32", 1, 2, 2, 2, 4, 8, role="state", stacked=3)
    kv_state = phase.buffer("kv_state", "i32", 1, 2, 2, role="state", stacked=2)
    s_3 = phase.buffer("s_3", "f32", 2, 4, 6, 4)
    key_chunks = phase.buffer("key_chunks", "f32", 2, 2, 4, 8, stacked=1)
    score_chunks = phase.buffer("score_chunks", "f32", 2, 4, 6, 4)
    s_max = phase.buffer("s.max", "f32", 4, 6)
    s_sum = phase.buffer("s.sum", "f32", 4, 6)
    x_6 = phase.buffer("x_6", "f32", 4, 6, 8)
    value_chunks = phase.buffer("value_chunks", "f32", 2, 2, 4, 8, stacked=1)
    x_7 = phase.buffer("x_7", "f32", 4, 48)
    left_chunks_1 = phase.buffer("left_chunks_1", "f32", 2, 4, 24)
    left_flat = phase.buffer("left_flat", "f32", 4, 48)
    wo = phase.buffer("wo", "f32", 1, 1, 24, 48, role="weight", stacked=1)
    weight_chunks_1 = phase.buffer("weight_chunks_1", "f32", 2, 24, 48, stacked=1)
    h_1_ss = phase.buffer("h_1.ss", "f32", 4)
    ffn_norm = phase.buffer("ffn_norm", "f32", 1, 48, role="weight", stacked=1)
    h_1 = phase.buffer("h_1", "f32", 4, 48)
    left_chunks_2 = phase.buffer("left_chunks_2", "f32", 2, 4, 24)
    w_gate_w_up = phase.buffer("w_gate_w_up", "f32", 1, 1, 24, 256, role="weight", stacked=1)
    weight_chunks_2 = phase.buffer("weight_chunks_2", "f32", 2, 24, 256, stacked=1)
    x_12 = phase.buffer("x_12", "f32", 4, 48)
    left_chunks_3 = phase.buffer("left_chunks_3", "f32", 2, 4, 64)
    w_down = phase.buffer("w_down", "f32", 1, 1, 64, 48, role="weight", stacked=1)
    weight_chunks_3 = phase.buffer("weight_chunks_3", "f32", 2, 64, 48, stacked=1)

    # Channels: where the messages of each core go.
    ring_y = phase.channel(
        "ring_y",
        Hop(to=(1, core.x), where=core.y == 0),
        Hop(to=(1 - core.y, core.x), where=core.y == 1),
    )

    def step(len_, request):
        extent = (len_ + 1) // 2
        square_sum(h_ss[:extent], x[:extent])
        rms_scale(h[:extent], x[:extent], h_ss[:extent], attn_norm[0], count=48, eps=1e-05)
        for c in range(2):
            copy(left_chunks[c % 2, :extent], h[:extent, 24 * c : 24 * c + 24])
        copy(weight_chunks[:1], wq_wk_wv[0])
        rotate(left_chunks[:2, :extent], by=core.rank_y)
        fill(q_1_k_1_x_5[:extent, :80], value=0.0)
        sent = ring_y.send(weight_chunks[0])
        got = ring_y.recv(weight_chunks[1])
        gemm(q_1_k_1_x_5[:extent, :80], left_chunks[0, :extent], weight_chunks[0], accumulate=True)
        wait(got, sent)
        gemm(q_1_k_1_x_5[:extent, :80], left_chunks[1, :extent], weight_chunks[1], accumulate=True)
        rope(
            q_1_k_1_x_5[:extent, :48].shaped(extent, 6, 8).ordered(1, 0, 2),
            q_1_k_1_x_5[:extent, :48].shaped(extent, 6, 8).ordered(1, 0, 2),
            rope_frequency_lanes,
            position=core.rank_y,
            step=2,
        )
        rope(
            q_1_k_1_x_5[:extent, 48:64].shaped(extent, 2, 8).ordered(1, 0, 2),
            q_1_k_1_x_5[:extent, 48:64].shaped(extent, 2, 8).ordered(1, 0, 2),
            rope_frequency_lanes,
            position=core.rank_y,
            step=2,
        )
        copy(
            kv_cache[0, request, 0, :, :extent],
            q_1_k_1_x_5[:extent, 48:64].shaped(extent, 2, 8).ordered(1, 0, 2),
        )
        copy(
            kv_cache[0, request, 1, :, :extent],
            q_1_k_1_x_5[:extent, 64:80].shaped(extent, 2, 8).ordered(1, 0, 2),
        )
        ring_set(kv_state[0, request], count=(len_ - core.rank_y + 1) // 2)
        copy(key_chunks[0, :, :extent], kv_cache[0, request, 0, :, :extent])
        fill(score_chunks, value=0.0)
        for t in range(2):
            sent_1 = ring_y.send(key_chunks[t % 2, :, :extent])
            got_1 = ring_y.recv(key_chunks[(t + 1) % 2, :, :extent])
            gemm(
                score_chunks[t % 2, :extent, :, :extent]
                .shaped(extent, 2, 3, extent)
                .ordered(1, 2, 0, 3),
                q_1_k_1_x_5[:extent, :48].shaped(extent, 2, 3, 8).ordered(1, 2, 0, 3),
                key_chunks[t % 2, :, :extent].shaped(2, 1, extent, 8),
                accumulate=True,
                transposed=True,
            )
            wait(got_1, sent_1)
        for m in range(2):
            scale(
                s_3[m, :extent, :, :extent],
                score_chunks[m % 2, :extent, :, :extent],
                factor=0.35355339059327373,
            )
        for m_1 in range(2):
            mask_causal(
                s_3[m_1, :extent, :, :extent].ordered(1, 0, 2),
                query=core.rank_y,
                query_step=2,
                key=(m_1 + core.rank_y) % 2,
                key_step=2,
                limit=len_,
            )
        row_max(s_max[:extent], s_3[:2, :extent, :, :extent].ordered(1, 2, 0, 3))
        exp_sub(
            s_3[:2, :extent, :, :extent].ordered(1, 2, 0, 3),
            s_3[:2, :extent, :, :extent].ordered(1, 2, 0, 3),
            s_max[:extent],
        )
        row_sum(s_sum[:extent], s_3[:2, :extent, :, :extent].ordered(1, 2, 0, 3))
        copy(value_chunks[0, :, :extent], kv_cache[0, request, 1, :, :extent])
        fill(x_6[:extent], value=0.0)
        sent_2 = ring_y.send(value_chunks[0, :, :extent])
        got_2 = ring_y.recv(value_chunks[1, :, :extent])
        gemm(
            x_6[:extent].shaped(extent, 2, 3, 8).ordered(1, 2, 0, 3),
            s_3[0, :extent, :, :extent].shaped(extent, 2, 3, extent).ordered(1, 2, 0, 3),
            value_chunks[0, :, :extent].shaped(2, 1, extent, 8),
            accumulate=True,
        )
        wait(got_2, sent_2)
        gemm(
            x_6[:extent].shaped(extent, 2, 3, 8).ordered(1, 2, 0, 3),
            s_3[1, :extent, :, :extent].shaped(extent, 2, 3, extent).ordered(1, 2, 0, 3),
            value_chunks[1, :, :extent].shaped(2, 1, extent, 8),
            accumulate=True,
        )
        div(x_6[:extent], x_6[:extent], s_sum[:extent])
        copy(left_flat[:extent], x_6[:extent].shaped(extent, 48))
        for c_1 in range(2):
            copy(left_chunks_1[c_1 % 2, :extent], left_flat[:extent, 24 * c_1 : 24 * c_1 + 24])
        copy(weight_chunks_1[:1], wo[0])
        rotate(left_chunks_1[:2, :extent], by=core.rank_y)
        fill(x_7[:extent], value=0.0)
        sent_3 = ring_y.send(weight_chunks_1[0])
        got_3 = ring_y.recv(weight_chunks_1[1])
        gemm(x_7[:extent], left_chunks_1[0, :extent], weight_chunks_1[0], accumulate=True)
        wait(got_3, sent_3)
        gemm(x_7[:extent], left_chunks_1[1, :extent], weight_chunks_1[1], accumulate=True)
        add(x[:extent], x[:extent], x_7[:extent])
        square_sum(h_1_ss[:extent], x[:extent])
        rms_scale(h_1[:extent], x[:extent], h_1_ss[:extent], ffn_norm[0], count=48, eps=1e-05)
        for c_2 in range(2):
            copy(left_chunks_2[c_2 % 2, :extent], h_1[:extent, 24 * c_2 : 24 * c_2 + 24])
        copy(weight_chunks_2[:1], w_gate_w_up[0])
        rotate(left_chunks_2[:2, :extent], by=core.rank_y)
        fill(x_8_x_10[:extent, :256], value=0.0)
        sent_4 = ring_y.send(weight_chunks_2[0])
        got_4 = ring_y.recv(weight_chunks_2[1])
        gemm(
            x_8_x_10[:extent, :256], left_chunks_2[0, :extent], weight_chunks_2[0], accumulate=True
        )
        wait(got_4, sent_4)
        gemm(
            x_8_x_10[:extent, :256], left_chunks_2[1, :extent], weight_chunks_2[1], accumulate=True
        )
        silu(x_8_x_10[:extent, :128], x_8_x_10[:extent, :128])
        mul(x_8_x_10[:extent, :128], x_8_x_10[:extent, :128], x_8_x_10[:extent, 128:256])
        for c_3 in range(2):
            copy(left_chunks_3[c_3 % 2, :extent], x_8_x_10[:extent, 64 * c_3 : 64 * c_3 + 64])
        copy(weight_chunks_3[:1], w_down[0])
        rotate(left_chunks_3[:2, :extent], by=core.rank_y)
        fill(x_12[:extent], value=0.0)
        sent_5 = ring_y.send(weight_chunks_3[0])
        got_5 = ring_y.recv(weight_chunks_3[1])
        gemm(x_12[:extent], left_chunks_3[0, :extent], weight_chunks_3[0], accumulate=True)
        wait(got_5, sent_5)
        gemm(x_12[:extent], left_chunks_3[1, :extent], weight_chunks_3[1], accumulate=True)
        add(x[:extent], x[:extent], x_12[:extent])

    # Constants of the program.
    phase.constant("rope_frequency", [1.0, 0.1, 0.01, 0.001])

    # Logical tensors: the element that each lane of a buffer holds.
    def x_lanes(i_l, i_e):
        return element(0, 2 * i_l + core.rank_y, i_e + 48 * core.rank_x)

    phase.port("in", "x", {"B": 1, "L": 8, "E": 48}, x, x_lanes)

    def attn_norm_lanes(layer, i0):
        return element(layer, i0 + 48 * core.rank_x)

    phase.port("in", "attn_norm", {"layers": 1, "E": 48}, attn_norm, attn_norm_lanes)

    def wq_lanes(layer, s, q, f):
        k = (core.rank_y + s) % 2
        home = core.core_x(k // 2)
        lane = q + 24 * (k % 2)
        return element(
            layer,
            lane + 48 * core.ring_x(home),
            6 * core.xh + f // 8,
            4 * core.rank_xd + 4 * (f % 2) + (f % 8) // 2,
            where=(f >= 0, f <= 47, 8 * core.rank_xd + f % 8 <= 7),
        )

    phase.port("in", "wq", {"layers": 1, "E": 48, "H": 6, "D": 8}, wq_wk_wv, wq_lanes)

    def wk_lanes(layer, s, q, f):
        k = (core.rank_y + s) % 2
        home = core.core_x(k // 2)
        lane = q + 24 * (k % 2)
        return element(
            layer,
            lane + 48 * core.ring_x(home),
            2 * core.xh + f // 8 - 6,
            4 * core.rank_xd + 4 * (f % 2) + (f % 8) // 2,
            where=(f >= 48, f <= 63, 8 * core.rank_xd + f % 8 <= 7),
        )

    phase.port("in", "wk", {"layers": 1, "E": 48, "G": 2, "D": 8}, wq_wk_wv, wk_lanes)

    def wv_lanes(layer, s, q, f):
        k = (core.rank_y + s) % 2
        home = core.core_x(k // 2)
        lane = q + 24 * (k % 2)
        return element(
            layer,
            lane + 48 * core.ring_x(home),
            2 * core.xh + f // 8 - 8,
            8 * core.rank_xd + f % 8,
            where=(f >= 64, f <= 79),
        )

    phase.port("in", "wv", {"layers": 1, "E": 48, "G": 2, "D": 8}, wq_wk_wv, wv_lanes)

    def rope_frequency_lanes_2(i):
        return element(i + 4 * core.rank_xd)

    phase.port("in", "rope_frequency", {"D_pairs": 4}, rope_frequency_lanes, rope_frequency_lanes_2)

    def wo_lanes(layer, s, q, f):
        k = (core.rank_y + s) % 2
        home = core.core_x(k // 2)
        lane = q + 24 * (k % 2)
        return element(
            layer, 6 * home + lane // 8, lane % 8 + 8 * core.ring_xd(0), f + 48 * core.rank_x
        )

    phase.port("in", "wo", {"layers": 1, "H": 6, "D": 8, "E": 48}, wo, wo_lanes)

    def ffn_norm_lanes(layer, i0):
        return element(layer, i0 + 48 * core.rank_x)

    phase.port("in", "ffn_norm", {"layers": 1, "E": 48}, ffn_norm, ffn_norm_lanes)

    def w_gate_lanes(layer, s, q, f):
        k = (core.rank_y + s) % 2
        home = core.core_x(k // 2)
        lane = q + 24 * (k % 2)
        return element(
            layer, lane + 48 * core.ring_x(home), f + 128 * core.rank_x, where=(f >= 0, f <= 127)
        )

    phase.port("in", "w_gate", {"layers": 1, "E": 48, "F": 128}, w_gate_w_up, w_gate_lanes)

    def w_up_lanes(layer, s, q, f):
        k = (core.rank_y + s) % 2
        home = core.core_x(k // 2)
        lane = q + 24 * (k % 2)
        return element(
            layer,
            lane + 48 * core.ring_x(home),
            f + 128 * core.rank_x - 128,
            where=(f >= 128, f <= 255),
        )

    phase.port("in", "w_up", {"layers": 1, "E": 48, "F": 128}, w_gate_w_up, w_up_lanes)

    def w_down_lanes(layer, s, q, f):
        k = (core.rank_y + s) % 2
        home = core.core_x(k // 2)
        lane = q + 64 * (k % 2)
        return element(layer, lane + 128 * core.ring_x(home), f + 48 * core.rank_x)

    phase.port("in", "w_down", {"layers": 1, "F": 128, "E": 48}, w_down, w_down_lanes)

    def x_4_lanes(i_l, i_e):
        return element(0, 2 * i_l + core.rank_y, i_e + 48 * core.rank_x)

    phase.port("out", "x_4", {"B": 1, "L": 8, "E": 48}, x, x_4_lanes)

    return phase.runs(step, {"len": (1, 8), "request": (0, 1)})
