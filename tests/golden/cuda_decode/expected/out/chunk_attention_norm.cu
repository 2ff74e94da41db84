// chunk_attention_norm: RMSNorm of all tokens of a chunk, rounded, in the order in which products read them.
//
// Written by meshc. A warp has a token.
#include "mc.cuh"

namespace chunk_attention_norm_ {

typedef mc::f16 T;

constexpr int TOKENS = 16;  // the most of a chunk
constexpr int WIDTH = 128;  // values of a row, a multiple of eight
constexpr int WARPS = 8;
constexpr float EPSILON = 1e-05f;

}  // namespace chunk_attention_norm_

// input [TOKENS, WIDTH]. gain [WIDTH]. count [1]: tokens of this chunk. output [WIDTH / 16, TOKENS, 16], zeros
// behind the last value of a row.
extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(32 * chunk_attention_norm_::WARPS, 1)
    chunk_attention_norm(const float* input, const chunk_attention_norm_::T* __restrict__ gain, const int* count,
        chunk_attention_norm_::T* output) {
    using namespace chunk_attention_norm_;
    typedef mc::Filled<WIDTH, 32> Row;
    mc::wait_for_previous_grid();
    mc::let_next_grid_start();
    const int token = mc::block() * WARPS + mc::warp();
    if (token >= count[0]) return;
    const float* row = input + (size_t)token * WIDTH;
    float v[8], squares = 0.0f;
    for (int n = mc::lane(); n < Row::CHUNKS; n += 32) {
        Row::load(row, 8 * n, v);
#pragma unroll
        for (int i = 0; i < 8; i++) squares = mc::fused(v[i], v[i], squares);
    }
    const float scale = mc::inverse_root(mc::warp_sum(squares) / (float)WIDTH + EPSILON);
    for (int n = mc::lane(); n < Row::CHUNKS; n += 32) {
        float g[8] = {};
        Row::load(row, 8 * n, v);
        if (8 * n < WIDTH) mc::load8(gain + 8 * n, g);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = v[i] * scale * g[i];
        mc::put_column(output, TOKENS, token, 8 * n, mc::pack8<T>(v));
    }
}
MC_EXPORT(chunk_attention_norm)
