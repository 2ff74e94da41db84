// Products of vectors with rows of a matrix in fragments, and loads of 8 x 8 matrices.
#include "mc.cuh"

constexpr int WIDTH = 208, WARPS = 4, WORKERS = 32 * WARPS;

// One row group of four warps: y [BATCH, 16]; normed with a gain if there is one.
template <class T, int BATCH>
MC_INLINE void product(const float* x, const T* gain, const T* matrix, float* y) {
    T* columns = (T*)mc::arena();
    T* blocks = columns + WIDTH / 16 * mc::Columns<BATCH>::STEP;
    float* parts = (float*)(blocks + 16 * WIDTH);
    for (int i = mc::thread(); i < 16 * WIDTH; i += WORKERS) blocks[i] = matrix[i];
    if (gain) {
        const mc::Gains<T, WIDTH, WORKERS> gains(gain, mc::thread());
        mc::put_normed_columns<T, BATCH, WIDTH, WORKERS>(columns, x, gains, 1e-5f, parts,
                                                         mc::thread(), 1);
    } else {
        mc::put_columns<T, BATCH, WIDTH, WORKERS>(columns, x, mc::thread());
    }
    mc::block_sync();
    mc::RowSums<T, BATCH> sums;
    for (int k = mc::warp(); k < WIDTH / 16; k += WARPS) {
        sums.add(blocks + k * 256, columns + k * mc::Columns<BATCH>::STEP);
    }
    typedef mc::JoinedSums<T, BATCH, WARPS> Joined;
    Joined::put(parts, sums);
    mc::block_sync();
    for (int i = mc::thread(); i < Joined::COUNT; i += WORKERS) y[i] = Joined::all(parts, i);
}

#define PRODUCT(T, BATCH)                                                                     \
    extern "C" __global__ void __launch_bounds__(WORKERS, 1) product_##T##_##BATCH(           \
        const float* x, const mc::T* gain, const mc::T* matrix, float* y) {                   \
        product<mc::T, BATCH>(x, gain, matrix, y);                                            \
    }                                                                                         \
    extern "C" __global__ void __launch_bounds__(WORKERS, 1) plain_##T##_##BATCH(             \
        const float* x, const mc::T* matrix, float* y) {                                      \
        product<mc::T, BATCH>(x, nullptr, matrix, y);                                         \
    }                                                                                         \
    MC_EXPORT(product_##T##_##BATCH)                                                          \
    MC_EXPORT(plain_##T##_##BATCH)

PRODUCT(f16, 1)
PRODUCT(bf16, 1)
PRODUCT(f16, 3)
PRODUCT(bf16, 4)
PRODUCT(f16, 5)
PRODUCT(bf16, 8)
PRODUCT(bf16, 11)
PRODUCT(f16, 16)

// rows [32, 8]; words [32 lanes, 4].
template <bool TRANSPOSED>
MC_INLINE void load(const mc::u16* rows, mc::u32* words) {
    mc::u16* held = (mc::u16*)mc::arena();
    for (int i = mc::thread(); i < 256; i += 32) held[i] = rows[i];
    mc::warp_sync();
    mc::u32 found[4];
    if (TRANSPOSED) {
        mc::load_matrices_transposed(found, held + mc::lane() * 8);
    } else {
        mc::load_matrices(found, held + mc::lane() * 8);
    }
    for (int i = 0; i < 4; i++) words[mc::lane() * 4 + i] = found[i];
}

extern "C" __global__ void __launch_bounds__(32, 1)
    matrices(const mc::u16* rows, mc::u32* words) {
    load<false>(rows, words);
}
MC_EXPORT(matrices)

extern "C" __global__ void __launch_bounds__(32, 1)
    matrices_transposed(const mc::u16* rows, mc::u32* words) {
    load<true>(rows, words);
}
MC_EXPORT(matrices_transposed)
