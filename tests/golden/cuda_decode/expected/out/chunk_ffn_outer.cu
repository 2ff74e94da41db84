// chunk_ffn_outer: the outer product of a feed-forward layer and its residual sum.
//
// Written by meshc. Every block has a run of the matrix's rows, which one warp brings through a ring
// of tiles; eight others multiply.
#include "mc.cuh"

namespace chunk_ffn_outer_ {

typedef mc::f16 T;

constexpr int BATCH = 16;
constexpr int WIDTH = 192;  // values of a row
constexpr int ROWS = 128;

constexpr int WARPS = 8;
constexpr int WORKERS = 32 * WARPS;
constexpr int THREADS = WORKERS + 32;
constexpr int TILE_ROWS = 16;
constexpr int TILES = (ROWS + TILE_ROWS - 1) / TILE_ROWS;

// ---- Shared memory, 53376 bytes ---------------------------------------------------------------
constexpr int TILE_BYTES = 6144;
constexpr int STAGES = 6;
constexpr int RING = 0;
constexpr int BARRIERS = 36864;
constexpr int PARTS = 36992;  // sums of the warps for the rows of two tiles

}  // namespace chunk_ffn_outer_

// input [BATCH, WIDTH]. matrix [ROWS, WIDTH].
// sums [BATCH, ROWS]: added to the output, then zeroed. output [BATCH, ROWS].
extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(chunk_ffn_outer_::THREADS, 1)
    chunk_ffn_outer(const float* __restrict__ input,
        const chunk_ffn_outer_::T* __restrict__ matrix,
        float* __restrict__ sums,
        float* __restrict__ output) {
    using namespace chunk_ffn_outer_;
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
    const mc::Slice<BATCH, WIDTH / 8, WORKERS> slice(input, me);
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
        for (int n = me; n < BATCH * count; n += WORKERS) {
            const int b = n / count, row = n % count, at = b * ROWS + first + row;
            float sum = 0.0f;
            for (int w = 0; w < WARPS; w++) sum += part[(b * TILE_ROWS + row) * WARPS + w];
            output[at] = sums[at] + sum;
            sums[at] = 0.0f;
        }
    }
}
MC_EXPORT(chunk_ffn_outer)
