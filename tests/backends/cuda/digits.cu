// Products of a row group of codes with a few vectors as whole numbers, by one warp.
#include "mc.cuh"

// Blocks [count] of 16 rows; vectors [BATCH, width]; columns have room for their digits; sums [16, BATCH].
template <class Coded, int BATCH>
MC_INLINE void multiply(const unsigned char* blocks, int count, const float* vectors, unsigned char* columns, float* sums) {
    typedef mc::f16 T;  // of which nothing depends but how columns are pointed at
    const int width = count * Coded::FRAGMENTS * 16;
    for (int b = 0; b < BATCH; b++) {
        for (int first = 0; first < width; first += 256) {
            const int k = first + 8 * (int)mc::lane();
            float v[8] = {};
            for (int i = 0; i < 8; i++) v[i] = k < width ? vectors[b * width + k + i] : 0.0f;
            mc::Digits<Coded, BATCH>::put((T*)columns, b, k, v, k < width);
        }
    }
    mc::block_sync();
    typename mc::Whole<Coded>::template RowsOf<BATCH, T> sum;
    constexpr int BLOCKS = decltype(sum)::BLOCKS;
    int at = 0;
    for (; at <= count - BLOCKS; at += BLOCKS) sum.template add<T>(blocks + at * Coded::BYTES, (const T*)columns, at);
    if (at < count) sum.template add_last<T>(blocks + at * Coded::BYTES, (const T*)columns, at);
    sum.finish();
    sum.each([&](int row, int vector, float found) { sums[row * BATCH + vector] = found; });
}

#define MULTIPLY(NAME, CODED, BATCH)                                                                                         \
    extern "C" __global__ void __launch_bounds__(32, 1)                                                                      \
        NAME(const unsigned char* blocks, int count, const float* vectors, unsigned char* columns, float* sums) {            \
        multiply<CODED, BATCH>(blocks, count, vectors, columns, sums);                                                       \
    }                                                                                                                        \
    MC_EXPORT(NAME)
