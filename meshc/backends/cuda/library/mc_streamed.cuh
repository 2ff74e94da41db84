// Products of rows of a matrix with more vectors than a block has room for: both come through the ring, the vectors
// rounded already, in blocks of 16 values [BATCH, 16] one behind the other. What fills the last block holds zeros. Rows
// are numbers, or codes that are decoded on the way to tensor cores (mc_codes.cuh).
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

// A block of 16 rows x 16 numbers, as Coded is one of codes.
struct Numbers {
    static constexpr int FRAGMENTS = 1, BYTES = 512;

    // Sums of a row group as they are.
    template <class Sums, class T>
    struct Of : Sums {
        MC_INLINE void finish() {}
    };

    // Adds the products of a block with the same values of the vectors; both in shared memory.
    template <class Sums, class T>
    static MC_INLINE void add(Sums& sums, const unsigned char* block, const T* columns) {
        sums.add((const T*)block, columns);
    }
};

// An item of the ring has some blocks of each of up to MOST row groups, one group behind the other, and behind them the
// same blocks of the vectors: as many as an item has place for, so that few row groups come as fast as many.
template <class Rows, int BATCH, int MOST, int TILE>
struct Streamed {
    static constexpr int BLOCK = Rows::BYTES, VALUES = Rows::FRAGMENTS * BATCH * 16, VECTORS = 2 * VALUES;  // bytes
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
    template <class T, int STAGES, class Flying, class From>
    static MC_INLINE void bring(const Ring<STAGES>& ring, int& item, int groups, const T* vectors, int count,
                                const Flying& flying, From from) {
        const int most = deep(groups);
#pragma unroll 1
        for (int at = 0; at < count; at += most, item++) {
            const int blocks = min(most, count - at);
            const u32 rows = blocks * (u32)BLOCK, columns = blocks * (u32)VECTORS;
            ring.limit(item, flying);
            ring.acquire(item, groups * rows + columns);
#pragma unroll 1
            for (int n = 0; n < groups; n++) {
                ring.fill(item, n * rows, (const unsigned char*)from(n) + (size_t)at * BLOCK, rows);
            }
            ring.fill(item, groups * rows, vectors + (size_t)at * VALUES, columns);
        }
    }

    // By all warps: the sums of ``groups`` row groups, of COUNT blocks, with all vectors, that of row r of group g and
    // vector v at v * STRIDE + 16 g + r once the callers have met. Warps share the groups, and of each the blocks. ALIKE:
    // by as many warps as of MOST groups, so that sums are the same however many groups there are.
    template <int WARPS, int COUNT, class T, bool ALIKE = false, int STAGES>
    static MC_INLINE void multiply(float* sums, const Ring<STAGES>& ring, int& item, int groups) {
        const int group = warp() % groups, shares = WARPS / (ALIKE ? MOST : groups), share = warp() / groups;
        const int most = deep(groups);
        typename Rows::template Of<RowSums<T, BATCH, Columns<BATCH, 1>>, T> own;
#pragma unroll 1
        for (int at = 0; at < COUNT; at += most, item++) {
            const int there = min(most, COUNT - at), blocks = share < shares ? there : 0;
            const unsigned char* all = ring.ready(item);
            const unsigned char* rows = all + group * there * BLOCK;
            const T* columns = (const T*)(all + groups * there * BLOCK);
#pragma unroll(Rows::FRAGMENTS > 1 ? 1 : 2)
            for (int k = ALIKE ? (share + at * (shares - 1)) % shares : share; k < blocks; k += shares) {
                Rows::add(own, rows + k * BLOCK, columns + k * VALUES);
            }
            ring.release(item);
        }
        own.finish();
        group_sync(1, 32 * WARPS);  // nobody reads the sums before these any more
#pragma unroll 1
        for (int turn = 0; turn < shares; turn++) {
            if (share == turn) {
                own.each([&](int row, int vector, float more) {
                    float* sum = sums + vector * STRIDE + group * 16 + row;
                    *sum = turn ? *sum + more : more;
                });
            }
            group_sync(1, 32 * WARPS);
        }
    }
};

}  // namespace mc
