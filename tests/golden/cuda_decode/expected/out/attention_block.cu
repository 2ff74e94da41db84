// attention_block: RMSNorm, projections to queries, keys and values, rotary embedding, attention over the
// cached tokens, output projection and residual sum of one layer, for a decode step.
//
// Written by meshc. 2 clusters of 2 blocks per key/value head (split token), each of which has a
// share of its query heads, computes its key and value and reads its cache. Blocks of a cluster share
// the row groups of the projections, then the cached tokens, then the row groups of the output. One warp
// of each block brings weights, keys and values through one ring of tiles; eight others compute.
#include "mc.cuh"

namespace attention_block_ {

typedef mc::f16 T;

// ---- Shape -------------------------------------------------------------------------------------
constexpr int BATCH = 1;
constexpr int HIDDEN = 128;
constexpr int KV_HEADS = 2;
constexpr int SHARERS = 2;  // clusters that share a key/value head
constexpr int GROUP = 1;  // query heads of a cluster
constexpr int HEAD = 64;
constexpr int PAGE = 16;  // tokens of a page of the cache
constexpr int WINDOW = 0;  // tokens that a query sees; 0 for all
constexpr float EPSILON = 1e-05f;
constexpr float SCALE = 0.18033688011112042f;  // of scores, times log2(e)

// ---- Division of the work ------------------------------------------------------------------------
constexpr int CLUSTER = 2;
constexpr int WARPS = 8;
constexpr int WORKERS = 32 * WARPS;
constexpr int THREADS = WORKERS + 32;
constexpr int ROWS = (GROUP + 2) * HEAD;  // of queries, keys and values of a cluster
constexpr int GROUPS = ROWS / 16;  // of rows
constexpr int QUERY_GROUPS = GROUP * HEAD / 16;
constexpr int ALL_GROUPS = GROUPS + (SHARERS - 1) * QUERY_GROUPS;  // of a key/value head
constexpr int BLOCKS = (HIDDEN + 15) / 16;  // of 16 x 16 values in a row group
constexpr int TILE_BLOCKS = 8;
constexpr int TILE_TOKENS = 128;
constexpr int ATTENDED = GROUP * HEAD;  // values of a cluster that the output projection takes
constexpr int OUT_GROUPS = (HIDDEN + 15) / 16;  // row groups of the output projection
constexpr int OUT_BLOCKS = ATTENDED / 16;
constexpr int OUT_TILE_BLOCKS = 64;
typedef mc::JoinedSums<T, BATCH, WARPS> Joined;
typedef mc::Angles<BATCH, ROWS / 2, HEAD / 2, HEAD / 2, WORKERS> Angles;
typedef mc::GroupAttention<T, GROUP, HEAD, WARPS> Attended;

// ---- Shared memory, 105856 bytes ---------------------------------------------------------------
constexpr int TILE_BYTES = 32768;
constexpr int STAGES = 3;
constexpr int RING = 0;
constexpr int BARRIERS = 98304;
constexpr int PARTS = 98432;  // sums of the warps
constexpr int ALL = 99456;  // rows of all blocks
constexpr int COLUMNS = 100224;  // inputs
constexpr int PROJECTED = 100224;  // queries, keys, values
constexpr int OUT_COLUMNS = 100224;  // inputs of the output projection
constexpr int JOINED = 100992;  // attention sums of the warps
constexpr int STATISTICS = 103040;  // highest scores and weights
constexpr int ASKED = 103168;  // queries as fragments
constexpr int HIGHEST = 105216;
constexpr int SHARES = 105344;  // of the blocks in the cluster's sums
constexpr int ATTENDED_AT = 105472;  // attention sums of this block

// The tiles of cached tokens that a block reads of one request.
struct Tokens {
    int first, end;  // tokens
    int tile, tiles;  // of TILE_TOKENS, from token 0 on

    MC_INLINE Tokens(int cached, int rank) {
        first = WINDOW && cached + 1 > WINDOW ? cached + 1 - WINDOW : 0;
        end = cached;
        const int begin = first / TILE_TOKENS;
        const int all = (end + TILE_TOKENS - 1) / TILE_TOKENS - begin;
        const int share = (all + CLUSTER - 1) / CLUSTER;
        tile = begin + min(rank * share, all);
        tiles = min(begin + (rank + 1) * share, begin + all) - tile;
        if (tiles < 0) tiles = 0;
    }
};

// Where token ``t`` of a request lies in the pool of pages, for one head; ``page`` is that of the token.
MC_INLINE size_t cached_at(int page, int t, int head) {
    return (((size_t)page * KV_HEADS + head) * PAGE + t % PAGE) * HEAD;
}

// Which row group of the key/value head is ``group`` of one of its clusters.
MC_INLINE int group_of_head(int group, int sharer) {
    return group + (group < QUERY_GROUPS ? sharer : SHARERS - 1) * QUERY_GROUPS;
}

MC_INLINE void rotate(float* pair, float cosine, float sine) {
    const float a = pair[0], b = pair[1];
    pair[0] = mc::fused(a, cosine, -(b * sine));
    pair[1] = mc::fused(b, cosine, a * sine);
}

}  // namespace attention_block_

// residual [BATCH, HIDDEN]: read. sums [BATCH, HIDDEN]: zeros on entry; residual plus the layer's
// output is added. norm [HIDDEN]. qkv [KV_HEADS, ALL_GROUPS, BLOCKS, 32, 8]. out [clusters,
// OUT_GROUPS, OUT_BLOCKS, 32, 8]. keys, values: pools of pages [KV_HEADS, PAGE, HEAD]; this step's are stored,
// chunks of eight lanes swizzled by the token's position. pages
// [BATCH, max_pages]. cached [BATCH]: tokens before this one. cosines, sines [positions, HEAD / 2].
extern "C" __global__ void __cluster_dims__(attention_block_::CLUSTER, 1, 1)
    __launch_bounds__(attention_block_::THREADS, 1)
    attention_block(const float* residual, float* sums,
        const attention_block_::T* __restrict__ norm, const attention_block_::T* __restrict__ qkv,
        const attention_block_::T* __restrict__ out,
        attention_block_::T* keys,
        attention_block_::T* values, const int* pages, int max_pages,
        const int* cached, const float* __restrict__ cosines,
        const float* __restrict__ sines) {
    using namespace attention_block_;
    unsigned char* arena = mc::arena();
    mc::Ring<STAGES> ring(arena + BARRIERS, arena + RING, TILE_BYTES);
    mc::Barrier* gathered = (mc::Barrier*)(arena + BARRIERS + mc::Ring<STAGES>::BARRIER_BYTES);
    mc::Barrier* published = gathered + 1;
    const int me = mc::thread(), lane = mc::lane(), warp = mc::warp();
    const int rank = mc::cluster_rank(), cluster = mc::cluster_index();
    const int head = cluster / SHARERS, sharer = cluster % SHARERS;
    // Row groups of this block: of queries, keys and values, and of the output.
    const int first_group = GROUPS * rank / CLUSTER, end_group = GROUPS * (rank + 1) / CLUSTER;
    const int first_out = OUT_GROUPS * rank / CLUSTER, end_out = OUT_GROUPS * (rank + 1) / CLUSTER;

    if (me == 0) {
        ring.set_up(WARPS);
        mc::init(gathered, 1);
        mc::init(published, CLUSTER);
        mc::init_fence();
    }
    mc::block_sync();  // this block's mbarriers are ready
    mc::cluster_arrive_relaxed();  // so are they for peers, which wait where they first need them

    if (warp == WARPS) {
        // ---- Bring the tiles, in the order in which they are read. Weights do not change in a step, so
        // they need not wait for the grid before; lengths, pages and what is cached may.
        int item = 0;
        if (lane == 0) {
            for (int group = first_group; group < end_group; group++) {
                const size_t at = (size_t)head * ALL_GROUPS + group_of_head(group, sharer);
                mc::bring_blocks(ring, item, qkv + at * BLOCKS * 256, BLOCKS, TILE_BLOCKS);
            }
        }
        mc::wait_for_previous_grid();
        const mc::Lengths<BATCH> lengths(cached);
        for (int b = 0; b < BATCH; b++) {
            const Tokens mine(lengths[b], rank);
            mc::bring_tokens<TILE_TOKENS, PAGE>(
                ring, item, pages + (size_t)b * max_pages, mine.tile, mine.tiles, mine.end, 2 * HEAD * (int)sizeof(T),
                [&](int token, int page, int begin, int count) {
                    const size_t from = cached_at(page, token, head);
                    const int at = begin * HEAD * (int)sizeof(T);
                    const mc::u32 bytes = count * HEAD * (int)sizeof(T);
                    ring.fill(item, at, keys + from, bytes);
                    ring.fill(item, at + TILE_BYTES / 2, values + from, bytes);
                });
        }
        if (lane == 0) {
            const T* outs = out + (size_t)cluster * OUT_GROUPS * OUT_BLOCKS * 256;
            mc::bring_blocks(ring, item, outs + (size_t)first_out * OUT_BLOCKS * 256,
                             (end_out - first_out) * OUT_BLOCKS, OUT_TILE_BLOCKS);
        }
        mc::cluster_wait();
        mc::cluster_arrive_relaxed();  // this warp uses nothing of peers
    } else {
        int item = 0;
        const mc::Gains<T, HIDDEN, WORKERS> gains(norm, me);  // do not change in a step
        mc::wait_for_previous_grid();
        mc::let_next_grid_start();
        const mc::Lengths<BATCH> lengths(cached);
        float* all = (float*)(arena + ALL);  // [BATCH, ROWS]
        // ---- RMSNorm, in every block: the vectors come from L2
        float* parts = (float*)(arena + PARTS);
        T* columns = (T*)(arena + COLUMNS);
        mc::put_normed_columns<T, BATCH, HIDDEN, WORKERS>(columns, residual, gains, EPSILON, parts, me, 1);

        // ---- Angles of the new tokens, whose lengths have come, a projection before they are needed
        const Angles angles(cosines, sines, lengths, me);

        // ---- Queries, keys and values: this block's row groups
        for (int group = first_group; group < end_group; group++) {
            mc::RowSums<T, BATCH> sum;
            mc::add_row_group<WARPS>(sum, ring, item, columns, BLOCKS, TILE_BLOCKS);
            float* part = parts + (group - first_group) % 2 * (WARPS * Joined::COUNT);
            Joined::put(part, sum);
            mc::group_sync(1, WORKERS);  // the next group's sums go to the other half
            for (int n = me; n < Joined::COUNT; n += WORKERS) {
                const int row = 16 * group + n % 16;
                all[n / 16 * ROWS + row] = Joined::all(part, n);
            }
        }
        mc::cluster_wait();  // peers have their mbarriers
        mc::cluster_gather<CLUSTER>(all, BATCH, ROWS, 16 * first_group, 16 * (end_group - first_group), gathered, 0,
                                    me, WORKERS, 1);

        // ---- Queries and keys rotated; keys and values as the cache will hold them
        float* projected = (float*)(arena + PROJECTED);
#pragma unroll Angles::HELD ? Angles::OWN : 1
        for (int n = 0; n < Angles::OWN; n++) {
            const int i = me + n * WORKERS, row = i % (ROWS / 2) * 2, part = row / HEAD;
            const int b = Angles::request(i), length = lengths[b];
            if (BATCH * ROWS / 2 % WORKERS && i >= BATCH * ROWS / 2) break;
            float pair[2] = {all[b * ROWS + row], all[b * ROWS + row + 1]}, angle[2];
            angles.get(n, i, length, angle);
            if (part <= GROUP) rotate(pair, angle[0], angle[1]);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const T stored = mc::narrow<T>(pair[k]);
                projected[b * ROWS + row + k] = part < GROUP ? pair[k] * SCALE : mc::widen(stored);
                if (part >= GROUP && rank == CLUSTER - 1 && sharer == 0) {
                    T* pool = part == GROUP ? keys : values;
                    const int page = pages[(size_t)b * max_pages + length / PAGE];
                    const int lane_of = mc::Swizzle<HEAD>::lane(row % HEAD + k, length);
                    pool[cached_at(page, length, head) + lane_of] = stored;
                }
            }
        }
        mc::group_sync(1, WORKERS);

        // ---- Attention over this block's tokens
        float* highest = (float*)(arena + HIGHEST);  // [BATCH, GROUP] of this block
        float* attended = (float*)(arena + ATTENDED_AT);  // [BATCH, GROUP, HEAD], then weights
        float* weights = attended + BATCH * ATTENDED;  // [BATCH, GROUP]
        T* asked = (T*)(arena + ASKED);
        float *joined = (float*)(arena + JOINED), *statistics = (float*)(arena + STATISTICS);
        for (int b = 0; b < BATCH; b++) {
            const Tokens mine(lengths[b], rank);
            const float* query = projected + b * ROWS;
            Attended::put_queries(asked, query);
            mc::group_sync(1, WORKERS);
            Attended attention(asked);
            // The new token, by the last block's first warp.
            if (rank == CLUSTER - 1 && warp == 0) attention.start(query, query + GROUP * HEAD, query + (GROUP + 1) * HEAD);
            for (int n = 0; n < mine.tiles; n++, item++) {
                const T* key = (const T*)ring.ready(item);
                const T* value = key + TILE_BYTES / 2 / (int)sizeof(T);
                const int begin = (mine.tile + n) * TILE_TOKENS;
                attention.template add<TILE_TOKENS>(key, value, n, begin, mine.end, mine.first, mine.end);
                ring.release(item);
            }
            attention.put(joined, statistics);
            mc::group_sync(1, WORKERS);
            Attended::join(joined, statistics, me, [=](int i, float sum, float most, float weight) {
                attended[b * ATTENDED + i] = sum;
                if (i % HEAD == 0) highest[b * GROUP + i / HEAD] = most, weights[b * GROUP + i / HEAD] = weight;
            });
            mc::group_sync(1, WORKERS);
        }

        // ---- Join the blocks, as columns: what each attended counts by its share of all weights
        mc::cluster_publish<CLUSTER>(published, 0, me, WORKERS, 1);
        float* shares = (float*)(arena + SHARES);  // [BATCH, GROUP, CLUSTER]
        for (int i = warp; i < BATCH * GROUP; i += WARPS) {
            mc::cluster_shares<CLUSTER>(shares + i * CLUSTER, highest + i, weights + i);
        }
        mc::group_sync(1, WORKERS);
        T* inputs = (T*)(arena + OUT_COLUMNS);
        for (int i = me; i < BATCH * ATTENDED / 8; i += WORKERS) {
            const int b = i / (ATTENDED / 8), k = i % (ATTENDED / 8) * 8;
            float v[8];
            mc::cluster_combine<CLUSTER>(v, attended + b * ATTENDED + k, shares + (b * GROUP + k / HEAD) * CLUSTER);
            mc::Columns<BATCH>::put(inputs, b, k, v);
        }
        mc::cluster_arrive_relaxed();  // nothing of peers is read any more
        mc::group_sync(1, WORKERS);

        // ---- Output projection: this block's row groups
        const auto put_outputs = [&](int group, int from, int step, auto four_at) {
            for (int n = from; n < 4 * BATCH; n += step) {
                const int column = 16 * group + n % 4 * 4, at = n / 4 * HIDDEN + column;
                if (HIDDEN % 16 && column >= HIDDEN) continue;
                float4 four = four_at(4 * n);
                if (cluster == 0) {
                    const float4 before = *(const float4*)(residual + at);
                    four.x += before.x, four.y += before.y, four.z += before.z, four.w += before.w;
                }
                mc::add4(sums + at, four);
            }
        };
        float* own_sums = parts + warp * Joined::COUNT;
        for (int group = first_out; group < end_out; item++) {
            const T* tile = (const T*)ring.ready(item);
            const int last = min(group + OUT_TILE_BLOCKS / OUT_BLOCKS, end_out);
            for (const T* block = tile; group < last; group++, block += OUT_BLOCKS * 256) {
                if (group % WARPS != warp) continue;
                mc::RowSums<T, BATCH> sum;
#pragma unroll 8
                for (int k = 0; k < OUT_BLOCKS; k++) sum.add(block + k * 256, inputs + k * mc::Columns<BATCH>::STEP);
                mc::warp_sync();  // the sums of the group before are read
                Joined::put(parts, sum);
                mc::warp_sync();
                put_outputs(group, lane, 32, [&](int n) { return *(const float4*)(own_sums + n); });
            }
            ring.release(item);
        }
    }
    mc::cluster_wait();  // peers may still read this block's shared memory
}
MC_EXPORT(attention_block)
