// Products of a few vectors with a matrix on tensor cores.
//
// In global memory the matrix lies in blocks of 16 rows x 16 values (512 bytes, block after block of
// a row group), each in the order in which the lanes of a warp hold it: lane 4 g + q has values
// 4 q .. 4 q + 3 of rows g and g + 8, first two of either row, then two (packing.in_fragments). The
// order of products in a sum is free, so the values of the right operand are taken in the same
// permutation: a lane's share of a vector is four neighbours. Rows and widths are filled up with
// zeros to whole blocks.
//
// The vectors, f32, are the columns of the right operand, which has 16-bit values. A few vectors
// leave columns free: each is then two columns, its rounded values and what rounding left.
#pragma once

#include "mc_words.cuh"

namespace mc {

// Where value ``k`` of a row of WIDTH values lies.
template <int WIDTH>
MC_INLINE size_t in_fragments(int row, int k) {
    const size_t block = (size_t)(row / 16) * ((WIDTH + 15) / 16) + k / 16;
    return (block * 32 + row % 8 * 4 + k % 16 / 4) * 8 + k % 4 / 2 * 4 + row % 16 / 8 * 2 + k % 2;
}

template <int BATCH, int PARTS_ = BATCH <= 4 ? 2 : 1>
struct Columns {
    static constexpr int PARTS = PARTS_;  // of a vector
    static constexpr int COUNT = BATCH * PARTS;
    static constexpr int TILES = (COUNT + 7) / 8;  // of the tensor cores' eight columns
    static constexpr int STEP = 16 * COUNT;  // values per block of 16: [COUNT, 16]
    static constexpr bool TOGETHER = false;  // whether all lanes of a warp put values, if only some have any

    // Values k .. k + 7 of vector ``b``, k a multiple of eight, into shared memory.
    template <class T>
    static MC_INLINE void put(T* columns, int b, int k, const float* v, bool = true) {
        T* to = columns + k / 16 * STEP + b * PARTS * 16 + k % 16;
        float left[8];
#pragma unroll
        for (int i = 0; i < 8; i++) left[i] = v[i];
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            store8(to + part * 16, left);
#pragma unroll
            for (int i = 0; i < 8; i++) left[i] -= widen(narrow<T>(left[i]));
        }
    }
};

// What a lane has of the products of 16 rows with all vectors.
template <class T, int BATCH, class Of = Columns<BATCH>>
struct RowSums {
    typedef Of C;
    float c[C::TILES][4];

    // Of zeros.
    MC_INLINE RowSums() {
#pragma unroll
        for (int t = 0; t < C::TILES; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++) c[t][i] = 0.0f;
        }
    }

    // Adds the products of a block with the same 16 values of the vectors; both in shared memory.
    MC_INLINE void add(const T* block, const T* columns) {
        u32 a[4];
        load_fragment(block + lane() * 8, a);
#pragma unroll
        for (int t = 0; t < C::TILES; t++) {
            const int column = 8 * t + lane() / 4;
            u32 b[2] = {0, 0};
            if (C::COUNT % 8 == 0 || column < C::COUNT) {
                load_fragment(columns + column * 16 + lane() % 4 * 4, b);
            }
            multiply_16x8x16(c[t], a, b, T());
        }
    }

    // Calls take(row of the 16, vector, sum) for each sum that this lane has.
    template <class Take>
    MC_INLINE void each(Take take) const {
        const int q = lane() % 4;
#pragma unroll
        for (int t = 0; t < C::TILES; t++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = lane() / 4 + 8 * half;
                const float* two = c[t] + 2 * half;
                if (C::PARTS == 2) {
                    if (BATCH == 4 || q < BATCH) take(row, q, two[0] + two[1]);
                } else {
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const int vector = 8 * t + 2 * q + i;
                        if (BATCH % 8 == 0 || vector < BATCH) take(row, vector, two[i]);
                    }
                }
            }
        }
    }
};

// Sums of one row group that WARPS warps have parts of, added in the order of the warps.
// ``parts`` holds WARPS x BATCH x 16 floats of shared memory; between put() by all and all() by all
// the callers meet.
template <class T, int BATCH, int WARPS>
struct JoinedSums {
    static constexpr int COUNT = BATCH * 16;
    static constexpr int BYTES = WARPS * COUNT * (int)sizeof(float);

    template <class Sums>
    static MC_INLINE void put(float* parts, const Sums& sums) {
        float* own = parts + warp() * COUNT;
        sums.each([&](int row, int vector, float sum) { own[vector * 16 + row] = sum; });
    }

    // ``at`` is 16 times the vector plus the row.
    static MC_INLINE float all(const float* parts, int at) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += parts[w * COUNT + at];
        return sum;
    }

    // Those of four rows, the first of which is a multiple of four.
    static MC_INLINE float4 four(const float* parts, int at) {
        float4 sum = *(const float4*)(parts + at);
#pragma unroll
        for (int w = 1; w < WARPS; w++) {
            const float4 more = *(const float4*)(parts + w * COUNT + at);
            sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
        }
        return sum;
    }
};

// Producer: brings ``count`` blocks through a ring, ``tile_blocks`` to an item.
template <class T, int STAGES>
MC_INLINE void bring_blocks(const Ring<STAGES>& ring, int& item, const T* from, int count,
                            int tile_blocks) {
    for (int at = 0; at < count; at += tile_blocks, item++) {
        const u32 bytes = min(tile_blocks, count - at) * 256 * (u32)sizeof(T);
        ring.acquire(item, bytes);
        ring.fill(item, 0, from + (size_t)at * 256, bytes);
    }
}

// Columns of which all blocks are there.
struct There {
    MC_INLINE int until(int, int count, int, int = 1) const { return count; }
};

// Consumers: one row group of ``count`` blocks that come so, WARPS warps having parts of its sums
// (JoinedSums). Columns may be ``coming``: no tile waits whose own are there.
template <int WARPS, class T, int BATCH, int STAGES, class Coming = There>
MC_INLINE void add_row_group(RowSums<T, BATCH>& sum, const Ring<STAGES>& ring, int& item,
                             const T* columns, int count, int tile_blocks, Coming&& coming = There()) {
    const bool whole = tile_blocks % WARPS == 0 && count % tile_blocks == 0;  // warps have as many blocks of each tile
    int at = 0;
    do {
        const int end = coming.until(at, count, tile_blocks);
#pragma unroll 1
        for (; at < end; at += tile_blocks, item++) {
            const T* tile = (const T*)ring.ready(item);
            const T* own = columns + at * Columns<BATCH>::STEP;
            const int blocks = whole ? tile_blocks : min(tile_blocks, count - at);
            if (tile_blocks % WARPS == 0 && blocks == tile_blocks) {
                const T *block = tile + warp() * 256, *of = own + warp() * Columns<BATCH>::STEP;
#pragma unroll 4
                for (int k = tile_blocks; k > 0; k -= WARPS, block += WARPS * 256, of += WARPS * Columns<BATCH>::STEP) {
                    sum.add(block, of);
                }
            } else {
#pragma unroll 1
                for (int k = warp(); k < blocks; k += WARPS) {
                    sum.add(tile + k * 256, own + k * Columns<BATCH>::STEP);
                }
            }
            ring.release(item);
        }
    } while (at < count);
}

// How WORKERS threads read vectors of WIDTH floats, a multiple of eight, as if zeros filled the last 16.
template <int WIDTH, int WORKERS>
struct Filled {
    static constexpr int CHUNKS = (WIDTH + 15) / 16 * 2;  // of eight
    static constexpr int OWN = (CHUNKS + WORKERS - 1) / WORKERS;  // of a thread

    // Eight values of a vector in global or shared memory.
    static MC_INLINE void load(const float* vector, int k, float* v) {
        float4 low = {}, high = {};
        if (WIDTH % 16 == 0 || k < WIDTH) {
            low = *(const float4*)(vector + k), high = *(const float4*)(vector + k + 4);
        }
        v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
        v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    }

    // The thread's N chunks from its ``first``th on, all asked for before one is waited for, read as ``words`` are
    // (mc_words.cuh). Chunks that there are not are zeros.
    template <int N, class Words>
    static MC_INLINE void load_own(const float* vector, int first, u32 me, float (&v)[N][8], const Words& words) {
        const float* from[N];
        u32 wanted = 0;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int k = ((int)me + (first + n) * WORKERS) * 8;
            from[n] = vector + k;
            if ((first + n + 1) * WORKERS * 8 <= WIDTH || k < WIDTH) wanted |= 1u << n;
        }
        words.eights(from, wanted, v);
    }
};

// What a thread needs of a gain [WIDTH], read before it is needed.
template <class T, int WIDTH, int WORKERS>
struct Gains {
    typedef Filled<WIDTH, WORKERS> F;
    static constexpr bool HELD = F::OWN <= 4;  // in registers
    const T* gain;
    u32 words[HELD ? F::OWN : 1][4];

    MC_INLINE Gains(const T* gain, u32 me) : gain(gain) {
#pragma unroll
        for (int n = 0; HELD && n < F::OWN; n++) load(n, me, words[n]);
    }

    // The thread's ``n``th eight values.
    MC_INLINE void get(int n, u32 me, float* v) const {
        u32 late[4];
        if (HELD) return widen8(words[HELD ? n : 0], v, T());
        load(n, me, late);
        widen8(late, v, T());
    }

private:
    MC_INLINE void load(int n, u32 me, u32 (&to)[4]) const {
        const int k = (me + n * WORKERS) * 8;
#pragma unroll
        for (int i = 0; i < 4; i++) to[i] = 0;
        if (k < WIDTH) load_constant(gain + k, to);
    }
};

// Values ``first`` .. ``end`` (multiples of 16) of BATCH vectors as columns, by WORKERS threads numbered
// ``me``, which meet before anybody reads.
template <class T, int BATCH, int WIDTH, int WORKERS>
MC_INLINE void put_columns(T* columns, const float* from, u32 me, int first = 0,
                           int end = (WIDTH + 15) / 16 * 16) {
    const int chunks = (end - first) / 8;
    for (int i = me; i < BATCH * chunks; i += WORKERS) {
        const int b = i / chunks, k = i % chunks * 8;
        float v[8];
        Filled<WIDTH, WORKERS>::load(from + b * WIDTH, first + k, v);
        Columns<BATCH>::put(columns, b, k, v);
    }
}

// The same with RMSNorm and a gain. ``squares`` holds BATCH x WORKERS / 32 floats of shared memory.
// Called by WORKERS threads that share group barrier ``group``; all is written when it returns.
// The vectors are read twice unless registers keep them.
template <class T, int BATCH, int WIDTH, int WORKERS, class Of = Columns<BATCH>, class Words = Plain>
MC_INLINE void put_normed_columns(T* columns, const float* from,
                                  const Gains<T, WIDTH, WORKERS>& gains, float epsilon,
                                  float* squares, u32 me, u32 group, int first = 0,
                                  int end = (WIDTH + 15) / 16 * 16, Words words = Words()) {
    typedef Filled<WIDTH, WORKERS> F;
    constexpr bool HELD = BATCH * F::OWN <= 4;
    constexpr int WARPS = WORKERS / 32;
    constexpr int AT_A_TIME = F::OWN < 4 ? F::OWN : 4;
    float held[HELD ? BATCH : 1][AT_A_TIME][8];
#pragma unroll HELD ? BATCH : 1
    for (int b = 0; b < BATCH; b++) {
        float sum = 0.0f;
#pragma unroll
        for (int first_own = 0; first_own < F::OWN; first_own += AT_A_TIME) {
            float(&v)[AT_A_TIME][8] = held[HELD ? b : 0];
            F::load_own(from + b * WIDTH, first_own, me, v, words);
#pragma unroll
            for (int n = 0; n < AT_A_TIME; n++) {
                if ((int)me + (first_own + n) * WORKERS >= F::CHUNKS) break;
#pragma unroll
                for (int i = 0; i < 8; i++) sum = fused(v[n][i], v[n][i], sum);
            }
        }
        sum = warp_sum(sum);
        if (lane() == 0) squares[b * WARPS + me / 32] = sum;
    }
    group_sync(group, WORKERS);
#pragma unroll HELD ? BATCH : 1
    for (int b = 0; b < BATCH; b++) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += squares[b * WARPS + w];
        const float scale = inverse_root(sum / (float)WIDTH + epsilon);
#pragma unroll
        for (int first_own = 0; first_own < F::OWN; first_own += AT_A_TIME) {
            float(&v)[AT_A_TIME][8] = held[HELD ? b : 0];
            if (!HELD) F::load_own(from + b * WIDTH, first_own, me, v, words);
#pragma unroll
            for (int n = 0; n < AT_A_TIME; n++) {
                const int k = ((int)me + (first_own + n) * WORKERS) * 8;
                const bool there = k >= first && k < end;
                if (!Of::TOGETHER && !there) continue;
                float g[8];
                gains.get(first_own + n, me, g);
#pragma unroll
                for (int i = 0; i < 8; i++) v[n][i] = v[n][i] * scale * g[i];
                Of::put(columns, b, k - first, v[n], there);
            }
        }
    }
    group_sync(group, WORKERS);
}

}  // namespace mc
