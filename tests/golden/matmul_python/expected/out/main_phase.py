"""Phase main_phase of matmul_main: what every core runs.

Mesh (columns x rows): 3 x 2 cores; element type f32.

A statement works on the memory of each core, on all cores that its guard (on=..) lets
through. Only channels carry data from core to core; wait ends the transfers it names.

Kernels, the result first:
    copy  out = a
    fill  every element becomes `value`
    gemm  out[.., m, n] = a[.., m, k] b[.., k, n], added to out if `accumulate`; b is [.., n, k] if
          `transposed`; products of a leading dim that out has once are added up
"""

from mesh_runtime import Fabric, Hop, Phase, element, memo, wait
from mesh_runtime.kernels import copy, fill, gemm


def main_phase(fabric: Fabric) -> Phase:
    """Bind the program to the cores of ``fabric``."""
    phase = Phase(fabric, "main_phase", interleaved=("y", "x"))
    core = phase.core

    # Memory of each core: name, element type, extents.
    result = phase.buffer("result", "f32", 32, 16, role="out")
    x = phase.buffer("x", "f32", 3, 32, 16, role="in", stacked=1)
    w = phase.buffer("w", "f32", 3, 16, 16, role="weight")
    weight_chunks = phase.buffer("weight_chunks", "f32", 4, 16, 16, stacked=1)

    # Channels: where the messages of each core go.
    ring_x = phase.channel(
        "ring_x",
        Hop(to=(core.y, 1), where=core.x == 0),
        Hop(to=(core.y, core.x - 2), where=core.x >= 2),
        Hop(to=(core.y, 3 - core.x), where=core.x == 1),
    )
    ring_y = phase.channel(
        "ring_y",
        Hop(to=(1, core.x), where=core.y == 0),
        Hop(to=(1 - core.y, core.x), where=core.y == 1),
    )

    # Guards: the cores that take part in a statement.
    @memo
    def ring_x_senders(a):
        return phase.where(a < 3 * core.rank_y)

    def step():
        copy(weight_chunks[:3], w)
        for a in range(3):
            sent = ring_x.send(x[a % 3], on=ring_x_senders(a))
            got = ring_x.recv(x[(a + 2) % 3], on=ring_x_senders(a))
            wait(got, sent)
        fill(result[:32], value=0.0)
        for t in range(5):
            sent_1 = ring_x.send(x[t % 3])
            got_1 = ring_x.recv(x[(t + 2) % 3])
            sent_2 = ring_y.send(weight_chunks[t % 4])
            got_2 = ring_y.recv(weight_chunks[(t + 3) % 4])
            gemm(result[:32], x[t % 3], weight_chunks[t % 4], accumulate=True)
            wait(got_1, got_2, sent_1, sent_2)
        gemm(result[:32], x[2], weight_chunks[1], accumulate=True)

    # Logical tensors: the element that each lane of a buffer holds.
    def x_lanes(s, i, q):
        k = 2 * core.rank_x + s
        home = core.core_x(k // 2)
        lane = q + 16 * (k % 2)
        return element(2 * i + core.rank_y, lane + 32 * core.ring_x(home), where=(s <= 1,))

    phase.port("in", "x", {"M": 64, "K": 96}, x, x_lanes)

    def w_lanes(s, q, f):
        k = (2 * core.rank_x + 3 * core.rank_y + s) % 6
        home = core.core_x(k // 2)
        lane = q + 16 * (k % 2)
        return element(lane + 32 * core.ring_x(home), f + 16 * core.rank_x)

    phase.port("in", "w", {"K": 96, "N": 48}, w, w_lanes)

    def result_lanes(i_m, i_n):
        return element(2 * i_m + core.rank_y, i_n + 16 * core.rank_x)

    phase.port("out", "result", {"M": 64, "N": 48}, result, result_lanes)

    return phase.runs(step)
