// Products with a matrix that lies quantised, in memory and in the ring, and is decoded on the way to tensor cores.
//
// The matrix lies in blocks of 16 rows x SPAN values: their codes, in the order in which the lanes of a warp hold
// fragments (mc_fragments.cuh), then for each GROUP of values a scale of each row and, in some formats, a least number of
// each. Bits of a code are put where they are a 16-bit float, that of the code over a unit, or that of the code plus an
// offset; each row's sum over a group is scaled in f32, and that over all groups brought to its unit. What is to be taken
// off each value, an offset or the code that stands for 0, is taken off the sums: of rows that have nothing but that, or of
// ones over the unit where least numbers are added as well. Up to four columns leave room for those of other fragments:
// rows of ones, which are the same for all, are then multiplied by several fragments' at once.
#pragma once

#include "mc_collectives.cuh"
#include "mc_fragments.cuh"

namespace mc {

// Codes of four bits, of which ZERO stands for 0. Pair i of a lane's fragment has codes i and i + 4 of its word; pairs 1
// and 3 are of the lower row, half 1.
template <int ZERO>
struct Codes4 {
    static constexpr int BITS = 4, WORDS = 1, REST = 0;
    static constexpr float WHOLE_ZERO = ZERO;

    // In f16 as numbers below the normal ones, those of the lower row at bits where they are 16 times larger.
    static MC_INLINE void fragment(const u32* words, u32 (&pairs)[4], f16) {
        const u32 later = words[0] >> 8;
        pairs[0] = words[0] & 0x000f000fu, pairs[1] = words[0] & 0x00f000f0u;
        pairs[2] = later & 0x000f000fu, pairs[3] = later & 0x00f000f0u;
    }

    static MC_INLINE u32 taken_off(int half, f16) { return ZERO ? (0x8000u | ZERO << 4 * half) * 0x00010001u : 0; }
    static MC_INLINE float offset(f16) { return ZERO; }
    static MC_INLINE float units(int half, f16) { return half ? 1048576.0f : 16777216.0f; }
    static MC_INLINE u32 ones(int half, f16) { return 0x00010001u << 4 * half; }

    // In bf16, whose numbers below the normal ones would leave sums below those of f32, as 1 + code / 16.
    static MC_INLINE void fragment(const u32* words, u32 (&pairs)[4], bf16) {
        pairs[0] = masked_or(words[0] << 3, 0x00780078u, 0x3f803f80u);
#pragma unroll
        for (int i = 1; i < 4; i++) pairs[i] = masked_or(words[0] >> (4 * i - 3), 0x00780078u, 0x3f803f80u);
    }

    static MC_INLINE u32 taken_off(int, bf16) { return (0xbf80u | ZERO << 3) * 0x00010001u; }
    static MC_INLINE float offset(bf16) { return 16.0f + ZERO; }
    static MC_INLINE float units(int, bf16) { return 16.0f; }
    static MC_INLINE u32 ones(int, bf16) { return 0x3d803d80u; }

    // As bytes: those of the upper row, and of the lower one, 16 times as large.
    static MC_INLINE void whole(const u32* words, u32 (&rows)[2]) {
        rows[0] = words[0] & 0x0f0f0f0fu, rows[1] = words[0] & 0xf0f0f0f0u;
    }

    static MC_INLINE float whole_unit(int half) { return half ? 0.0625f : 1.0f; }
};

// Codes of eight bits, of which ZERO stands for 0: of a lane's two words each has two pairs, codes 0 and 2, 1 and 3.
template <int ZERO>
struct Codes8 {
    static constexpr int BITS = 8, WORDS = 2, REST = 0;
    static constexpr float WHOLE_ZERO = ZERO;

    // In f16 as numbers below the normal ones.
    static MC_INLINE void fragment(const u32* words, u32 (&pairs)[4], f16) {
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = words[i / 2] >> 8 * (i % 2) & 0x00ff00ffu;
    }

    static MC_INLINE u32 taken_off(int, f16) { return ZERO ? (0x8000u | ZERO) * 0x00010001u : 0; }
    static MC_INLINE float offset(f16) { return ZERO; }
    static MC_INLINE float units(int, f16) { return 16777216.0f; }

    // bf16 has too few bits for 256 codes and an offset: 128 + the last seven bits are brought back by 128, or by 256 where
    // the first bit is 0.
    static MC_INLINE void fragment(const u32* words, u32 (&pairs)[4], bf16) {
        static_assert(ZERO == 128, "the first bit says whether a code stands for less than 0");
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 two = words[i / 2] >> 8 * (i % 2);
            pairs[i] = add_two(masked_or(two, 0x007f007fu, 0x43004300u), masked_xor(two, 0x00800080u, 0xc380c380u), bf16());
        }
    }

    static MC_INLINE u32 taken_off(int, bf16) { return 0; }
    static MC_INLINE float offset(bf16) { return 0.0f; }
    static MC_INLINE float units(int, bf16) { return 1.0f; }

    // As bytes of either row, in the order in which codes of four bits have them.
    static MC_INLINE void whole(const u32* words, u32 (&rows)[2]) {
        rows[0] = permuted(words[0], words[1], 0x6240), rows[1] = permuted(words[0], words[1], 0x7351);
    }

    static MC_INLINE float whole_unit(int) { return 1.0f; }
};

// Floats of eight bits (e4m3), of which none is NaN, at the place of those of 16 bits: 2^-8 times as much in f16 and 2^-120
// in bf16, numbers below the normal ones included. Of a lane's two words each has its second pair in this place, and in the
// bits that are left what two shifts put there, with the first pair's: what else they bring is taken off by packing.
struct E4M3 {
    static constexpr int BITS = 8, WORDS = 2, REST = 0;

    static MC_INLINE void fragment(const u32* words, u32 (&pairs)[4], f16) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            pairs[2 * h] = (words[h] << 8 ^ words[h] << 1) & 0xbf80bf80u;
            pairs[2 * h + 1] = words[h] & 0xbf80bf80u;
        }
    }

    // Sums of so small values would be no normal numbers, so they are brought back.
    static MC_INLINE void fragment(const u32* words, u32 (&pairs)[4], bf16) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            pairs[2 * h] = multiply_two((words[h] << 4 ^ words[h] >> 4) & 0x87f087f0u, 0x7b807b80u, bf16());
            pairs[2 * h + 1] = multiply_two(words[h] & 0x87f087f0u, 0x7b807b80u, bf16());
        }
    }

    template <class T>
    static MC_INLINE u32 taken_off(int, T) { return 0; }
    template <class T>
    static MC_INLINE float offset(T) { return 0.0f; }
    static MC_INLINE float units(int, f16) { return 256.0f; }
    static MC_INLINE float units(int, bf16) { return 1.0f; }
};

// Floats of four bits (e2m1), a sign, two bits of exponent and one more, at the place of those of 16 bits: 2^-14 times as
// much in f16 and 2^-126 in bf16, numbers below the normal ones included. A lane's word has its first pair in this place,
// and the others where shifts bring them there, of two of which what else these bring is taken off by packing.
struct E2M1 {
    static constexpr int BITS = 4, WORDS = 1, REST = 0;

    static MC_INLINE void fragment(const u32* words, u32 (&pairs)[4], f16) {
        pairs[0] = words[0] & 0x8e008e00u;
        pairs[1] = words[0] << 3 & 0x8e008e00u;
        pairs[2] = (words[0] << 1 ^ words[0] << 6) & 0x8e008e00u;
        pairs[3] = (words[0] << 2 ^ words[0] << 9) & 0x8e008e00u;
    }

    // Sums of so small values would be no normal numbers, so they are brought back.
    static MC_INLINE void fragment(const u32* words, u32 (&pairs)[4], bf16) {
        pairs[0] = words[0] & 0x81c081c0u;
        pairs[1] = words[0] << 6 & 0x81c081c0u;
        pairs[2] = (words[0] << 4 ^ words[0] >> 6) & 0x81c081c0u;
        pairs[3] = (words[0] << 2 ^ words[0] << 5) & 0x81c081c0u;
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = multiply_two(pairs[i], 0x7e807e80u, bf16());
    }

    template <class T>
    static MC_INLINE u32 taken_off(int, T) { return 0; }
    template <class T>
    static MC_INLINE float offset(T) { return 0.0f; }
    static MC_INLINE float units(int, f16) { return 16384.0f; }
    static MC_INLINE float units(int, bf16) { return 1.0f; }
};

// Codes of BITS bits, of which ZERO stands for 0, in planes: a word with four bits of each code of a lane's fragment, as
// codes of four bits lie, where they have as many, and behind all words of a block 16 bits with two of each and 8 with one
// of each, where they have these, fragment by fragment. The lower half of each has the first codes of all pairs.
template <int BITS_, int ZERO>
struct Planes {
    static constexpr int BITS = BITS_, WORDS = BITS / 4, FOUR = 4 * WORDS, TWO = BITS / 2 % 2 * 2, ONE = BITS % 2;
    static constexpr int REST = 1;

    // The word of a lane's fragment, and the planes behind ``words`` of all ``fragments``.
    static MC_INLINE void rest(const unsigned char* block, int fragments, int fragment, u32 (&planes)[2]) {
        const unsigned char* const two = block + fragments * WORDS * 128;
        const unsigned char* const one = two + fragments * 32 * TWO;
        const int at = fragment * 32 + (int)lane();
        if (TWO) {
            const u32 bits = ((const unsigned short*)two)[at];
            planes[0] = (bits & 0xffu) | (bits & 0xff00u) << 8;
        }
        if (ONE) {
            const u32 bits = one[at];
            planes[1] = (bits & 0xfu) | (bits & 0xf0u) << 12;
        }
    }

    // Pair i of those that begin at the bit AT of each half.
    template <int AT>
    static MC_INLINE u32 pair(const u32* words, const u32 (&planes)[2], int i) {
        u32 found = 0;
        if (FOUR) found |= shifted(words[0], AT - 4 * i) & (0x000f000fu << AT);
        if (TWO) found |= shifted(planes[0], AT + FOUR - 2 * i) & (0x00030003u << (AT + FOUR));
        if (ONE) found |= shifted(planes[1], AT + FOUR + TWO - i) & (0x00010001u << (AT + FOUR + TWO));
        return found;
    }

    // In f16 as numbers below the normal ones.
    static MC_INLINE void fragment(const u32* words, const u32 (&planes)[2], u32 (&pairs)[4], f16) {
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = pair<0>(words, planes, i);
    }

    static MC_INLINE u32 taken_off(int, f16) { return ZERO ? (0x8000u | ZERO) * 0x00010001u : 0; }
    static MC_INLINE float offset(f16) { return ZERO; }
    static MC_INLINE float units(int, f16) { return 16777216.0f; }
    static MC_INLINE u32 ones(int, f16) { return 0x00010001u; }

    // In bf16 as 1 + code / 2^BITS.
    static MC_INLINE void fragment(const u32* words, const u32 (&planes)[2], u32 (&pairs)[4], bf16) {
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = pair<7 - BITS>(words, planes, i) | 0x3f803f80u;
    }

    static MC_INLINE u32 taken_off(int, bf16) { return (0xbf80u | ZERO << (7 - BITS)) * 0x00010001u; }
    static MC_INLINE float offset(bf16) { return (1 << BITS) + ZERO; }
    static MC_INLINE float units(int, bf16) { return 1 << BITS; }
    static MC_INLINE u32 ones(int, bf16) { return (0x3f80u - (BITS << 7)) * 0x00010001u; }

private:
    static MC_INLINE u32 shifted(u32 v, int by) { return by < 0 ? v >> -by : v << by; }
};

// No least numbers.
struct None {
    static constexpr int BYTES = 0;
    static constexpr bool THERE = false;

    static MC_INLINE float of(const unsigned char*, int, int) { return 0.0f; }
};

// A number of each row, of all values of a block.
template <class Number>
struct OfRows {
    static constexpr int BYTES = 16 * (int)sizeof(Number);
    static constexpr bool THERE = true;

    static MC_INLINE float of(const unsigned char* numbers, int, int row) { return widened(((const Number*)numbers)[row]); }

private:
    static MC_INLINE float widened(float v) { return v; }
    template <class T>
    static MC_INLINE float widened(T v) { return widen(v); }
};

// A code of eight bits for each of GROUPS groups and of each row, of which ZERO stands for 0, and behind all of them a unit
// of each row.
template <int ZERO, int GROUPS>
struct OfCodes {
    static constexpr int BYTES = 16 * GROUPS + 32;
    static constexpr bool THERE = true;

    static MC_INLINE float of(const unsigned char* numbers, int group, int row) {
        const float unit = widen(((const f16*)(numbers + 16 * GROUPS))[row]);
        return (float)((int)numbers[16 * group + row] - ZERO) * unit;
    }
};

// A block of codes of 16 rows x SPAN values, GROUP of which have a scale.
template <class Codes, int GROUP, int SPAN, class Scales, class Leasts>
struct Coded {
    static constexpr int FRAGMENTS = SPAN / 16, OF_GROUP = GROUP / 16, GROUPS = SPAN / GROUP;
    static constexpr bool LIFTED = Leasts::THERE, IN_GROUPS = SPAN > GROUP;
    static constexpr int WORDS = Codes::WORDS;  // of a lane, of a fragment
    static constexpr int AT_ONCE = OF_GROUP * WORDS < 4 ? OF_GROUP * WORDS : 4;  // words that a lane loads
    static constexpr int STEP = WORDS ? AT_ONCE / (WORDS ? WORDS : 1) : 1;  // fragments of these
    static constexpr int CODES = 2 * SPAN * Codes::BITS;
    static constexpr int BYTES = CODES + Scales::BYTES + Leasts::BYTES;

    // Of how many fragments rows of ones are multiplied by the columns at once.
    template <class C>
    struct Together {
        static constexpr int MOST = C::COUNT == 2 || C::COUNT == 4 ? 8 / C::COUNT : 1;
        static constexpr int COUNT = !LIFTED ? 1 : MOST < OF_GROUP ? MOST : OF_GROUP;
    };

    // Sums of a row group over its units, and beside them what least numbers add, of which each lane has that of some
    // fragments.
    template <class Sums, class T>
    struct Of : Sums {
        Sums lifted;

        static constexpr int BLOCKS = 1;  // that are added at once

        // Adds the products of block number ``at``, of columns from the first one on.
        MC_INLINE void add(const unsigned char* block, const T* columns, int at) {
            Coded::add(*this, block, columns + at * FRAGMENTS * Sums::C::STEP);
        }

        // Makes them the sums, by a warp, behind the last block.
        MC_INLINE void finish() {
            typedef typename Sums::C C;
#pragma unroll
            for (int t = 0; t < C::TILES; t++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float more = lifted.c[t][i];
#pragma unroll
                    for (int mask = C::COUNT / 2; mask < C::COUNT / 2 * Together<C>::COUNT; mask *= 2) {
                        more += shuffle_xor(more, mask);
                    }
                    this->c[t][i] = (LIFTED ? this->c[t][i] + more : this->c[t][i]) * Codes::units(i / 2, T());
                }
            }
        }
    };

    template <int BATCH, class T>
    using RowsOf = Of<RowSums<T, BATCH>, T>;

    // The words of a lane for STEP fragments from ``first`` on.
    template <class T>
    static MC_INLINE void load(const unsigned char* block, int first, u32 (&words)[WORDS ? AT_ONCE : 1]) {
        if constexpr (WORDS > 0) load_fragment((const T*)(block + first * WORDS * 128) + lane() * AT_ONCE * 2, words);
    }

    // Codes of a fragment as bytes, which stand for so much each, and the numbers of a row for a group of them: what
    // scales the products of codes, and what is added for each value.
    static MC_INLINE void whole(const u32* words, u32 (&rows)[2]) { Codes::whole(words, rows); }
    static MC_INLINE float whole_unit(int half) { return Codes::whole_unit(half); }
    static MC_INLINE float scale(const unsigned char* block, int group, int row) {
        return Scales::of(block + CODES, group, row);
    }
    static MC_INLINE float whole_least(const unsigned char* block, int group, int row, float scale) {
        const float least = Leasts::of(block + CODES + Scales::BYTES, group, row);
        return Codes::WHOLE_ZERO != 0.0f ? least - Codes::WHOLE_ZERO * scale : least;
    }

    // Adds the products of a block with the same SPAN values of the vectors; both in shared memory.
    template <class Sums, class T>
    static MC_INLINE void add(Sums& sums, const unsigned char* block, const T* columns) {
#pragma unroll 1
        for (int group = 0; group < GROUPS; group++) add_group(sums, block, columns, group);
    }

private:
    template <class Sums, class T>
    static MC_INLINE void add_group(Sums& sums, const unsigned char* block, const T* columns, int group) {
        typedef typename Sums::C C;
        constexpr int TOGETHER = Together<C>::COUNT;
        static_assert(STEP % TOGETHER == 0, "words of all of them are there");
        RowSums<T, 1, C> own, all;
        const u32 off[4] = {Codes::taken_off(0, T()), Codes::taken_off(1, T()), Codes::taken_off(0, T()), Codes::taken_off(1, T())};
        u32 one[4];
        if constexpr (LIFTED) {
#pragma unroll
            for (int i = 0; i < 4; i++) one[i] = Codes::ones(i % 2, T());
        }
#pragma unroll
        for (int first = 0; first < OF_GROUP; first += STEP) {
            const int begin = group * OF_GROUP + first;
            u32 words[WORDS ? AT_ONCE : 1];
            load<T>(block, begin, words);
#pragma unroll
            for (int n = 0; n < STEP; n++) {
                const T* values = columns + (begin + n) * C::STEP;
                u32 pairs[4];
                if constexpr (Codes::REST > 0) {
                    u32 planes[2] = {0, 0};
                    Codes::rest(block, FRAGMENTS, begin + n, planes);
                    Codes::fragment(words + n * WORDS, planes, pairs, T());
                } else {
                    Codes::fragment(words + n * WORDS, pairs, T());
                }
#pragma unroll
                for (int t = 0; t < C::TILES; t++) {
                    // Lanes without a column have another one's, or one of a fragment behind this: nobody takes their
                    // sums.
                    const int column = 8 * t + (int)lane() / 4;
                    const T* from = values + (C::COUNT % 8 ? min(column, C::COUNT - 1) : column) * 16;
                    if (TOGETHER > 1 && n % TOGETHER == 0) {
                        from = values + min(column / C::COUNT, TOGETHER - 1) * C::STEP + column % C::COUNT * 16;
                    }
                    u32 b[2];
                    load_fragment(from + lane() % 4 * 4, b);
                    multiply_16x8x16(own.c[t], pairs, b, T());
                    if (LIFTED && n % TOGETHER == 0) multiply_16x8x16(all.c[t], one, b, T());
                    if (!LIFTED && off[1]) multiply_16x8x16(own.c[t], off, b, T());
                }
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = (int)lane() / 4 + 8 * half;
            const float scale = Scales::of(block + CODES, group, row);
            float least = Leasts::of(block + CODES + Scales::BYTES, group, row);
            if (Codes::offset(T()) != 0.0f) least -= Codes::offset(T()) * scale;
#pragma unroll
            for (int t = 0; t < C::TILES; t++) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    sums.c[t][i] = fused(own.c[t][i], scale, sums.c[t][i]);
                    float& more = TOGETHER > 1 ? sums.lifted.c[t][i] : sums.c[t][i];
                    if (LIFTED) more = fused(all.c[t][i], least, more);
                }
            }
        }
    }
};

// By one thread: ``count`` blocks of a row group, ``tile_blocks`` to an item, of which as many as ``flying``, a number
// or a pace, are on their way at once.
template <class Coded, int STAGES, class Flying>
MC_INLINE void bring_coded_group(const Ring<STAGES>& ring, int& item, const unsigned char* from, int count,
                                 int tile_blocks, const Flying& flying) {
#pragma unroll 1
    for (int at = 0; at < count; at += tile_blocks, item++) {
        const u32 bytes = min(tile_blocks, count - at) * (u32)Coded::BYTES;
        ring.limit(item, flying);
        ring.acquire(item, bytes);
        ring.fill(item, 0, from + (size_t)at * Coded::BYTES, bytes);
    }
}

// Sums of a row group as multiply_row_group (mc_tasks.cuh) gives them. Warps take blocks in turn over all of the group,
// as a tile has few. ``Coded`` says how they are multiplied.
template <class Coded, int WARPS, int BATCH, class T, int STAGES, class Coming = There>
MC_INLINE float multiply_coded_group(const Ring<STAGES>& ring, int& item, const T* columns, float* parts, int& turn,
                                     int count, int tile_blocks, int me, Coming&& coming = There()) {
    typedef JoinedSums<T, BATCH, WARPS> Joined;
    typename Coded::template RowsOf<BATCH, T> sum;
    typedef typename decltype(sum)::C C;
    constexpr int BLOCKS = decltype(sum)::BLOCKS;
    int at = 0;
    do {
        const int end = coming.until(at, count, tile_blocks, Coded::FRAGMENTS);
        for (; at < end; at += tile_blocks, item++) {
            const unsigned char* tile = ring.ready(item);
            const int blocks = min(tile_blocks, count - at);
            int k = (int)(warp() + WARPS - at / BLOCKS % WARPS) % WARPS * BLOCKS;
#pragma unroll(Coded::IN_GROUPS || BLOCKS > 1 || (Coded::LIFTED && C::TILES > 1) ? 1 : 2)
            for (; k <= blocks - BLOCKS; k += WARPS * BLOCKS) sum.add(tile + k * Coded::BYTES, columns, at + k);
            if constexpr (BLOCKS > 1) {
                if (k < blocks) sum.add_last(tile + k * Coded::BYTES, columns, at + k);
            }
            ring.release(item);
        }
    } while (at < count);
    sum.finish();
    float* part = parts + turn++ % 2 * (WARPS * Joined::COUNT);
    Joined::put(part, sum);
    group_sync(1, 32 * WARPS);  // the next group's sums go to the other half
    return me < Joined::COUNT ? Joined::all(part, me) : 0.0f;
}

}  // namespace mc
