// Floats of eight bits that stay quantised, as pairs of 16-bit values.
#include "mc.cuh"

// Blocks of 16 x 16 with a scale of each row, and the pairs [count, 32, 4] that lanes make of them.
#define DECODE(T)                                                                      \
    extern "C" __global__ void __launch_bounds__(32, 1)                                \
        decode_##T(const unsigned char* blocks, int count, mc::u32* pairs) {           \
        for (int n = 0; n < count; n++) {                                              \
            const mc::u32* words = (const mc::u32*)(blocks + n * 320) + 2 * mc::lane(); \
            mc::u32 own[4];                                                            \
            mc::E4M3::fragment(words, own, mc::T());                                   \
            for (int i = 0; i < 4; i++) pairs[(n * 32 + mc::lane()) * 4 + i] = own[i]; \
        }                                                                              \
    }                                                                                  \
    MC_EXPORT(decode_##T)

DECODE(f16)
DECODE(bf16)
