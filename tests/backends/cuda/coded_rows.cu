// Rows that a warp codes, and floats of eight bits as pairs of 16-bit values.
#include "mc.cuh"

// x [16, LANES]: rows of the tokens at ``first`` .. of a request, as they lie in a cache, and what they stand for.
template <int LANES>
MC_INLINE void code(const float* x, int first, unsigned char* rows, float* y) {
    for (int t = 0; t < 16; t++) {
        const mc::CodedRow<LANES> row([&](int lane) { return x[t * LANES + lane]; });
        row.store(rows, t, first + t);
        row.put(y + t * LANES);
    }
    mc::warp_sync();
    for (int i = mc::lane(); i < 16 * LANES; i += 32) {
        const int t = i / LANES;
        y[16 * LANES + i] = mc::CodedRows<LANES>::element(rows, t, first + t, i % LANES);
    }
}

#define CODE(LANES)                                                                            \
    extern "C" __global__ void __launch_bounds__(32, 1)                                        \
        code_##LANES(const float* x, int first, unsigned char* rows, float* y) {               \
        code<LANES>(x, first, rows, y);                                                        \
    }                                                                                          \
    MC_EXPORT(code_##LANES)

// The first lane of a row as it lies in a cache.
extern "C" __global__ void __launch_bounds__(32, 1) element_16(const unsigned char* rows, float* y) {
    if (mc::lane() == 0) y[0] = mc::CodedRows<16>::element(rows, 0, 0, 0);
}
MC_EXPORT(element_16)

CODE(16)
CODE(20)
CODE(48)
CODE(128)
CODE(256)

// words [count] of four floats and scales [count, 2] of tokens, whose rows have the first two floats and the others.
template <class T>
MC_INLINE void decode(const mc::u32* words, const mc::u32* scales, mc::u32* pairs, int count) {
    for (int i = mc::thread(); i < count; i += 32) {
        mc::decode_four(words[i], mc::two_scales(scales[2 * i], scales[2 * i + 1], T()), pairs + 2 * i, T());
    }
}

#define DECODE(T)                                                                                    \
    extern "C" __global__ void __launch_bounds__(32, 1)                                              \
        decode_##T(const mc::u32* words, const mc::u32* scales, mc::u32* pairs, int count) {         \
        decode<mc::T>(words, scales, pairs, count);                                                  \
    }                                                                                                \
    MC_EXPORT(decode_##T)

DECODE(f16)
DECODE(bf16)
