// Codes of weights that stay quantised, as pairs of 16-bit values.
#include "mc.cuh"

// Blocks of 16 x SPAN, BYTES each, and the pairs [count, SPAN / 16, 32, 4] that lanes make of them.
template <class Codes, int SPAN, int BYTES, class T>
MC_INLINE void decode(const unsigned char* blocks, int count, mc::u32* pairs) {
    constexpr int FRAGMENTS = SPAN / 16;
    for (int n = 0; n < count; n++) {
        for (int f = 0; f < FRAGMENTS; f++) {
            const mc::u32* words = (const mc::u32*)(blocks + n * BYTES) + (mc::lane() * FRAGMENTS + f) * Codes::WORDS;
            mc::u32 own[4];
            Codes::fragment(words, own, T());
            for (int i = 0; i < 4; i++) pairs[((n * FRAGMENTS + f) * 32 + mc::lane()) * 4 + i] = own[i];
        }
    }
}

#define DECODE(NAME, CODES, SPAN, BYTES, T)                                 \
    extern "C" __global__ void __launch_bounds__(32, 1)                     \
        NAME##_##T(const unsigned char* blocks, int count, mc::u32* pairs) { \
        decode<mc::CODES, SPAN, BYTES, mc::T>(blocks, count, pairs);        \
    }                                                                       \
    MC_EXPORT(NAME##_##T)

DECODE(e4m3, E4M3, 16, 320, f16)
DECODE(e4m3, E4M3, 16, 320, bf16)
DECODE(mxfp4, E2M1, 32, 288, f16)
DECODE(mxfp4, E2M1, 32, 288, bf16)
DECODE(q8, Codes8<128>, 32, 544, bf16)
