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

// An item of the ring has some blocks of each of up to MOST row groups, one group behind the other, and behind them the
// same blocks of the vectors: as many as an item has place for, so that few row groups come as fast as many.
template <int BATCH, int MOST, int TILE>
struct Streamed {
    static constexpr int BLOCK = 256, VECTORS = BATCH * 16;  // values
    static constexpr int PLACE = TILE * (MOST * BLOCK + VECTORS);  // those of an item
    static constexpr int STRIDE = MOST * 16 + 4;  // sums of a vector, apart so that lanes write to different banks

    // How many row groups are multiplied at once, of so many that are left: all rounds have about as many.
    static MC_INLINE int together(int left) {
        const int rounds = (left + MOST - 1) / MOST;
        return (left + rounds - 1) / rounds;
    }

    // Blocks of each of ``groups`` row groups in an item.
    static MC_INLINE int deep(int groups) { return PLACE / (groups * BLOCK + VECTORS); }

    // By one thread: ``count`` blocks of the ``groups`` row groups that begin at from(number), and of the vectors.
    template <class T, int STAGES, class From>
    static MC_INLINE void bring(const Ring<STAGES>& ring, int& item, int groups, const T* vectors, int count,
                                int flying, From from) {
        const int most = deep(groups);
#pragma unroll 1
        for (int at = 0; at < count; at += most, item++) {
            const int blocks = min(most, count - at);
            const u32 rows = blocks * BLOCK * (u32)sizeof(T), columns = blocks * VECTORS * (u32)sizeof(T);
            ring.limit(item, flying);
            ring.acquire(item, groups * rows + columns);
#pragma unroll 1
            for (int n = 0; n < groups; n++) ring.fill(item, n * rows, from(n) + (size_t)at * BLOCK, rows);
            ring.fill(item, groups * rows, vectors + (size_t)at * VECTORS, columns);
        }
    }

    // By all warps: the sums of ``groups`` row groups, of COUNT blocks, with all vectors, that of row r of group g and
    // vector v at v * STRIDE + 16 g + r once the callers have met. Warps share the groups, and of each the blocks.
    template <int WARPS, int COUNT, class T, int STAGES>
    static MC_INLINE void multiply(float* sums, const Ring<STAGES>& ring, int& item, int groups) {
        constexpr int TILES = (BATCH + 7) / 8;
        const int group = warp() % groups, shares = WARPS / groups, share = warp() / groups, most = deep(groups);
        float c[TILES][4];
#pragma unroll
        for (int t = 0; t < TILES; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++) c[t][i] = 0.0f;
        }
#pragma unroll 1
        for (int at = 0; at < COUNT; at += most, item++) {
            const int there = min(most, COUNT - at), blocks = share < shares ? there : 0;
            const T* all = (const T*)ring.ready(item);
            const T* rows = all + group * there * BLOCK + lane() * 8;
            const T* columns = all + groups * there * BLOCK + lane() / 4 * 16 + lane() % 4 * 4;
#pragma unroll 2
            for (int k = share; k < blocks; k += shares) {
                u32 a[4];
                load_fragment(rows + k * BLOCK, a);
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    u32 b[2] = {0, 0};
                    if (BATCH % 8 == 0 || 8 * t + (int)lane() / 4 < BATCH) {
                        load_fragment(columns + k * VECTORS + t * 128, b);
                    }
                    multiply_16x8x16(c[t], a, b, T());
                }
            }
            ring.release(item);
        }
        group_sync(1, 32 * WARPS);  // nobody reads the sums before these any more
#pragma unroll 1
        for (int turn = 0; turn < shares; turn++) {
            if (share == turn) {
#pragma unroll
                for (int t = 0; t < TILES; t++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int row = lane() / 4 + i / 2 * 8, vector = 8 * t + lane() % 4 * 2 + i % 2;
                        float* sum = sums + vector * STRIDE + group * 16 + row;
                        if (BATCH % 8 == 0 || vector < BATCH) *sum = turn ? *sum + c[t][i] : c[t][i];
                    }
                }
            }
            group_sync(1, 32 * WARPS);
        }
    }
};

}  // namespace mc
