// chunk_projections: the product with a matrix, of all tokens of a chunk.
//
// Written by meshc. Every block has 4 row groups of the matrix, which it reads once, and multiplies them with
// all tokens: step by step through the width, one warp brings these rows and all tokens' values through
// a ring of tiles; eight others have tokens in turn, and keep their sums in registers.
#include "mc.cuh"

namespace chunk_projections_ {

typedef mc::f16 T;

constexpr int TOKENS = 16;  // the most of a chunk, a multiple of eight
constexpr int WIDTH = 128;  // values of a row
constexpr int ROWS = 512;
constexpr int GROUPS = (ROWS + 15) / 16;
constexpr int BLOCKS = (WIDTH + 15) / 16;  // of 16 x 16 values in a row group

constexpr int WARPS = 8;
constexpr int WORKERS = 32 * WARPS;
constexpr int THREADS = WORKERS + 32;
constexpr int OWN_GROUPS = 4;
constexpr int OWN_EIGHTS = (TOKENS / 8 + WARPS - 1) / WARPS;  // eights of tokens of a warp
constexpr int STEPS = 8;  // blocks of the width in a tile
constexpr int TILES = (BLOCKS + STEPS - 1) / STEPS;

// ---- Shared memory, 123008 bytes ---------------------------------------------------------------
constexpr int TILE_BYTES = STEPS * (OWN_GROUPS * 256 + TOKENS * 16) * (int)sizeof(T);
constexpr int STAGES = 6;
constexpr int BARRIERS = 0;
constexpr int RING = 128;

}  // namespace chunk_projections_

// input [WIDTH / 16, TOKENS, 16]. matrix [GROUPS, BLOCKS, 32, 8]. count [1]: tokens of this chunk.
// output [TOKENS, ROWS].
extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(chunk_projections_::THREADS, 1)
    chunk_projections(const chunk_projections_::T* input, const chunk_projections_::T* __restrict__ matrix,
        const int* count,
        float* output) {
    using namespace chunk_projections_;
    unsigned char* arena = mc::arena();
    mc::Ring<STAGES> ring(arena + BARRIERS, arena + RING, TILE_BYTES);
    const int me = mc::thread(), lane = mc::lane(), warp = mc::warp();
    const int first = mc::block() * OWN_GROUPS, own = min(OWN_GROUPS, GROUPS - first);

    if (me == 0) {
        ring.set_up(WARPS);
        mc::init_fence();
    }
    mc::block_sync();  // this block's mbarriers are ready
    mc::wait_for_previous_grid();
    mc::let_next_grid_start();
    const int tokens = count[0], eights = (tokens + 7) / 8;

    if (warp == WARPS) {
        if (lane != 0) return;
        for (int item = 0; item < TILES; item++) {
            const int at = item * STEPS, steps = min(STEPS, BLOCKS - at);
            const mc::u32 block_bytes = steps * 256 * (mc::u32)sizeof(T);
            const mc::u32 token_bytes = eights * 128 * (mc::u32)sizeof(T);
            ring.acquire(item, own * block_bytes + steps * token_bytes);
            for (int g = 0; g < own; g++) {
                const size_t from = (size_t)(first + g) * BLOCKS + at;
                ring.fill(item, g * STEPS * 256 * (int)sizeof(T), matrix + from * 256, block_bytes);
            }
            for (int s = 0; s < steps; s++) {
                const size_t from = (size_t)(at + s) * TOKENS * 16;
                const int to = (OWN_GROUPS * STEPS * 256 + s * TOKENS * 16) * (int)sizeof(T);
                ring.fill(item, to, input + from, token_bytes);
            }
        }
        return;
    }

    float sums[OWN_EIGHTS][OWN_GROUPS][4];
#pragma unroll
    for (int e = 0; e < OWN_EIGHTS; e++) {
#pragma unroll
        for (int g = 0; g < OWN_GROUPS; g++) {
#pragma unroll
            for (int i = 0; i < 4; i++) sums[e][g][i] = 0.0f;
        }
    }
    for (int item = 0; item < TILES; item++) {
        const T* rows = (const T*)ring.ready(item);
        const T* columns = rows + OWN_GROUPS * STEPS * 256;
        const int steps = BLOCKS % STEPS ? min(STEPS, BLOCKS - item * STEPS) : STEPS;
#pragma unroll 1
        for (int s = 0; s < steps; s++) {
            mc::u32 a[OWN_GROUPS][4] = {};
#pragma unroll
            for (int g = 0; g < OWN_GROUPS; g++) {
                if (g < own) mc::load_fragment(rows + (g * STEPS + s) * 256 + lane * 8, a[g]);
            }
#pragma unroll
            for (int e = 0; e < OWN_EIGHTS; e++) {
                const int eight = warp + e * WARPS;
                if (eight < eights) {
                    mc::u32 b[2];
                    mc::load_column(columns + s * TOKENS * 16, 8 * eight + lane / 4, b);
#pragma unroll
                    for (int g = 0; g < OWN_GROUPS; g++) mc::multiply_16x8x16(sums[e][g], a[g], b, T());
                }
            }
        }
        ring.release(item);
    }

    // ---- What becomes of the sums: a lane has two tokens in each of two rows of a group
#pragma unroll
    for (int e = 0; e < OWN_EIGHTS; e++) {
#pragma unroll
        for (int g = 0; g < OWN_GROUPS; g++) {
            const int eight = warp + e * WARPS;
            if (eight >= eights || g >= own) continue;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = (first + g) * 16 + lane / 4 + i / 2 * 8;
                const int token = 8 * eight + lane % 4 * 2 + i % 2;
                const bool real = row < ROWS && token < tokens;
                float sum = sums[e][g][i];
                if (real) output[token * ROWS + row] = sum;
            }
        }
    }
}
MC_EXPORT(chunk_projections)
