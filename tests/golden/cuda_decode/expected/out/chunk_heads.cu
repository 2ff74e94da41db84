// chunk_heads: rotary embedding of queries and keys, and what the caches hold, of all tokens of a chunk.
//
// Written by meshc. A block has a token, a warp one of its heads at a time.
#include "mc.cuh"

namespace chunk_heads_ {

typedef mc::f16 T;

constexpr int KV_HEADS = 2;
constexpr int GROUP = 2;  // query heads of a key/value head
constexpr int HEAD = 64;
constexpr int PAGE = 16;  // tokens of a page of the cache
constexpr int WARPS = 8;
constexpr int PAIRS = HEAD / 2;
constexpr int OWN_PAIRS = (PAIRS + 31) / 32;  // of a lane

}  // namespace chunk_heads_

// projected [tokens, KV_HEADS, GROUP + 2, HEAD]. count [1]: tokens of this chunk. queries [tokens,
// KV_HEADS, GROUP, HEAD]. keys, values: pools of pages [KV_HEADS, PAGE, HEAD], chunks of eight lanes swizzled by the
// token's position. pages [max_pages]. cached [tokens]: tokens before each. cosines, sines
// [positions, HEAD / 2].
extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(32 * chunk_heads_::WARPS, 1)
    chunk_heads(const float* projected,
        const int* count, chunk_heads_::T* queries, chunk_heads_::T* keys, chunk_heads_::T* values,
        const int* pages, const int* cached, const float* __restrict__ cosines,
        const float* __restrict__ sines) {
    using namespace chunk_heads_;
    mc::wait_for_previous_grid();
    mc::let_next_grid_start();
    const int token = mc::block();
    if (token >= count[0]) return;
    const int position = cached[token], page = pages[position / PAGE];
    for (int part = mc::warp(); part < KV_HEADS * (GROUP + 2); part += WARPS) {
        const int head = part / (GROUP + 2), place = part % (GROUP + 2);
        const float* row = projected + ((size_t)token * KV_HEADS * (GROUP + 2) + part) * HEAD;
        float pairs[OWN_PAIRS][2] = {};
#pragma unroll
        for (int n = 0; n < OWN_PAIRS; n++) {
            const int pair = mc::lane() + 32 * n;
            if (pair < PAIRS) pairs[n][0] = row[2 * pair], pairs[n][1] = row[2 * pair + 1];
        }
        T* to = place < GROUP ? queries + (((size_t)token * KV_HEADS + head) * GROUP + place) * HEAD
                              : (place == GROUP ? keys : values) +
                                    (((size_t)page * KV_HEADS + head) * PAGE + position % PAGE) * HEAD;
#pragma unroll
        for (int n = 0; n < OWN_PAIRS; n++) {
            const int pair = mc::lane() + 32 * n;
            if (pair >= PAIRS) continue;
            float a = pairs[n][0], b = pairs[n][1];
            if (place <= GROUP) {
                const float cosine = cosines[(size_t)position * PAIRS + pair];
                const float sine = sines[(size_t)position * PAIRS + pair];
                const float turned = mc::fused(a, cosine, -(b * sine));
                b = mc::fused(b, cosine, a * sine), a = turned;
            }
            const int at = place < GROUP ? 2 * pair : mc::Swizzle<HEAD>::lane(2 * pair, position);
            to[at] = mc::narrow<T>(a), to[at + 1] = mc::narrow<T>(b);
        }
    }
}
MC_EXPORT(chunk_heads)
