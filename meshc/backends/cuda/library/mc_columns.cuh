// Products of warpgroups on tensor cores, over the primitives of mc.cuh.
//
// A warpgroup is four neighbouring warps of a block, the first a multiple of four. They multiply 64 rows, 16 of each
// warp, with up to 256 columns; the rows come in registers, the columns lie in shared memory, where the tensor cores
// read them beside what the threads do. So they are no accesses of the threads: what a copy has brought they see
// behind the wait for it, and it may be overwritten behind wait_for_products() alone.
//
// Columns of 16 values lie as put_column() leaves them: a token's values in the order in which fragments of a
// matrix have them (mc_fragments.cuh), eight and eight, which are exchanged for tokens 4 to 7 of each eight, as
// tensor cores ask for of rows of 32 bytes.
#pragma once

namespace mc {

// Where value ``k`` of ``token`` lies among columns of ``tokens`` tokens, [width / 16, tokens, 16].
MC_INLINE size_t in_columns(int tokens, int token, int k) {
    const int half = (k / 2 ^ token / 4) & 1;
    return ((size_t)(k / 16) * tokens + token) * 16 + half * 8 + k % 16 / 4 * 2 + k % 2;
}

// Eight values, k a multiple of eight, that ``words`` hold, two each.
template <class T>
MC_INLINE void put_column(T* columns, int tokens, int token, int k, uint4 words) {
    *(uint2*)(columns + in_columns(tokens, token, k)) = make_uint2(words.x, words.z);
    *(uint2*)(columns + in_columns(tokens, token, k + 2)) = make_uint2(words.y, words.w);
}

// What a lane has of a token's column as the right operand of multiply_16x8x16(); ``columns`` of 16 values, of
// which the first is of a token that is a multiple of eight.
template <class T>
MC_INLINE void load_column(const T* columns, int token, u32 (&words)[2]) {
    const T* own = columns + token * 16 + lane() % 4 * 2;
    const int half = token / 4 % 2 * 8;
    words[0] = *(const u32*)(own + half);
    words[1] = *(const u32*)(own + (half ^ 8));
}

// Columns of 16 values of a multiple of eight tokens at ``address`` of shared memory, a multiple of 256: rows of 32
// bytes, whose halves are exchanged by place, eights of them 256 bytes apart (PTX ISA, matrix descriptor).
MC_INLINE u64 columns_at(u32 address) {
    return (u64)(address >> 4) | (u64)1 << 16 | (u64)(256 >> 4) << 32 | (u64)3 << 62;
}

}  // namespace mc
