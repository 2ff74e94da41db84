// Attention of many queries over tiles of cached tokens on tensor cores, with a running maximum
// (FlashAttention-2, Algorithm 1). For queries that share a key head: a group's heads, the tokens of
// a chunk of a prompt, all heads of a latent cache.
//
// Tiles lie in shared memory as in the cache: a row of keys and one of values per token, whose 16-byte
// chunks are exchanged by the token's position, so that eight rows can be read at one chunk without
// bank conflicts. Warps share the tokens of a tile for the scores, then the lanes of the values for
// the sums, which stay in registers from tile to tile: nothing is left to be joined over warps.
#pragma once

#include "mc_words.cuh"

namespace mc {

// Two values, rounded, as a word of a fragment.
template <class T>
MC_INLINE u32 pack2(float a, float b) {
    alignas(4) const T two[2] = {narrow<T>(a), narrow<T>(b)};
    return *(const u32*)two;
}

// What rounding leaves.
template <class T>
MC_INLINE float rounding_left(float v) {
    return v - widen(narrow<T>(v));
}

constexpr int least_power_of_two(int n) { return n <= 1 ? 1 : 2 * least_power_of_two((n + 1) / 2); }

// Rows of ``LANES`` values in chunks of eight (16 bytes). A row of a multiple of 128 bytes starts in the
// bank of the one before, shorter rows in one of several: as many tokens as start alike are told apart.
// Caches whose pages other programs share have rows as they are (MC_NHD); these are turned on their way.
template <int LANES>
struct Swizzle {
    static constexpr int CHUNKS = LANES / 8;
    static constexpr int APART = CHUNKS % 8 == 0 ? 8 : CHUNKS % 4 == 0 ? 4 : CHUNKS % 2 == 0 ? 2 : 1;

    // Where chunk ``chunk`` lies in the row of the token at ``position`` of its request.
    static MC_INLINE int chunk(int chunk, int position) {
#ifdef MC_NHD
        return (chunk + turns(position)) % CHUNKS;
#else
        return chunk ^ turns(position);
#endif
    }

    static MC_INLINE int turns(int position) { return position / (8 / APART) % APART; }

    static MC_INLINE int lane(int lane, int position) {
        return chunk(lane / 8, position) * 8 + lane % 8;
    }
};

// Rows of a tile of cached tokens as they lie there.
struct CachedRows {
    template <class T>
    MC_INLINE const T* key(const T* row, int position) const { return row; }
    template <class T>
    MC_INLINE const T* value(const T* row, int position) const { return row; }
};

// Those of tokens from position ``since`` on, which no cache has yet, lie one behind the other, swizzled by position too.
template <class T, int HEAD>
struct NewRows {
    const T *keys, *values;
    int since;

    MC_INLINE const T* key(const T* row, int position) const {
        return position < since ? row : keys + (position - since) * HEAD;
    }
    MC_INLINE const T* value(const T* row, int position) const {
        return position < since ? row : values + (position - since) * HEAD;
    }
};

// Warps that share the lanes of the values; the others take other queries. The most, of those that
// give the least to the busiest warp: what a warp reads of the values then serves more queries.
constexpr int warps_over_lanes(int warps, int pairs, int groups) {
    int best = warps, least = 1 << 30;
    for (int over = warps; over >= 1; over /= 2) {
        const int others = warps / over;
        const int work = ((pairs + over - 1) / over) * ((groups + others - 1) / others);
        if (work < least) least = work, best = over;
    }
    return best;
}

// QUERIES of KEY_LANES, against tiles of at most TOKENS (a multiple of 16) keys [KEY_LANES] and values,
// the first VALUE_LANES of rows of VALUE_ROW (those of the keys, if the values are part of them).
// WARPS warps (a power of two) call everything together and share group barrier ``group``. With TWICE
// queries and weights are two values each, the rounded one and what rounding left, whose products are added up
// together: sums are then as good as f32 times 16-bit keys and values.
template <class T, int QUERIES, int KEY_LANES, int VALUE_LANES, int TOKENS, int WARPS = 8,
          int VALUE_ROW = VALUE_LANES, bool TWICE = false>
struct TileAttention {
    static_assert(KEY_LANES % (TWICE ? 16 : 32) == 0 && VALUE_LANES % 16 == 0 && TOKENS % 16 == 0, "whole steps");

    static constexpr int WORKERS = 32 * WARPS;
    static constexpr int VALUES = TWICE ? 2 : 1;  // of each query and weight
    static constexpr int GROUPS = (QUERIES + 15) / 16;
    static constexpr int PADDED = 16 * GROUPS;
    static constexpr int ASKED_LANES = (KEY_LANES + 31) / 32 * 32;  // zeros behind the last

    // Scores: a unit is some eights of tokens; warps that units leave over share the lanes of one.
    static constexpr int EIGHTS = TOKENS % (16 * WARPS) == 0 ? 2 : 1;
    static constexpr int UNITS = TOKENS / 8 / EIGHTS;
    static constexpr int STEPS = ASKED_LANES / 32;
    static constexpr int SPARE = UNITS < WARPS ? WARPS / UNITS : 1;
    static constexpr int PARTS = SPARE < STEPS ? SPARE : STEPS;
    static constexpr int SCORE_ROW = TOKENS + 8;  // so that rows start in other banks

    // Weights: SHARERS lanes of a warp have the scores of a query, two by two.
    static constexpr int SHARERS = TOKENS == 16 || GROUPS > 1 ? 8 : 16;
    static constexpr int AT_ONCE = WORKERS / SHARERS;
    static constexpr int OWN_QUERIES = (PADDED + AT_ONCE - 1) / AT_ONCE;
    static constexpr int OWN_TWOS = (TOKENS / 2 + SHARERS - 1) / SHARERS;

    // Sums: a warp has some pairs of eight lanes, of some groups of queries.
    static constexpr int PAIRS = VALUE_LANES / 16;
    static constexpr int OVER_LANES = warps_over_lanes(WARPS, PAIRS, GROUPS);
    static constexpr int OVER_GROUPS = WARPS / OVER_LANES;
    static constexpr int OWN_PAIRS = (PAIRS + OVER_LANES - 1) / OVER_LANES;
    static constexpr int OWN_GROUPS = (GROUPS + OVER_GROUPS - 1) / OVER_GROUPS;
    static constexpr bool HELD = OWN_PAIRS * OWN_GROUPS < 16;  // weights too, beside the sums

    // Shared memory, each on a 16-byte address.
    static constexpr int QUERY_BYTES = PADDED * VALUES * ASKED_LANES * (int)sizeof(T);
    static constexpr int SCORE_BYTES = PARTS * PADDED * SCORE_ROW * (int)sizeof(float);
    static constexpr int WEIGHT_BYTES = PADDED * VALUES * TOKENS * (int)sizeof(T);
    static constexpr int WORK_BYTES = SCORE_BYTES + WEIGHT_BYTES + PADDED * (int)sizeof(float);

    const T* queries;  // [GROUPS, ASKED_LANES / 16, VALUES, 32, 8]: 16 x 16 blocks as lanes hold them
    float* scores;  // [PARTS, PADDED, SCORE_ROW]
    T* weights;  // [GROUPS, TOKENS / 16, VALUES, 32, 8], as the queries
    float* factors;  // [PADDED]: of what was summed before
    u32 me, group;
    float highest[OWN_QUERIES], total[OWN_QUERIES];
    float sums[OWN_GROUPS][OWN_PAIRS][8];

    // ``work`` has WORK_BYTES; ``me`` numbers the callers from 0, lane by lane.
    MC_INLINE TileAttention(const T* queries, unsigned char* work, u32 me, u32 group)
        : queries(queries),
          scores((float*)work),
          weights((T*)(work + SCORE_BYTES)),
          factors((float*)(work + SCORE_BYTES + WEIGHT_BYTES)),
          me(me),
          group(group) {
        restart();
    }

    // Forget all tokens.
    MC_INLINE void restart() {
#pragma unroll
        for (int n = 0; n < OWN_QUERIES; n++) {
            highest[n] = -1e30f;
            total[n] = 0.0f;
        }
#pragma unroll
        for (int m = 0; m < OWN_GROUPS; m++) {
#pragma unroll
            for (int p = 0; p < OWN_PAIRS; p++) {
#pragma unroll
                for (int i = 0; i < 8; i++) sums[m][p][i] = 0.0f;
            }
        }
    }

    // Queries, f32 [QUERIES, KEY_LANES], rounded and in blocks; those that fill a group up are zeros.
    // The callers meet before the first tile.
    static MC_INLINE void put_queries(T* to, const float* from, u32 me) {
        static_assert(!TWICE, "each query is one value");
        for (int i = me; i < PADDED * KEY_LANES / 8; i += WORKERS) {
            const int block = i / 32, row = block / (KEY_LANES / 16) * 16 + i % 32 / 4;
            const int k = block % (KEY_LANES / 16) * 16 + i % 4 * 2;
            float v[8];
#pragma unroll
            for (int word = 0; word < 4; word++) {
                const int query = row + word % 2 * 8;
                const float* two = from + query * KEY_LANES + k + word / 2 * 8;
                const bool real = PADDED == QUERIES || query < QUERIES;
                v[2 * word] = real ? two[0] : 0.0f;
                v[2 * word + 1] = real ? two[1] : 0.0f;
            }
            store8(to + i * 8, v);
        }
    }

    // LANES of COUNT queries, the first of which is ``begin``, a multiple of eight, from lane FIRST on; those that fill
    // eights up, or behind the last query the group, are zeros. They lie one behind the other in rows of ``stride``
    // floats, read as ``words`` are (mc_words.cuh): a thread asks for several eights before the first one is needed.
    template <int FIRST, int LANES, int COUNT = QUERIES, class Words = Plain>
    static MC_INLINE void put_lanes(T* to, const float* from, int stride, u32 me, Words words = Words(), int begin = 0) {
        static_assert(TWICE && FIRST % 8 == 0 && LANES % 8 == 0, "whole eights of two values");
        constexpr int ROWS = COUNT == QUERIES ? PADDED : (COUNT + 7) / 8 * 8;
        constexpr int EIGHTS_OF = ROWS * LANES / 8, OWN = (EIGHTS_OF + WORKERS - 1) / WORKERS;
        constexpr int AT_ONCE = OWN < 2 ? OWN : 2;  // what registers have room for
#pragma unroll 1
        for (int first = 0; first < OWN; first += AT_ONCE) {
            const float* places[AT_ONCE];
            float v[AT_ONCE][8];
            u32 wanted = 0;
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++) {
                const int i = me + (first + n) * WORKERS, query = i / 8 / (LANES / 8) * 8 + i % 8;
                places[n] = from + query * stride + i / 8 % (LANES / 8) * 8;
                if (i < EIGHTS_OF && query < COUNT) wanted |= 1u << n;
            }
            words.eights(places, wanted, v);
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++) {
                const int i = me + (first + n) * WORKERS, k = FIRST + i / 8 % (LANES / 8) * 8;
                const int eight = begin / 8 + i / 8 / (LANES / 8), block = eight / 2 * (ASKED_LANES / 16) + k / 16;
                if (i >= EIGHTS_OF) break;
                u32* own = (u32*)(to + (2 * block * 32 + i % 8 * 4) * 8) + k % 16 / 8 * 2 + eight % 2;
#pragma unroll
                for (int two = 0; two < 4; two++) {
                    const float a = v[n][2 * two], b = v[n][2 * two + 1];
                    own[4 * two] = pack2<T>(a, b);
                    own[128 + 4 * two] = pack2<T>(rounding_left<T>(a), rounding_left<T>(b));
                }
            }
        }
    }

    // Zeros in place of the lanes of all queries from ``begin`` on, a multiple of eight.
    static MC_INLINE void put_none(T* to, int begin, u32 me) {
        constexpr int WORDS = KEY_LANES / 16 * VALUES * 64;  // of eight queries
        constexpr int GROUP = ASKED_LANES / 16 * VALUES * 128;
#pragma unroll 1
        for (int i = me; i < (PADDED - begin) / 8 * WORDS; i += WORKERS) {
            const int eight = begin / 8 + i / WORDS;
            ((u32*)to)[eight / 2 * GROUP + i % WORDS * 2 + eight % 2] = 0;
        }
    }

    // The lanes of zeros behind those of the keys; nothing where there are none.
    static MC_INLINE void put_zeros(T* to, u32 me) {
        constexpr int WORDS = (ASKED_LANES - KEY_LANES) / 16 * VALUES * 128;
        for (int i = me; i < GROUPS * WORDS; i += WORKERS) {
            ((u32*)to)[(i / WORDS + 1) * (ASKED_LANES / 16) * VALUES * 128 - 1 - i % WORDS] = 0;
        }
    }

    // Adds a tile of ``count`` tokens (1 to TOKENS), the first at position ``begin``. Scores are times
    // ``scale``, which has the factor log2(e); ``seen(query, position)`` says what a query sees. ``rows`` says where
    // those of keys and values lie, which are finite. The caller may give the tile back when it returns, warp by warp.
    template <class Seen, class Rows = CachedRows>
    MC_INLINE void add(const T* keys, const T* values, int begin, int count, float scale,
                       Seen seen, Rows rows = Rows()) {
        score(keys, begin, count, rows);
        group_sync(group, WORKERS);
        weigh(begin, count, scale, seen);
        group_sync(group, WORKERS);
        sum(values, begin, count, rows);
    }

    // Sums [QUERIES, VALUE_LANES] relative to the highest scores, those [QUERIES], and the sums of
    // weights [QUERIES], all in shared memory; complete when it returns.
    MC_INLINE void finish(float* attended, float* most, float* weight) const {
        const int warp = me / 32, lane = me % 32;
#pragma unroll
        for (int n = 0; n < OWN_QUERIES; n++) {
            const int query = me / SHARERS + n * AT_ONCE;
            if (me % SHARERS == 0 && query < QUERIES) {
                most[query] = highest[n];
                weight[query] = total[n];
            }
        }
#pragma unroll
        for (int m = 0; m < OWN_GROUPS; m++) {
#pragma unroll
            for (int p = 0; p < OWN_PAIRS; p++) {
                const int pair = warp % OVER_LANES + p * OVER_LANES;
                if (PAIRS % OVER_LANES && pair >= PAIRS) break;
#pragma unroll
                for (int i = 0; i < 8; i += 2) {  // rows g and g + 8, of both eights of lanes
                    const int query = (warp / OVER_LANES + m * OVER_GROUPS) * 16 + lane / 4 + i % 4 * 4;
                    float* to = attended + query * VALUE_LANES + pair * 16 + i / 4 * 8 + lane % 4 * 2;
                    if (query >= QUERIES) continue;
                    to[0] = sums[m][p][i];
                    to[1] = sums[m][p][i + 1];
                }
            }
        }
        group_sync(group, WORKERS);
    }

private:
    // Products of all queries with this warp's tokens. Rows behind the last are that one again: what
    // lies there is not read, and none of it counts.
    template <class Rows>
    MC_INLINE void score(const T* keys, int begin, int count, Rows rows) const {
        const int warp = me / 32, lane = me % 32;
        const int part = PARTS == 1 ? 0 : warp / UNITS;
        if (part >= PARTS) return;
#pragma unroll 1
        for (int unit = PARTS == 1 ? warp : warp % UNITS; unit < UNITS; unit += WARPS) {
            const int first = unit * EIGHTS * 8;
            if (first >= count) break;
            float c[EIGHTS][GROUPS][4] = {};
            const T* row[EIGHTS];
            int position[EIGHTS];
#pragma unroll
            for (int e = 0; e < EIGHTS; e++) {
                const int token = min(first + 8 * e + lane % 8, count - 1);
                position[e] = begin + token;
                row[e] = rows.key(keys + token * KEY_LANES, position[e]);
            }
#pragma unroll(TWICE ? 1 : 2)
            for (int step = part; step < STEPS; step += PARTS) {
                u32 b[EIGHTS][4];
#pragma unroll
                for (int e = 0; e < EIGHTS; e++) {
                    int chunk = step * 4 + lane / 8;
                    if (KEY_LANES < ASKED_LANES) chunk = min(chunk, KEY_LANES / 8 - 1);  // queries are zeros there
                    load_matrices(b[e], row[e] + Swizzle<KEY_LANES>::chunk(chunk, position[e]) * 8);
                }
#pragma unroll
                for (int half = 0; half < 2; half++) {
#pragma unroll
                    for (int m = 0; m < GROUPS * VALUES; m++) {
                        u32 a[4];
                        const int block = m / VALUES * (ASKED_LANES / 16) + step * 2 + half;
                        load_fragment(queries + ((block * VALUES + m % VALUES) * 32 + lane) * 8, a);
#pragma unroll
                        for (int e = 0; e < EIGHTS; e++) {
                            multiply_16x8x16(c[e][m / VALUES], a, b[e] + half * 2, T());
                        }
                    }
                }
            }
#pragma unroll
            for (int e = 0; e < EIGHTS; e++) {
#pragma unroll
                for (int m = 0; m < GROUPS; m++) {
                    float* to = scores + (part * PADDED + m * 16 + lane / 4) * SCORE_ROW + first +
                                8 * e + lane % 4 * 2;
                    to[0] = c[e][m][0], to[1] = c[e][m][1];
                    to += 8 * SCORE_ROW;
                    to[0] = c[e][m][2], to[1] = c[e][m][3];
                }
            }
        }
    }

    MC_INLINE float score_of(int query, int token) const {
        float s = 0.0f;
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            s += scores[(part * PADDED + query) * SCORE_ROW + token];
        }
        return s;
    }

    // New maxima, weights relative to them (those of the sums are as they are multiplied), and the factors.
    template <class Seen>
    MC_INLINE void weigh(int begin, int count, float scale, Seen seen) {
        const int share = me % SHARERS * 2;
#pragma unroll
        for (int n = 0; n < OWN_QUERIES; n++) {
            const int query = me / SHARERS + n * AT_ONCE;
            if (PADDED % AT_ONCE && query >= PADDED) break;
            float s[OWN_TWOS][2];
            float next = highest[n];
            u32 visible = 0;
#pragma unroll
            for (int i = 0; i < 2 * OWN_TWOS; i++) {
                const int token = share + i / 2 * 2 * SHARERS + i % 2;
                s[i / 2][i % 2] = 0.0f;
                if (query < QUERIES && token < count && seen(query, begin + token)) {
                    visible |= 1u << i;
                    s[i / 2][i % 2] = score_of(query, token) * scale;
                    next = larger(next, s[i / 2][i % 2]);
                }
            }
            next = warp_max<SHARERS>(next);
            float added = 0.0f;
#pragma unroll
            for (int i = 0; i < OWN_TWOS; i++) {
                const int token = share + i * 2 * SHARERS;
                if (token >= (count + 15) / 16 * 16) break;
                T* to = weights + (query / 16 * (TOKENS / 16) + token / 16) * VALUES * 256 +
                        (query % 8 * 4 + token % 8 / 2) * 8 + query % 16 / 8 * 2 + token % 16 / 8 * 4;
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const bool counts = visible >> (2 * i + k) & 1;
                    const float p = counts ? power_of_two(s[i][k] - next) : 0.0f;
                    to[k] = narrow<T>(p);
                    if (TWICE) to[256 + k] = narrow<T>(rounding_left<T>(p));
                    added += TWICE ? p : widen(to[k]);
                }
            }
            const float keep = power_of_two(highest[n] - next);
            total[n] = fused(total[n], keep, warp_sum<SHARERS>(added));
            highest[n] = next;
            if (share == 0) factors[query] = keep;
        }
    }

    // Weights times this warp's lanes of the values.
    template <class Rows>
    MC_INLINE void sum(const T* values, int begin, int count, Rows rows) {
        const int warp = me / 32, lane = me % 32;
#pragma unroll
        for (int m = 0; m < OWN_GROUPS; m++) {
            const int of = warp / OVER_LANES + m * OVER_GROUPS;
            if (GROUPS % OVER_GROUPS && of >= GROUPS) break;
            const float low = factors[of * 16 + lane / 4], high = factors[of * 16 + lane / 4 + 8];
#pragma unroll
            for (int p = 0; p < OWN_PAIRS; p++) {
#pragma unroll
                for (int i = 0; i < 8; i++) sums[m][p][i] *= i % 4 < 2 ? low : high;
            }
        }
#pragma unroll 1
        for (int block = 0; block * 16 < count; block++) {
            u32 a[HELD ? OWN_GROUPS : 1][VALUES][4];
            const auto load = [&](int m) {
                const int of = warp / OVER_LANES + m * OVER_GROUPS;
                if (GROUPS % OVER_GROUPS && of >= GROUPS) return;
#pragma unroll
                for (int v = 0; v < VALUES; v++) {
                    const int at = ((of * (TOKENS / 16) + block) * VALUES + v) * 32 + lane;
                    load_fragment(weights + at * 8, a[HELD ? m : 0][v]);
                }
            };
#pragma unroll
            for (int m = 0; HELD && m < OWN_GROUPS; m++) load(m);
            const int token = min(block * 16 + lane % 16, count - 1);
            const T* row = rows.value(values + token * VALUE_ROW, begin + token);
#pragma unroll
            for (int p = 0; p < OWN_PAIRS; p++) {
                const int pair = warp % OVER_LANES + p * OVER_LANES;
                if (PAIRS % OVER_LANES && pair >= PAIRS) break;
                const int chunk = Swizzle<VALUE_ROW>::chunk(pair * 2 + lane / 16, begin + token);
                u32 b[4];
                load_matrices_transposed(b, row + chunk * 8);
#pragma unroll
                for (int m = 0; m < OWN_GROUPS; m++) {
                    if (GROUPS % OVER_GROUPS && warp / OVER_LANES + m * OVER_GROUPS >= GROUPS) break;
                    if (!HELD) load(m);
#pragma unroll
                    for (int v = 0; v < VALUES; v++) {
                        multiply_16x8x16(sums[m][p], a[HELD ? m : 0][v], b, T());
                        multiply_16x8x16(sums[m][p] + 4, a[HELD ? m : 0][v], b + 2, T());
                    }
                }
            }
        }
    }
};

}  // namespace mc
