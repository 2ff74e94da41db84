// Products with a matrix that lies quantised in whole codes of four or eight bits (mc_codes.cuh), by tensor cores of whole
// numbers: codes need not become floats.
//
// The few vectors, f32, are whole numbers as well: over a power of two, that of the largest of each GROUP of values, they
// have 30 bits and a sign, of which the columns of the right operand are the digits, four of eight bits. A lane's two
// sums of a row are those of two neighbouring digits: together they are a whole number of 32 bits, which is scaled in f32.
// What is the same for all rows, what to take off each code and least numbers, is multiplied by the sum of the group's
// values.
#pragma once

#include "mc_codes.cuh"

namespace mc {

// BATCH vectors as digits: behind one another, for each group of values, [groups of AT_ONCE fragments, column, quarter,
// fragment] words of four digits, then for each vector the unit of its digits and the sum of its values.
template <class Coded, int BATCH>
struct Digits {
    static constexpr int GROUP = Coded::OF_GROUP * 16, AT_ONCE = Coded::STEP;  // values; fragments whose words a lane loads
    static constexpr int PARTS = 4, COUNT = PARTS * BATCH, TILES = (COUNT + 7) / 8;
    static constexpr int WORDS = GROUP / 4 * COUNT, BYTES = 4 * WORDS + (8 * BATCH + 15) / 16 * 16;  // of a group
    static constexpr bool TOGETHER = true;  // lanes that have values of a group put them together
    static_assert(AT_ONCE % 2 == 0 && GROUP % 32 == 0 && GROUP <= 256, "products are of two fragments, lanes of one warp");

    static MC_INLINE unsigned char* group(void* columns, int k) { return (unsigned char*)columns + k / GROUP * BYTES; }
    static MC_INLINE const unsigned char* group(const void* columns, int k) {
        return (const unsigned char*)columns + k / GROUP * BYTES;
    }

    // Values k .. k + 7 of vector ``b``, by all lanes of a warp, whose ``k`` are neighbours; those that are not ``there``
    // put nothing.
    template <class T>
    static MC_INLINE void put(T* columns, int b, int k, const float* v, bool there) {
        float most = 0.0f, sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) most = larger(most, fabsf(v[i])), sum += v[i];
#pragma unroll
        for (int mask = 1; mask < GROUP / 8; mask *= 2) {
            most = larger(most, shuffle_xor(most, mask));
            sum += shuffle_xor(sum, mask);
        }
        if (!there) return;
        // The largest value is below two to the power of exponent - 126.
        const u32 exponent = max(bits_of(most) >> 23, 30u);
        const float over_unit = float_of(283 - min(exponent, 254u) << 23);
        u32 digits[8];
#pragma unroll
        for (int i = 0; i < 8; i++) digits[i] = ((u32)nearest(v[i] * over_unit) + 0x00808080u) ^ 0x00808080u;
        unsigned char* const own = group(columns, k);
        const int fragment = k % GROUP / 16;
        u32* const to = (u32*)own + ((fragment / AT_ONCE * COUNT + b * PARTS) * 4 + k % 16 / 4) * AT_ONCE + fragment % AT_ONCE;
#pragma unroll
        for (int q = 0; q < 2; q++) {
            const u32* four = digits + 4 * q;
            const u32 low = permuted(four[0], four[2], 0x5140), later_low = permuted(four[1], four[3], 0x5140);
            const u32 high = permuted(four[0], four[2], 0x7362), later_high = permuted(four[1], four[3], 0x7362);
            to[q * AT_ONCE] = permuted(high, later_high, 0x7632);
            to[(q + 4) * AT_ONCE] = permuted(high, later_high, 0x5410);
            to[(q + 8) * AT_ONCE] = permuted(low, later_low, 0x7632);
            to[(q + 12) * AT_ONCE] = permuted(low, later_low, 0x5410);
        }
        if (k % GROUP == 0) *(float2*)(own + 4 * WORDS + 8 * b) = float2{float_of(exponent - 29 << 23), sum};
    }
};

// What a lane has of the products of 16 rows with all vectors: sums of two digits, the higher ones in even lanes, over
// units, and what least numbers add. Where digits leave half of the columns free, those of two groups stand side by
// side: each group's codes are multiplied by both, and a lane has the sums of one group of the two.
template <class Coded, int BATCH>
struct DigitSums {
    typedef Digits<Coded, BATCH> C;
    static constexpr int SIDES = 2 * C::COUNT <= 8 && (Coded::GROUPS == 1 || Coded::GROUPS % 2 == 0) ? 2 : 1;
    static constexpr int BLOCKS = Coded::GROUPS == 1 ? SIDES : 1;  // that are added at once
    float own[C::TILES][2], lifted[C::TILES][2];

    // Of zeros.
    MC_INLINE DigitSums() {
#pragma unroll
        for (int t = 0; t < C::TILES; t++) {
#pragma unroll
            for (int half = 0; half < 2; half++) own[t][half] = lifted[t][half] = 0.0f;
        }
    }

    // Adds the products of BLOCKS blocks from number ``at`` on, of columns from the first one on; both in shared memory.
    template <class T>
    MC_INLINE void add(const unsigned char* block, const T* columns, int at) {
        const unsigned char* const own = (const unsigned char*)columns + at * Coded::GROUPS * C::BYTES;
#pragma unroll 1
        for (int group = 0; group < Coded::GROUPS; group += SIDES) add_groups<SIDES, T>(block, own + group * C::BYTES, group);
    }

    // Adds those of one block, where no other one is beside it.
    template <class T>
    MC_INLINE void add_last(const unsigned char* block, const T* columns, int at) {
        add_groups<1, T>(block, (const unsigned char*)columns + at * C::BYTES, 0);
    }

    MC_INLINE void finish() {}

    // Calls take(row of the 16, vector, sum) for each sum that this lane has; all lanes do so.
    template <class Take>
    MC_INLINE void each(Take take) const {
        const int q = (int)lane() % 4;
#pragma unroll
        for (int t = 0; t < C::TILES; t++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float sum = own[t][half] * (q % 2 ? 1.0f : 65536.0f), more = lifted[t][half];
                sum += shuffle_xor(sum, 1);
                if (SIDES == 2) sum += shuffle_xor(sum, 2), more += shuffle_xor(more, 2);
                const int vector = 2 * t + q / 2;
                if (q % 2 == 0 && (BATCH % 2 == 0 || vector < BATCH)) {
                    take((int)lane() / 4 + 8 * half, vector, fused(sum, Coded::whole_unit(half), more));
                }
            }
        }
    }

private:
    // Adds those of ``MANY`` groups.
    template <int MANY, class T>
    MC_INLINE void add_groups(const unsigned char* block, const unsigned char* columns, int group) {
        int sums[MANY][C::TILES][4] = {};
        const int q = (int)lane() % 4;
#pragma unroll
        for (int first = 0; first < Coded::OF_GROUP; first += Coded::STEP) {
            u32 b[C::TILES][C::AT_ONCE];
#pragma unroll
            for (int t = 0; t < C::TILES; t++) {
                // Lanes without a column have another one's: nobody takes their sums.
                const int place = 8 * t + (int)lane() / 4, column = MANY == 1 ? min(place, C::COUNT - 1) : place % C::COUNT;
                const unsigned char* const of = columns + (MANY == 1 ? 0 : place / C::COUNT * C::BYTES);
                load_fragment((const T*)of + ((first / C::AT_ONCE * C::COUNT + column) * 4 + q) * C::AT_ONCE * 2, b[t]);
            }
#pragma unroll
            for (int side = 0; side < MANY; side++) {
                u32 words[Coded::AT_ONCE], rows[C::AT_ONCE][2];
                Coded::template load<T>(block_of(block, side), group_of(group, side) * Coded::OF_GROUP + first, words);
#pragma unroll
                for (int n = 0; n < C::AT_ONCE; n++) Coded::whole(words + n * Coded::WORDS, rows[n]);
#pragma unroll
                for (int t = 0; t < C::TILES; t++) {
#pragma unroll
                    for (int n = 0; n < C::AT_ONCE; n += 2) {
                        const u32 a[4] = {rows[n][0], rows[n][1], rows[n + 1][0], rows[n + 1][1]};
                        multiply_16x8x32(sums[side][t], a, b[t] + n);
                    }
                }
            }
        }
        const int side = MANY == 1 ? 0 : q / 2;
        if (MANY < SIDES && q / 2) return;
        float2 of[C::TILES];  // the unit and the sum of a lane's vector
#pragma unroll
        for (int t = 0; t < C::TILES; t++) {
            const int vector = SIDES > 1 ? 0 : BATCH % 2 ? min(2 * t + q / 2, BATCH - 1) : 2 * t + q / 2;
            of[t] = *(const float2*)(columns + side * C::BYTES + 4 * C::WORDS + 8 * vector);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = (int)lane() / 4 + 8 * half;
            const unsigned char* const from = block_of(block, side);
            const float scale = Coded::scale(from, group_of(group, side), row);
            const float least = Coded::whole_least(from, group_of(group, side), row, scale);
#pragma unroll
            for (int t = 0; t < C::TILES; t++) {
                const int high = side ? sums[MANY - 1][t][2 * half] : sums[0][t][2 * half];
                const int low = side ? sums[MANY - 1][t][2 * half + 1] : sums[0][t][2 * half + 1];
                own[t][half] = fused((float)(high * 256 + low) * of[t].x, scale, own[t][half]);  // units begin at 2^-126
                lifted[t][half] = fused(least, of[t].y, lifted[t][half]);
            }
        }
    }

    // Where the groups lie that are added at once: in blocks behind one another, or in one.
    static MC_INLINE const unsigned char* block_of(const unsigned char* block, int side) {
        return BLOCKS > 1 ? block + side * Coded::BYTES : block;
    }
    static MC_INLINE int group_of(int group, int side) { return BLOCKS > 1 ? group : group + side; }
};

// A block of codes that is multiplied so.
template <class Coded>
struct Whole : Coded {
    template <int BATCH, class T>
    using RowsOf = DigitSums<Coded, BATCH>;
};

}  // namespace mc
