// chunk_ffn_inner: RMSNorm, both inner products of a feed-forward layer, gated activation.
//
// Written by meshc. Every block has a run of the matrix's rows, which one warp brings through a ring
// of tiles; eight others multiply.
#include "mc.cuh"

namespace chunk_ffn_inner_ {

typedef mc::f16 T;

constexpr int BATCH = 16;
constexpr int WIDTH = 128;  // values of a row
constexpr int ROWS = 384;  // gates and values in turn

constexpr int WARPS = 8;
constexpr int WORKERS = 32 * WARPS;
constexpr int THREADS = WORKERS + 32;
constexpr int TILE_ROWS = 16;
constexpr int TILES = (ROWS + TILE_ROWS - 1) / TILE_ROWS;

// ---- Shared memory, 49280 bytes ---------------------------------------------------------------
constexpr int TILE_BYTES = 4096;
constexpr int STAGES = 6;
constexpr int RING = 0;
constexpr int BARRIERS = 24576;
constexpr int PARTS = 24704;  // sums of the warps for the rows of two tiles
constexpr int VECTORS = 41088;  // normed inputs

MC_INLINE float activated(float v) {
    return v / (1.0f + mc::power_of_two(v * -1.4426950408889634f));
}

}  // namespace chunk_ffn_inner_

// input [BATCH, WIDTH], normed with gain [WIDTH]. matrix [ROWS, WIDTH].
// output [BATCH, ROWS / 2].
extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(chunk_ffn_inner_::THREADS, 1)
    chunk_ffn_inner(const float* __restrict__ input,
        const chunk_ffn_inner_::T* __restrict__ gain,
        const chunk_ffn_inner_::T* __restrict__ matrix,
        float* __restrict__ output) {
    using namespace chunk_ffn_inner_;
    unsigned char* arena = mc::arena();
    mc::Ring<STAGES> ring(arena + BARRIERS, arena + RING, TILE_BYTES);
    const int me = mc::thread(), lane = mc::lane(), warp = mc::warp();
    const int begin = (int)((long long)TILES * mc::block() / mc::blocks());
    const int end = (int)((long long)TILES * (mc::block() + 1) / mc::blocks());

    if (me == 0) {
        ring.set_up(WARPS);
        mc::init_fence();
    }
    mc::block_sync();

    if (warp == WARPS) {
        // The matrix does not change, so its tiles need not wait for the grid before.
        if (lane == 0) {
            for (int i = begin; i < end; i++) {
                const mc::u32 bytes = min(TILE_ROWS, ROWS - i * TILE_ROWS) * WIDTH * (int)sizeof(T);
                ring.acquire(i - begin, bytes);
                ring.fill(i - begin, 0, matrix + (size_t)i * TILE_ROWS * WIDTH, bytes);
            }
        }
        return;
    }
    mc::wait_for_previous_grid();
    mc::let_next_grid_start();
    float* parts = (float*)(arena + PARTS);
    float* vectors = (float*)(arena + VECTORS);
    mc::rms_norm<T, BATCH, WIDTH / 8, WORKERS>(vectors, input, gain, 1e-05f, parts, me, 1);
    const mc::Slice<BATCH, WIDTH / 8, WORKERS> slice(vectors, me);
    for (int i = begin; i < end; i++) {
        const T* tile = (const T*)ring.ready(i - begin);
        const int first = i * TILE_ROWS, count = min(TILE_ROWS, ROWS - first);
        float* part = parts + (i - begin) % 2 * (BATCH * TILE_ROWS * WARPS);
#pragma unroll 4
        for (int row = 0; row < count; row++) {
            float sum[BATCH] = {};
            slice.add_products(tile + row * WIDTH, sum);
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const float all = mc::warp_sum(sum[b]);
                if (lane == 0) part[(b * TILE_ROWS + row) * WARPS + warp] = all;
            }
        }
        ring.release(i - begin);
        mc::group_sync(1, WORKERS);  // the next tile's sums go to the other half
        for (int n = me; n < BATCH * count / 2; n += WORKERS) {
            const int b = n / (count / 2), pair = n % (count / 2);
            const float* both = part + (b * TILE_ROWS + 2 * pair) * WARPS;
            float gate = 0.0f, value = 0.0f;
            for (int w = 0; w < WARPS; w++) {
                gate += both[w];
                value += both[WARPS + w];
            }
            output[b * (ROWS / 2) + first / 2 + pair] = activated(gate) * value;
        }
    }
}
MC_EXPORT(chunk_ffn_inner)
