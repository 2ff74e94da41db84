// Rows of caches as floats of eight bits (e4m3) with a scale each, a power of two.
//
// In a cache, and in tiles of it, the scales of sixteen tokens of a head lie side by side, a byte each, in front of the
// rows, whose chunks of 16 bytes are exchanged by the token's position as those of 16-bit values are (Swizzle). Where
// tokens lie apart, in pages of one or beside other heads, each row has its scale behind it (MC_SCALES_BEHIND). On the
// way to tensor cores bits of two floats are put where they are 16-bit ones, times a power of two, which one product
// with the scale takes off: numbers are exact in both types.
#pragma once

#include "mc_attention.cuh"

namespace mc {

typedef unsigned char u8;

// Bits of a float of eight bits, the nearest to ``v``, of two the even one, and the largest where that is none.
MC_INLINE u32 e4m3_of(float v) {
    const u32 bits = bits_of(v), most = bits & 0x7fffffffu;
    // Below 2^-6 floats are multiples of 2^-9.
    const u32 code = most < 0x3c800000u ? bits_of(float_of(most) * 512.0f + 8388608.0f) & 0xfu
                                        : ((most + 0x7ffffu + (most >> 20 & 1u)) >> 20) - 960u;
    return (code < 0x7eu ? code : 0x7eu) | (bits >> 24 & 0x80u);
}

// The float that bits are of.
MC_INLINE float of_e4m3(u32 code) { return float_of((code & 0x80u) << 24 | (code & 0x7fu) << 20) * 1.329227995784916e36f; }

// A scale is the byte of its exponent in f32. Of a row that has lanes which no scale is for, or which are no numbers,
// it is one that is infinite, as the number by which the bits of the row are multiplied is then.
constexpr u32 LEAST_SCALE = 127 - 15, INFINITE_SCALE = 127 + 8;

MC_INLINE float scale_of(u32 byte) { return float_of(byte < INFINITE_SCALE ? byte << 23 : 0x7f800000u); }

// Two scales as a word of what pairs are multiplied by: 2^8 times as much in f16, 2^120 times in bf16.
MC_INLINE u32 two_scales(u32 low, u32 high, f16) { return low - 104u << 10 | high - 104u << 26; }
MC_INLINE u32 two_scales(u32 low, u32 high, bf16) { return low + 120u << 7 | high + 120u << 23; }

// The first and third of four floats that a word holds, and the second and fourth, times scales.
MC_INLINE void decode_four(u32 word, u32 scales, u32* pairs, f16) {
    pairs[0] = multiply_two(masked_or(word << 8, 0x80008000u, word << 7 & 0x3f803f80u), scales, f16());
    pairs[1] = multiply_two(masked_or(word, 0x80008000u, word >> 1 & 0x3f803f80u), scales, f16());
}
MC_INLINE void decode_four(u32 word, u32 scales, u32* pairs, bf16) {
    pairs[0] = multiply_two(masked_or(word << 8, 0x80008000u, word << 4 & 0x07f007f0u), scales, bf16());
    pairs[1] = multiply_two(masked_or(word, 0x80008000u, word >> 4 & 0x07f007f0u), scales, bf16());
}

#ifdef MC_SCALES_BEHIND
// Where rows of LANES floats lie in memory: each in as many sixteens of bytes as it needs, and in the next sixteen its
// scale, a float.
template <int LANES>
struct CodedRows {
    static constexpr int SCALE = (LANES + 15) / 16 * 16, ROW = SCALE + 16;

    static MC_INLINE int row(int token) { return token * ROW; }

    // The byte of a token's scale: that of an infinite one where what is there is none of those that rows are coded with.
    static MC_INLINE u32 scale(const u8* from, int token) {
        const u32 bits = *(const u32*)(from + row(token) + SCALE), byte = bits >> 23;
        const bool one = !(bits & 0x7fffffu) && byte >= LEAST_SCALE && byte < INFINITE_SCALE;
        return one ? byte : INFINITE_SCALE;
    }
    static MC_INLINE void put_scale(u8* to, int token, u32 byte) { *(float*)(to + row(token) + SCALE) = scale_of(byte); }

    // Where a chunk and a lane lie in a row: as many sixteens of bytes as rows have of an odd number are in other banks.
    static MC_INLINE int chunk(int chunk, int) { return 16 * chunk; }
    static MC_INLINE int lane(int lane, int) { return lane; }

    // Bytes that are copied of ``count`` tokens.
    static MC_INLINE u32 bytes(int count) { return count * ROW; }

    // A lane of a token, as it is numbered there.
    static MC_INLINE float element(const u8* from, int token, int, int of) {
        return of_e4m3(from[row(token) + of]) * scale_of(scale(from, token));
    }
};
#else
// Where rows of LANES floats lie in memory that begins with the scales of its first sixteen tokens.
template <int LANES>
struct CodedRows {
    static constexpr bool CHUNKS = LANES % 16 == 0;  // whole ones
    static constexpr int SIXTEEN = 16 * (LANES + 1);  // bytes of as many tokens

    static MC_INLINE u32 scale(const u8* from, int token) { return from[token / 16 * SIXTEEN + token % 16]; }
    static MC_INLINE void put_scale(u8* to, int token, u32 byte) { to[token / 16 * SIXTEEN + token % 16] = (u8)byte; }
    static MC_INLINE int row(int token) { return token / 16 * SIXTEEN + 16 + token % 16 * LANES; }

    // Where a chunk and a lane lie in the row of the token at ``position``.
    static MC_INLINE int chunk(int chunk, int position) { return 16 * Swizzle<LANES / 2>::chunk(chunk, position); }
    static MC_INLINE int lane(int lane, int position) {
        if constexpr (CHUNKS) return chunk(lane / 16, position) + lane % 16;
        return lane;
    }

    // Bytes that are copied of ``count`` tokens: scales of all sixteen, and all rows where these end in no chunk.
    static MC_INLINE u32 bytes(int count) {
        const int sixteens = (count + 15) / 16;
        return CHUNKS ? sixteens * 16 + count * LANES : sixteens * SIXTEEN;
    }

    // A lane of a token, as it is numbered there, at ``position`` of its request.
    static MC_INLINE float element(const u8* from, int token, int position, int of) {
        return of_e4m3(from[row(token) + lane(of, position)]) * scale_of(scale(from, token));
    }
};
#endif

// Lanes of a row as they are numbered.
struct InOrder {
    MC_INLINE int operator()(int lane) const { return lane; }
};

// A row of LANES that a warp codes: value(lane) is that of a lane.
template <int LANES>
struct CodedRow {
    static constexpr int OWN = (LANES + 31) / 32;
    typedef CodedRows<LANES> Rows;
    u32 scale, codes[OWN];

    template <class Value>
    MC_INLINE explicit CodedRow(Value value) {
        float v[OWN];
        u32 most = 0;
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            const int at = (int)lane() + 32 * n;
            v[n] = LANES % 32 == 0 || at < LANES ? value(at) : 0.0f;
            most = max(most, bits_of(v[n]) & 0x7fffffffu);
        }
#pragma unroll
        for (int mask = 16; mask; mask >>= 1) most = max(most, bits_of(shuffle_xor(float_of(most), mask)));
        // The least scale with which the largest is at most 448, 1.75 times 2^8.
        const u32 wanted = most >> 23, more = (most & 0x7fffffu) > 0x600000u;
        scale = wanted + more < LEAST_SCALE + 8 ? LEAST_SCALE : min(wanted + more - 8, INFINITE_SCALE);
        const float inverse = float_of(254 - scale << 23);
#pragma unroll
        for (int n = 0; n < OWN; n++) codes[n] = e4m3_of(v[n] * inverse);
    }

    // As the row of a token at ``to``, which stands at ``position`` of its request. What is lane n here is there lane
    // order(n).
    template <class Order = InOrder>
    MC_INLINE void store(u8* to, int token, int position, Order order = Order()) const {
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            const int at = (int)lane() + 32 * n;
            if (LANES % 32 == 0 || at < LANES) to[Rows::row(token) + Rows::lane(order(at), position)] = (u8)codes[n];
        }
        if (lane() == 0) Rows::put_scale(to, token, scale);
    }

    // The numbers that they stand for.
    MC_INLINE void put(float* to) const {
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            const int at = (int)lane() + 32 * n;
            if (LANES % 32 == 0 || at < LANES) to[at] = of_e4m3(codes[n]) * scale_of(scale);
        }
    }
};

// Keys and values of a tile.
template <int LANES>
struct CodedTile {
    const u8 *keys, *values;

    // Where the token of this number lies, which stands at ``position``.
    MC_INLINE CodedTile of(int& token, int position) const { return *this; }
};

// Those of tokens from position ``since`` on, which no cache has yet, lie in another one.
template <int LANES>
struct CodedNewTile {
    CodedTile<LANES> cached, fresh;
    int since;

    MC_INLINE CodedTile<LANES> of(int& token, int position) const {
        if (position < since) return cached;
        token = position - since;
        return fresh;
    }
};

}  // namespace mc
