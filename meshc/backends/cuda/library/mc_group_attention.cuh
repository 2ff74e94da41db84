// Attention of queries that share a key head over tiles of cached tokens, on tensor cores: those of a few heads, of one
// token or of several.
//
// A warp has eight of the queries at the most, and tokens of its own, sixteen at a time, with a running maximum
// (FlashAttention-2, Algorithm 1), so no warp waits for another one before the end, where their sums are joined: of as
// many warps as have the same queries. Queries and weights are two values
// each, the rounded one and what rounding left, as vectors of products are (mc_fragments.cuh): sums are as good as
// f32 times 16-bit keys and values. Rows of tokens are swizzled by position (mc_attention.cuh). Those of floats of eight
// bits (mc_coded_rows.cuh) are decoded on their way: a lane has every second of four neighbours in a fragment then.
#pragma once

#include "mc_coded_rows.cuh"

namespace mc {

// Scores as they are.
struct Same {
    MC_INLINE float operator()(float v) const { return v; }
};

// Of sixteen tokens the fragments of keys and values, of rows of 16-bit values: the lane names those of one of them.
template <class T, int HEAD>
struct PlainUnit {
    const T *key, *value;
    int token, part;

    template <class Rows>
    MC_INLINE PlainUnit(const T* keys, const T* values, int begin, int token, Rows rows)
        : token(token), part(lane() / 8 % 2) {
        key = rows.key(keys + token * HEAD, begin + token);
        value = rows.value(values + token * HEAD, begin + token);
    }

    // Of lanes 16 s and the next: those of tokens 0 .. 7, then those of 8 .. 15.
    MC_INLINE void keys(int s, u32 (&b)[4]) const {
        load_matrices(b, key + Swizzle<HEAD>::chunk(2 * s + part, token) * 8);
    }
    MC_INLINE void values(int e, u32 (&a)[4]) const {
        load_matrices_transposed(a, value + Swizzle<HEAD>::chunk(2 * e + part, token) * 8);
    }
};

// The same of rows of floats of eight bits, in which one load has 32 lanes.
template <class T, int HEAD>
struct CodedUnit {
    typedef CodedRows<HEAD> Rows;
    static constexpr int STEPS = HEAD / 16;
    const u8 *key, *value;
    int token, part;
    u32 of_keys[2], of_values[2];  // scales of tokens lane / 4, and of 2 (lane % 4) and the next
    u32 words[4];

    template <class Tile>
    MC_INLINE CodedUnit(Tile tile, int begin, int token, int at, int count) : token(token), part(lane() / 8 % 2) {
        int own = token;
        const CodedTile<HEAD> there = tile.of(own, begin + token);
        key = there.keys + Rows::row(own), value = there.values + Rows::row(own);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int first = at + 8 * half, q = lane() % 4;
            const u32 one = scale(tile, begin, min(first + (int)lane() / 4, count - 1), true);
            of_keys[half] = two_scales(one, one, T());
            const u32 low = scale(tile, begin, min(first + 2 * q, count - 1), false);
            of_values[half] = two_scales(low, scale(tile, begin, min(first + 2 * q + 1, count - 1), false), T());
        }
    }

    MC_INLINE void keys(int s, u32 (&b)[4]) {
        if (s % 2 == 0) load_matrices(words, key + Rows::chunk(min(s + part, STEPS - 1), token));
        decode_four(words[s % 2], of_keys[0], b, T());
        decode_four(words[s % 2 + 2], of_keys[1], b + 2, T());
    }
    MC_INLINE void values(int e, u32 (&a)[4]) {
        if (e % 2 == 0) load_matrices_transposed(words, value + Rows::chunk(min(e + part, STEPS - 1), token));
        decode_four(words[e % 2], of_values[0], a, T());
        decode_four(words[e % 2 + 2], of_values[1], a + 2, T());
    }

private:
    template <class Tile>
    static MC_INLINE u32 scale(Tile tile, int begin, int token, bool of_key) {
        const CodedTile<HEAD> there = tile.of(token, begin + token);
        return Rows::scale(of_key ? there.keys : there.values, token);
    }
};

// ROWS queries of HEAD lanes, by WARPS warps, in sets of GROUP. Of the sixteen rows of scores the first eight are of
// rounded queries, the others of what rounding left; up to four queries have two rows of either, so that the
// eight columns of the sums are of rounded weights and of what rounding left. CODED: tokens are floats of eight bits.
template <class T, int ROWS, int HEAD, int WARPS, bool CODED = false>
struct GroupAttention {
    static constexpr int GROUP = ROWS < 8 ? ROWS : 8;
    static constexpr int SETS = (ROWS + GROUP - 1) / GROUP;
    static constexpr int SHARE = WARPS / SETS;  // warps that have a set; what does not divide has none
    static_assert(SETS <= WARPS && HEAD % 16 == 0, "a set for each warp, and whole fragments");

    static constexpr int STEPS = HEAD / 16;
    static constexpr bool TWICE = GROUP <= 4;
    static constexpr int HEADS = TWICE ? 4 : 8;  // rows and columns before they come again
    static constexpr int WORKERS = 32 * WARPS;

    // Shared memory, each on a 16-byte address.
    static constexpr int QUERY_BYTES = SETS * STEPS * 256 * (int)sizeof(T);
    static constexpr int JOINED_BYTES = WARPS * GROUP * HEAD * (int)sizeof(float);
    static constexpr int STATISTICS_BYTES = 2 * WARPS * GROUP * (int)sizeof(float);

    const T* queries;  // [STEPS, 32, 8]: fragments of this warp's set as lanes hold them
    float sums[STEPS][4];  // of 16 lanes of values and all columns
    float most, weight;  // of query lane / 4 % HEADS of the set; each lane has a part of the weight

    // Which set this warp has, SETS or more for none, and its number among those that have it.
    static MC_INLINE int set() { return SETS == 1 ? 0 : (int)warp() / SHARE; }
    static MC_INLINE int number() { return SETS == 1 ? (int)warp() : (int)warp() % SHARE; }

    // Of which lane of values, of sixteen, sum ``i`` is.
    static MC_INLINE int value_lane(int i) { return CODED ? lane() / 4 * 2 + i / 2 : lane() / 4 + i / 2 * 8; }

    // The query of which this lane has scores, one of the first ``rows``.
    static MC_INLINE int row(int rows = ROWS) { return min(set() * GROUP + (int)lane() / 4 % HEADS, rows - 1); }

    // Of ``all`` queries as fragments, as put_queries makes them.
    MC_INLINE explicit GroupAttention(const T* all) : queries(all + set() * (STEPS * 256)), most(-1e30f), weight(0.0f) {
#pragma unroll
        for (int e = 0; e < STEPS; e++) {
#pragma unroll
            for (int i = 0; i < 4; i++) sums[e][i] = 0.0f;
        }
    }

    // Queries, f32 [rows, HEAD], times the scale and log2(e), as fragments, and zeros behind them; the callers meet
    // before they are used.
    static MC_INLINE void put_queries(T* to, const float* from, int rows = ROWS) {
#pragma unroll 1
        for (int s = warp(); s < SETS * STEPS; s += WARPS) {
            const int own = lane() / 4 % HEADS, query = s / STEPS * GROUP + own;
            float v[8];
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int own_lane = CODED ? lane() % 4 * 4 + 2 * i + half : 8 * half + lane() % 4 * 2 + i;
                    const int at = query * HEAD + 16 * (s % STEPS) + own_lane;
                    const float value = own < GROUP && query < rows ? from[at] : 0.0f;
                    v[4 * half + i] = value;
                    v[4 * half + 2 + i] = rounding_left<T>(value);
                }
            }
            store8(to + (s * 32 + lane()) * 8, v);
        }
    }

    // By a warp of each set, before any tile: a token that is in no cache yet, f32 ``key`` and ``value``; ``from`` are
    // the queries.
    // ``change`` makes scores, times log2(e), of products.
    template <class Change = Same>
    MC_INLINE void start(const float* from, const float* key, const float* value, Change change = Change(),
                         int rows = ROWS) {
        const int q = lane() % 4;
        const float* own = from + row(rows) * HEAD + q * (HEAD / 4);
        float score = 0.0f;
#pragma unroll 2
        for (int k = 0; k < HEAD / 4; k += 4) {
            const float4 a = *(const float4*)(own + k), b = *(const float4*)(key + q * (HEAD / 4) + k);
            score = fused(a.x, b.x, score), score = fused(a.y, b.y, score);
            score = fused(a.z, b.z, score), score = fused(a.w, b.w, score);
        }
        most = change(warp_sum<4>(score));
        weight = q == 0 ? 1.0f : 0.0f;
#pragma unroll
        for (int e = 0; e < STEPS; e++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const bool counts = 2 * q + i % 2 < GROUP;
                sums[e][i] = counts ? value[16 * e + value_lane(i)] : 0.0f;
            }
        }
    }

    // The same of several tokens, which have so many ``heads`` of the first ``rows`` queries each, and one behind the
    // other a key and a value: of each token for which it ``begins``, which others do without.
    template <class Begins, class Change = Same>
    MC_INLINE void start_each(const float* from, const float* own, int rows, int heads, Begins begins,
                              Change change = Change()) {
        const int token = row(rows) / heads;
        start(from, own + 2 * HEAD * token, own + 2 * HEAD * token + HEAD, change, rows);
        if (!begins(token)) most = -1e30f, weight = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int column = set() * GROUP + lane() % 4 * 2 + i, of = min(column, rows - 1) / heads;
            const bool counts = lane() % 4 * 2 + i < GROUP && begins(of);
            const float* value = own + 2 * HEAD * of + HEAD;
#pragma unroll
            for (int e = 0; e < STEPS; e++) {
                sums[e][i] = counts ? value[16 * e + value_lane(i)] : 0.0f;
                sums[e][2 + i] = counts ? value[16 * e + value_lane(2 + i)] : 0.0f;
            }
        }
    }

    // By another warp of each set, before any tile: a score of each query, times log2(e), that has no value.
    template <class Score>
    MC_INLINE void start_with_sink(Score score) {
        most = score(row());
        weight = lane() % 4 == 0 ? 1.0f : 0.0f;
    }

    // Adds of a tile of TOKENS (a multiple of 16) from position ``begin`` on, a multiple of eight, those tokens in front
    // of ``limit`` that the lane's query sees: ``first`` .. ``end``. Warps take turns in the sixteens; ``turn`` counts
    // tiles, so that the next ones go to other warps. All in front of ``limit`` is finite, behind it nothing is read.
    // ``rows`` says where the rows of a token are.
    template <int TOKENS, class Change = Same, class Rows = CachedRows>
    MC_INLINE void add(const T* keys, const T* values, int turn, int begin, int limit, int first, int end,
                       Change change = Change(), Rows rows = Rows()) {
        static_assert(!CODED, "tokens are 16-bit values");
        add_units<TOKENS>(turn, begin, limit, first, end, change, [&](int token, int at, int count) {
            return PlainUnit<T, HEAD>(keys, values, begin, token, rows);
        });
    }

    // The same of tokens that ``tile`` has, which may be infinite.
    template <int TOKENS, class Change = Same, class Tile>
    MC_INLINE void add(Tile tile, int turn, int begin, int limit, int first, int end, Change change = Change()) {
        static_assert(CODED, "tokens are floats of eight bits");
        add_units<TOKENS>(turn, begin, limit, first, end, change, [&](int token, int at, int count) {
            return CodedUnit<T, HEAD>(tile, begin, token, at, count);
        });
    }

    // Sums [WARPS, count, HEAD] relative to each warp's highest scores, and these and the weights [2, WARPS, count], of
    // the queries of its set from ``first`` on.
    MC_INLINE void put(float* joined, float* statistics, int first = 0, int count = GROUP) const {
        const int q = lane() % 4, head = lane() / 4 - first;
        const float all = warp_sum<4>(weight);
#pragma unroll
        for (int e = 0; e < STEPS; e++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float sum = TWICE ? sums[e][i] + shuffle_xor(sums[e][i], 2) : sums[e][i];
                const int of = 2 * q + i % 2 - first;
                if (of >= 0 && of < count) joined[(warp() * count + of) * HEAD + 16 * e + value_lane(i)] = sum;
            }
        }
        if (head >= 0 && head < count && q == 0) {
            statistics[warp() * count + head] = most;
            statistics[(WARPS + warp()) * count + head] = all;
        }
    }

    // Behind a meeting: take(i, sum, highest score, weight) for each of ROWS x HEAD sums over all warps.
    template <class Take>
    static MC_INLINE void join(const float* joined, const float* statistics, int me, Take take) {
        for (int i = me; i < ROWS * HEAD; i += WORKERS) {
            const int own = i / HEAD / GROUP, first = own * SHARE * GROUP;  // of the set, and its first warp's
            const float* of = statistics + first + i / HEAD - own * GROUP;
            const float* sums = joined + first * HEAD + i - own * (GROUP * HEAD);
            float top = -1e30f, sum = 0.0f, total = 0.0f;
            for (int w = 0; w < SHARE; w++) top = larger(top, of[w * GROUP]);
            for (int w = 0; w < SHARE; w++) {
                const float keep = power_of_two(of[w * GROUP] - top);
                sum = fused(sums[w * (GROUP * HEAD)], keep, sum);
                total = fused(of[(WARPS + w) * GROUP], keep, total);
            }
            take(i, sum, top, total);
        }
    }

private:
    // The tiles of add(), of which unit_of(the lane's token, the first one, tokens of the tile) has sixteen.
    template <int TOKENS, class Change, class UnitOf>
    MC_INLINE void add_units(int turn, int begin, int limit, int first, int end, Change change, UnitOf unit_of) {
        constexpr int UNITS = TOKENS / 16;
        if (SETS > 1 && set() >= SETS) return;
        const int q = lane() % 4, count = min(TOKENS, limit - begin);
#pragma unroll 1
        for (int unit = (number() + SHARE - turn * UNITS % SHARE) % SHARE; unit < UNITS; unit += SHARE) {
            const int at = 16 * unit;
            if (at >= count) break;
            // Scores [queries, 16 tokens]: lanes name rows of tokens 0 .. 7 twice, then 8 .. 15.
            const int token = min(at + (int)lane() / 16 * 8 + (int)lane() % 8, count - 1);
            auto tokens = unit_of(token, at, count);
            float c[2][4] = {};
#pragma unroll 2
            for (int s = 0; s < STEPS; s++) {
                u32 a[4], b[4];
                load_fragment(queries + (s * 32 + lane()) * 8, a);
                tokens.keys(s, b);
                multiply_16x8x16(c[0], a, b, T());
                multiply_16x8x16(c[1], a, b + 2, T());
            }
            float p[4], next = most;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int position = begin + at + i / 2 * 8 + 2 * q + i % 2;
                p[i] = position >= first && position < end ? change(c[i / 2][i % 2] + c[i / 2][i % 2 + 2]) : -1e30f;
                next = larger(next, p[i]);
            }
            next = warp_max<4>(next);
            const float keep = power_of_two(most - next);
            most = next;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int position = begin + at + i / 2 * 8 + 2 * q + i % 2;
                p[i] = position >= first && position < end ? power_of_two(p[i] - next) : 0.0f;
            }
            weight = fused(weight, keep, (p[0] + p[1]) + (p[2] + p[3]));
            add_values(tokens, keep, p);
        }
    }

    // Sums [HEAD, columns] += values [16 tokens, HEAD], turned, times weights [16 tokens, columns].
    template <class Unit>
    MC_INLINE void add_values(Unit& tokens, float keep, const float (&p)[4]) {
        const bool left = TWICE && lane() >= 16;  // whether this lane's column is of what rounding left
        u32 rounded[2], rest[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            rounded[j] = pack2<T>(p[2 * j], p[2 * j + 1]);
            rest[j] = pack2<T>(rounding_left<T>(p[2 * j]), rounding_left<T>(p[2 * j + 1]));
            if (left) rounded[j] = rest[j];
        }
        const int column = lane() % 4 * 8 % (4 * HEADS);  // a lane that has the head of column 2 q
        const float even = shuffle(keep, column), odd = shuffle(keep, column + 4);
#pragma unroll
        for (int e = 0; e < STEPS; e++) {
            u32 a[4];
            tokens.values(e, a);
            sums[e][0] *= even, sums[e][1] *= odd;
            sums[e][2] *= even, sums[e][3] *= odd;
            multiply_16x8x16(sums[e], a, rounded, T());
            if (!TWICE) multiply_16x8x16(sums[e], a, rest, T());
        }
    }
};

}  // namespace mc
