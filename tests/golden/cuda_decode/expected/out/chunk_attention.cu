// chunk_attention: causal attention of a chunk's queries over all tokens of the request, those of the chunk included.
//
// Written by meshc. A block has 32 positions of 2 query heads that share a key head. One warp brings keys and values
// through a ring of tiles; eight others attend on tensor cores, with a running maximum.
#include "mc.cuh"

namespace chunk_attention_ {

typedef mc::f16 T;

// ---- Shape -------------------------------------------------------------------------------------
constexpr int TOKENS = 16;  // the most of a chunk
constexpr int KV_HEADS = 2;
constexpr int GROUP = 2;  // query heads of a key/value head
constexpr int OWN = 2;  // of them in a block
constexpr int SHARERS = GROUP / OWN;
constexpr int HEAD = 64;
constexpr int PAGE = 16;  // tokens of a page of the cache
constexpr float SCALE = 0.18033688011112042f;  // of scores, times log2(e)

// ---- Division of the work ------------------------------------------------------------------------
constexpr int WARPS = 8;
constexpr int WORKERS = 32 * WARPS;
constexpr int THREADS = WORKERS + 32;
constexpr int POSITIONS = 32;  // of a block
constexpr int CHUNK_TILES = (TOKENS + POSITIONS - 1) / POSITIONS;
constexpr int QUERIES = POSITIONS * OWN;  // position by position
constexpr int TILE_TOKENS = 64;
typedef mc::TileAttention<T, QUERIES, HEAD, HEAD, TILE_TOKENS, WARPS> Attended;

// ---- Shared memory, 117632 bytes ---------------------------------------------------------------
constexpr int HALF_BYTES = TILE_TOKENS * HEAD * (int)sizeof(T);  // keys, then values
constexpr int STAGES = 4;
constexpr int BARRIERS = 0;
constexpr int ASKED = 128;
constexpr int WORK = 8320;
constexpr int ATTENDED = 35200;
constexpr int MOST = 51584;
constexpr int RING = 52096;
static_assert(Attended::WORK_BYTES <= 26880, "the arena has room");

}  // namespace chunk_attention_

// queries [TOKENS, KV_HEADS, GROUP, HEAD]. keys, values: pools of pages [KV_HEADS, PAGE, HEAD] with the tokens of
// this chunk. pages [max_pages]. count [1]: tokens of this chunk. cached [TOKENS]: tokens before
// each. output [KV_HEADS * GROUP * HEAD / 16, TOKENS, 16].
extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(chunk_attention_::THREADS, 1)
    chunk_attention(const chunk_attention_::T* queries, const chunk_attention_::T* keys,
        const chunk_attention_::T* values, const int* pages, const int* count, const int* cached,
        chunk_attention_::T* output) {
    using namespace chunk_attention_;
    unsigned char* arena = mc::arena();
    mc::Ring<STAGES> ring(arena + BARRIERS, arena + RING, 2 * HALF_BYTES);
    const int me = mc::thread(), warp = mc::warp();
    const int unit = mc::block() % (KV_HEADS * SHARERS), head = unit / SHARERS;
    const int first_head = unit % SHARERS * OWN;  // of the group
    // The last positions see the most, so their blocks come first.
    const int first = (CHUNK_TILES - 1 - mc::block() / (KV_HEADS * SHARERS)) * POSITIONS;

    if (me == 0) {
        ring.set_up(WARPS);
        mc::init_fence();
    }
    mc::block_sync();  // this block's mbarriers are ready
    mc::wait_for_previous_grid();
    mc::let_next_grid_start();
    const int before = cached[0], own = min(POSITIONS, count[0] - first);  // positions
    if (own <= 0) return;
    const int end = before + first + own, tiles = (end + TILE_TOKENS - 1) / TILE_TOKENS;

    if (warp == WARPS) {
        int item = 0;
        mc::bring_tokens<TILE_TOKENS, PAGE>(
            ring, item, pages, 0, tiles, end, 2 * HEAD * (int)sizeof(T),
            [&](int token, int page, int begin, int run) {
                const size_t from = (((size_t)page * KV_HEADS + head) * PAGE + token % PAGE) * HEAD;
                const int at = begin * HEAD * (int)sizeof(T);
                const mc::u32 bytes = run * HEAD * (int)sizeof(T);
                ring.fill(item, at, keys + from, bytes);
                ring.fill(item, at + HALF_BYTES, values + from, bytes);
            });
        return;
    }

    // ---- Queries as lanes of a warp hold them; zeros behind the last one
    T* asked = (T*)(arena + ASKED);
    for (int i = me; i < Attended::PADDED * HEAD / 2; i += WORKERS) {
        const int word = i % 4, block = i / 128, lane = i / 4 % 32;
        const int query = block / (HEAD / 16) * 16 + lane / 4 + word % 2 * 8;
        const int k = block % (HEAD / 16) * 16 + lane % 4 * 2 + word / 2 * 8;
        const size_t token = first + query / OWN;
        const T* from = queries + ((token * KV_HEADS + head) * GROUP + first_head + query % OWN) * HEAD + k;
        const bool real = query < own * OWN;
        asked[2 * i] = real ? from[0] : mc::narrow<T>(0.0f);
        asked[2 * i + 1] = real ? from[1] : mc::narrow<T>(0.0f);
    }
    mc::group_sync(1, WORKERS);

    Attended attention(asked, arena + WORK, me, 1);
    for (int item = 0; item < tiles; item++) {
        const T* tile = (const T*)ring.ready(item);
        const int begin = item * TILE_TOKENS;
        attention.add(tile, tile + HALF_BYTES / (int)sizeof(T), begin, min(TILE_TOKENS, end - begin), SCALE,
                      [&](int query, int position) { return position <= before + first + query / OWN; });
        ring.release(item);
    }
    float* attended = (float*)(arena + ATTENDED);  // [QUERIES, HEAD]
    float* most = (float*)(arena + MOST);  // [QUERIES]
    float* weights = most + QUERIES;  // [QUERIES]
    attention.finish(attended, most, weights);

    // ---- As columns of the output projection
    for (int i = me; i < own * OWN * HEAD / 8; i += WORKERS) {
        const int query = i / (HEAD / 8), k = i % (HEAD / 8) * 8;
        const float share = 1.0f / weights[query];
        float v[8];
#pragma unroll
        for (int n = 0; n < 8; n++) v[n] = attended[query * HEAD + k + n] * share;
        const int at = (head * GROUP + first_head + query % OWN) * HEAD + k;
        mc::put_column(output, TOKENS, first + query / OWN, at, mc::pack8<T>(v));
    }
}
MC_EXPORT(chunk_attention)
