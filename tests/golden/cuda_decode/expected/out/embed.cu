// embed: rows of the table of embeddings, one per request.
//
// Written by meshc.
#include "mc.cuh"

namespace embed_ {

typedef mc::f16 T;

constexpr int HIDDEN = 128;
constexpr int VOCABULARY = 200;
constexpr int THREADS = 256;

}  // namespace embed_

// tokens [batch], one block each. table: VOCABULARY rows in fragments. residual [batch, HIDDEN] gets the rows,
// zeros where a token is none; sums [batch, HIDDEN] gets zeros.
extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(embed_::THREADS, 1)
    embed(const int* tokens, const embed_::T* __restrict__ table,
        float* residual, float* sums) {
    using namespace embed_;
    mc::wait_for_previous_grid();
    mc::let_next_grid_start();
    const int token = tokens[mc::block()];
    const bool known = token >= 0 && token < VOCABULARY;
    const size_t to = (size_t)mc::block() * HIDDEN;
    for (int i = mc::thread(); i < HIDDEN; i += THREADS) {
        residual[to + i] = known ? mc::widen(table[mc::in_fragments<HIDDEN>(token, i)]) : 0.0f;
        sums[to + i] = 0.0f;
    }
}
MC_EXPORT(embed)
