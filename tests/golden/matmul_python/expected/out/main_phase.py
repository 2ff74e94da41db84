"""Phase main_phase of matmul_main: what every core runs.

Mesh (columns x rows): 3 x 2 cores; element type f32.

A statement works on the memory of each core, on all cores that its guard (on=..) lets
through. Only channels carry data from core to core; wait ends the transfers it names.

Kernels, the result first:
    copy    out = a
    fill    every element becomes `value`
    gemm    out[.., m, n] = a[.., m, k] b[.., k, n], added to out if `accumulate`; b is [.., n, k]
            if `transposed`
    rotate  a[i] = a[(i + by) mod n] over the first dim
"""

from mesh_runtime import Fabric, Hop, Phase, element, memo, wait
from mesh_runtime.kernels import copy, fill, gemm, rotate


def main_phase(fabric: Fabric) -> Phase:
    """Bind the program to the cores of ``fabric``."""
    phase = Phase(fabric, "main_phase", interleaved=("y", "x", "xd"))
    core = phase.core

    # Memory of each core: name, element type, extents.
    x = phase.buffer("x", "f32", 32, 32, role="in")
    result = phase.buffer("result", "f32", 32, 16, role="out")
    w = phase.buffer("w", "f32", 3, 16, 16, role="weight")
    left_chunks = phase.buffer("left_chunks", "f32", 3, 32, 16)
    weight_chunks = phase.buffer("weight_chunks", "f32", 4, 16, 16)

    # Channels: where the messages of each core go.
    ring_x = phase.channel(
        "ring_x",
        Hop(to=(core.y, 1), where=core.x == 0),
        Hop(to=(core.y, core.x - 2), where=(core.x >= 2) & (core.x % 2 == 0)),
        Hop(to=(core.y, core.x + 2), where=(core.x <= 0) & (core.x % 2 == 1)),
        Hop(to=(core.y, 3 - core.x), where=(core.x >= 1) & (core.x % 2 == 1)),
    )
    ring_y = phase.channel(
        "ring_y",
        Hop(to=(1, core.x), where=core.y == 0),
        Hop(to=(core.y - 2, core.x), where=(core.y >= 2) & (core.y % 2 == 0)),
        Hop(to=(core.y + 2, core.x), where=(core.y <= -1) & (core.y % 2 == 1)),
        Hop(to=(1 - core.y, core.x), where=(core.y >= 0) & (core.y % 2 == 1)),
    )

    # Guards: the cores that take part in a statement.
    @memo
    def ring_x_senders(a):
        return phase.where(a < 3 * core.rank_y)

    def step():
        for c in range(2):
            copy(left_chunks[c % 3, :32], x[:32, 16 * c : 16 * c + 16])
        for a in range(3):
            sent = ring_x.send(left_chunks[a % 3, :32], on=ring_x_senders(a))
            got = ring_x.recv(left_chunks[(a + 2) % 3, :32], on=ring_x_senders(a))
            wait(got, sent)
        rotate(left_chunks[:3, :32], by=3 * core.rank_y)
        copy(weight_chunks[:3], w)
        fill(result[:32], value=0.0)
        for t in range(5):
            sent_1 = ring_x.send(left_chunks[t % 3, :32])
            got_1 = ring_x.recv(left_chunks[(t + 2) % 3, :32])
            sent_2 = ring_y.send(weight_chunks[t % 4])
            got_2 = ring_y.recv(weight_chunks[(t + 3) % 4])
            gemm(result[:32], left_chunks[t % 3, :32], weight_chunks[t % 4], accumulate=True)
            wait(got_1, got_2, sent_1, sent_2)
        gemm(result[:32], left_chunks[2, :32], weight_chunks[1], accumulate=True)

    # Logical tensors: the element that each lane of a buffer holds.
    def x_lanes(i_m, i_k):
        return element(2 * i_m + core.rank_y, i_k + 32 * core.rank_x)

    phase.port("in", "x", {"M": 64, "K": 96}, x, x_lanes)

    def w_lanes(s, q, f):
        k = (2 * core.rank_x + 3 * core.rank_y + s) % 6
        home = core.core_x(k // 2)
        lane = q + 16 * (k % 2)
        return element(lane + 32 * core.ring_x(home), f + 16 * core.rank_x, where=(lane <= 31,))

    phase.port("in", "w", {"K": 96, "N": 48}, w, w_lanes)

    def result_lanes(i_m, i_n):
        return element(2 * i_m + core.rank_y, i_n + 16 * core.rank_x)

    phase.port("out", "result", {"M": 64, "N": 48}, result, result_lanes)

    return phase.runs(step)
