// Products of rows of a matrix with more vectors than a block has room for: both come through the ring, the vectors
// rounded already, in blocks of 16 values [BATCH, 16] one behind the other. What fills the last block holds zeros.
#pragma once

#include "mc_collectives.cuh"
#include "mc_fragments.cuh"

namespace mc {

// By the warp that brings: wait until vectors are there, if there are ``some`` tasks for them. ``filled`` counts how
// often they were. No thread may be behind when the next one goes on, or it would take another phase for this one.
MC_INLINE void hear(Barrier* ready, int& filled, bool some) {
    if (some) wait(ready, filled++ & 1), global_copy_fence();
    warp_sync();
}

// An item of the ring has TILE blocks of each of up to MOST row groups, and behind them the same blocks of the vectors.
template <int BATCH, int TILE>
struct Streamed {
    static constexpr int MOST = 8;
    static constexpr int BLOCK = 256, VECTORS = BATCH * 16;  // values
    static constexpr int FIRST = MOST * TILE * BLOCK;  // where the vectors begin
    static constexpr int STRIDE = MOST * 16 + 4;  // sums of a vector, apart so that lanes write to different banks

    // How many row groups are multiplied at once, of so many that are left: all rounds have about as many.
    static MC_INLINE int together(int left) {
        const int rounds = (left + MOST - 1) / MOST;
        return (left + rounds - 1) / rounds;
    }

    // By one thread: ``count`` blocks of the ``groups`` row groups that begin at from(number), and of the vectors.
    template <class T, int STAGES, class From>
    static MC_INLINE void bring(const Ring<STAGES>& ring, int& item, int groups, const T* vectors, int count,
                                int flying, From from) {
#pragma unroll 1
        for (int at = 0; at < count; at += TILE, item++) {
            const int blocks = min(TILE, count - at);
            const u32 rows = blocks * BLOCK * (u32)sizeof(T), columns = blocks * VECTORS * (u32)sizeof(T);
            ring.limit(item, flying);
            ring.acquire(item, groups * rows + columns);
#pragma unroll 1
            for (int n = 0; n < groups; n++) {
                ring.fill(item, n * TILE * BLOCK * (int)sizeof(T), from(n) + (size_t)at * BLOCK, rows);
            }
            ring.fill(item, FIRST * (int)sizeof(T), vectors + (size_t)at * VECTORS, columns);
        }
    }

    // By all warps: the sums of ``groups`` row groups, of COUNT blocks, with all vectors, that of row r of group g and
    // vector v at v * STRIDE + 16 g + r once the callers have met. Warps share the groups, and of each the vectors.
    template <int WARPS, int COUNT, class T, int STAGES>
    static MC_INLINE void multiply(float* sums, const Ring<STAGES>& ring, int& item, int groups) {
        constexpr int TILES = (BATCH + 7) / 8;
        const int group = warp() % groups, shares = WARPS / groups, share = warp() / groups;
        u32 own = 0;  // which eights of the vectors
        for (int t = share; share < shares && t < TILES; t += shares) own |= 1u << t;
        float c[TILES][4];
#pragma unroll
        for (int t = 0; t < TILES; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++) c[t][i] = 0.0f;
        }
#pragma unroll 1
        for (int at = 0; at < COUNT; at += TILE, item++) {
            const T* rows = (const T*)ring.ready(item) + group * TILE * BLOCK + lane() * 8;
            const T* columns = (const T*)ring.place(item) + FIRST + lane() / 4 * 16 + lane() % 4 * 4;
            const int blocks = own ? min(TILE, COUNT - at) : 0;
#pragma unroll 2
            for (int k = 0; k < blocks; k++, rows += BLOCK, columns += VECTORS) {
                u32 a[4];
                load_fragment(rows, a);
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    u32 b[2] = {0, 0};
                    if (!(own >> t & 1)) continue;
                    if (BATCH % 8 == 0 || 8 * t + (int)lane() / 4 < BATCH) load_fragment(columns + t * 128, b);
                    multiply_16x8x16(c[t], a, b, T());
                }
            }
            ring.release(item);
        }
        group_sync(1, 32 * WARPS);  // nobody reads the sums before these any more
#pragma unroll
        for (int t = 0; t < TILES; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = lane() / 4 + i / 2 * 8, vector = 8 * t + lane() % 4 * 2 + i % 2;
                const bool there = BATCH % 8 == 0 || vector < BATCH;
                if (own >> t & 1 && there) sums[vector * STRIDE + group * 16 + row] = c[t][i];
            }
        }
        group_sync(1, 32 * WARPS);
    }
};

}  // namespace mc
