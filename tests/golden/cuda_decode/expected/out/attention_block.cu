// attention_block: RMSNorm, projections to queries, keys and values, rotary embedding, attention over the
// cached tokens, output projection and residual sum of one layer, for a decode step.
//
// Written by meshc. One cluster of 2 blocks per key/value head (split head): each block has some
// lanes of the head throughout, so projections and values need no exchange; sums of scores over the
// lanes and of outputs over the blocks do. One warp of each block brings weights, keys and values
// through one ring of tiles; eight others compute.
#include "mc.cuh"

namespace attention_block_ {

typedef mc::f16 T;

// ---- Shape -------------------------------------------------------------------------------------
constexpr int BATCH = 1;
constexpr int HIDDEN = 128;
constexpr int KV_HEADS = 2;
constexpr int GROUP = 2;  // query heads of a key/value head
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
constexpr int LANES = HEAD / CLUSTER;  // of a head, per block
constexpr int OWN_ROWS = (GROUP + 2) * LANES;  // of queries, keys and values
constexpr int GROUPS = OWN_ROWS / 16;  // of rows
constexpr int BLOCKS = (HIDDEN + 15) / 16;  // of 16 x 16 values in a row group
constexpr int TILE_BLOCKS = 8;
constexpr int TILE_TOKENS = 512;
constexpr int RUN = TILE_TOKENS < PAGE ? TILE_TOKENS : PAGE;  // tokens of one copy
constexpr int ATTENDED = GROUP * LANES;  // values of a block that the output projection takes
constexpr int OUT_GROUPS = (HIDDEN + 15) / 16;  // row groups of the output projection
constexpr int OUT_BLOCKS = ATTENDED / 16;
constexpr int OUT_TILE_BLOCKS = 64;
constexpr int OWN_OUTPUTS = HIDDEN / CLUSTER;  // of the output, that a block sums over the cluster
constexpr int TOKEN_LANES = mc::least_power_of_two(LANES / 8);  // threads that share a token
constexpr int TOKENS = WORKERS / TOKEN_LANES;  // tokens at once
typedef mc::JoinedSums<T, BATCH, WARPS> Joined;
constexpr float LOWEST = -1e30f;

// ---- Shared memory, 202240 bytes ---------------------------------------------------------------
constexpr int TILE_BYTES = 32768;
constexpr int STAGES = 6;
constexpr int RING = 0;
constexpr int BARRIERS = 196608;
constexpr int PARTS = 196736;  // sums of the warps
constexpr int PROJECTED = 197760;  // queries, keys, values
constexpr int COLUMNS = 198272;  // inputs
constexpr int OWN_SCORES = 198272;  // over this block's lanes
constexpr int SCORES = 198784;  // over all lanes, then weights
constexpr int OUT_COLUMNS = 198784;  // inputs of the output projection
constexpr int OUTPUTS = 199040;  // of this block's lanes
constexpr int OWN_COLUMNS = 199552;  // of the cluster's output
constexpr int WEIGHTS = 199808;  // sums of weights
constexpr int JOINED = 199936;  // attention sums of the warps
constexpr int ATTENDED_AT = 201984;  // attention sums of this block

// The cached tokens that a query of one request sees, in tiles of TILE_TOKENS from token 0 on.
struct Tokens {
    int first, end, tile, tiles;

    MC_INLINE explicit Tokens(int cached) {
        first = WINDOW && cached + 1 > WINDOW ? cached + 1 - WINDOW : 0;
        end = cached;
        tile = first / TILE_TOKENS;
        tiles = (end + TILE_TOKENS - 1) / TILE_TOKENS - tile;
        if (tiles < 0) tiles = 0;
    }

    // Scores of a query head: those of cached tokens and of the new one.
    MC_INLINE int scores() const { return end - first + 1; }
};

// Where token ``t`` of a request lies in the pool of pages, for one block's lanes of one head.
MC_INLINE size_t cached_at(const int* pages, int t, int head, int rank) {
    return ((((size_t)pages[t / PAGE] * KV_HEADS + head) * CLUSTER + rank) * PAGE + t % PAGE) * LANES;
}

// Bring one pool's tiles of all requests.
MC_INLINE int bring(const mc::Ring<STAGES>& ring, int item, const T* pool, const int* pages,
                    int max_pages, const int* cached, int head, int rank) {
    for (int b = 0; b < BATCH; b++) {
        const Tokens seen(cached[b]);
        const int* own_pages = pages + (size_t)b * max_pages;
        for (int i = 0; i < seen.tiles; i++, item++) {
            const int begin = (seen.tile + i) * TILE_TOKENS;
            const int end = min(begin + TILE_TOKENS, seen.end);
            ring.acquire(item, (end - begin) * LANES * (int)sizeof(T));
            for (int t = begin; t < end; t += RUN) {
                const mc::u32 bytes = min(RUN, end - t) * LANES * (int)sizeof(T);
                ring.fill(item, (t - begin) * LANES * (int)sizeof(T),
                          pool + cached_at(own_pages, t, head, rank), bytes);
            }
        }
    }
    return item;
}

}  // namespace attention_block_

// residual [BATCH, HIDDEN]: read. sums [BATCH, HIDDEN]: zeros on entry; residual plus the layer's
// output is added. norm [HIDDEN]. qkv [KV_HEADS, CLUSTER, GROUPS, BLOCKS, 32, 8].
// out [KV_HEADS, CLUSTER, OUT_GROUPS, OUT_BLOCKS, 32, 8]. keys, values: pools of pages [KV_HEADS, CLUSTER, PAGE,
// LANES]; this step's are stored. pages [BATCH, max_pages]. cached [BATCH]: tokens before this one.
// cosines, sines [positions, HEAD / 2].
extern "C" __global__ void __cluster_dims__(attention_block_::CLUSTER, 1, 1)
    __launch_bounds__(attention_block_::THREADS, 1)
    attention_block(const float* __restrict__ residual, float* __restrict__ sums,
        const attention_block_::T* __restrict__ norm, const attention_block_::T* __restrict__ qkv,
        const attention_block_::T* __restrict__ out,
        attention_block_::T* __restrict__ keys,
        attention_block_::T* __restrict__ values, const int* __restrict__ pages, int max_pages,
        const int* __restrict__ cached, const float* __restrict__ cosines,
        const float* __restrict__ sines) {
    using namespace attention_block_;
    unsigned char* arena = mc::arena();
    mc::Ring<STAGES> ring(arena + BARRIERS, arena + RING, TILE_BYTES);
    mc::Barrier* published = (mc::Barrier*)(arena + BARRIERS + mc::Ring<STAGES>::BARRIER_BYTES);
    const int me = mc::thread(), lane = mc::lane(), warp = mc::warp();
    const int rank = mc::cluster_rank(), head = mc::cluster_index();

    if (me == 0) {
        ring.set_up(WARPS);
        for (int i = 0; i < 2; i++) mc::init(published + i, CLUSTER);
        mc::init_fence();
    }
    mc::cluster_sync();

    if (warp == WARPS) {
        // ---- Bring the tiles, in the order in which they are read. Weights and what is cached do
        // not change in a step, so they need not wait for the grid before.
        if (lane == 0) {
            int item = 0;
            const size_t place = (size_t)head * CLUSTER + rank;
            for (int group = 0; group < GROUPS; group++) {
                mc::bring_blocks(ring, item, qkv + (place * GROUPS + group) * BLOCKS * 256, BLOCKS, TILE_BLOCKS);
            }
            item = bring(ring, item, keys, pages, max_pages, cached, head, rank);
            item = bring(ring, item, values, pages, max_pages, cached, head, rank);
            const T* outs = out + place * OUT_GROUPS * OUT_BLOCKS * 256;
            mc::bring_blocks(ring, item, outs, OUT_GROUPS * OUT_BLOCKS, OUT_TILE_BLOCKS);
        }
    } else {
        int item = 0;
        mc::wait_for_previous_grid();
        mc::let_next_grid_start();
        constexpr int first_group = 0, end_group = GROUPS;
        float* projected = (float*)(arena + PROJECTED);  // [BATCH, OWN_ROWS]
        // ---- RMSNorm, in every block: the vectors come from L2
        float* parts = (float*)(arena + PARTS);
        T* columns = (T*)(arena + COLUMNS);
        mc::put_normed_columns<T, BATCH, HIDDEN, WORKERS>(columns, residual, norm, EPSILON, parts, me, 1);

        // ---- Queries, keys and values: this block's row groups
        for (int group = first_group; group < end_group; group++) {
            mc::RowSums<T, BATCH> sum;
            mc::add_row_group<WARPS>(sum, ring, item, columns, BLOCKS, TILE_BLOCKS);
            float* part = parts + (group - first_group) % 2 * (WARPS * Joined::COUNT);
            Joined::put(part, sum);
            mc::group_sync(1, WORKERS);  // the next group's sums go to the other half
            for (int n = me; n < Joined::COUNT; n += WORKERS) {
                const int row = 16 * group + n % 16;
                projected[n / 16 * OWN_ROWS + row] = Joined::all(part, n);
            }
        }
        mc::group_sync(1, WORKERS);

        // ---- Rotated; keys and values as the cache will hold them
        for (int i = me; i < BATCH * OWN_ROWS / 2; i += WORKERS) {
            const int b = i / (OWN_ROWS / 2), row = i % (OWN_ROWS / 2) * 2;
            const int part = row / LANES, at = row % LANES;
            float pair[2] = {projected[b * OWN_ROWS + row], projected[b * OWN_ROWS + row + 1]};
            if (part <= GROUP) {
                const size_t angle = (size_t)cached[b] * (HEAD / 2) + (rank * LANES + at) / 2;
                const float even = pair[0], odd = pair[1];
                pair[0] = mc::fused(even, cosines[angle], -(odd * sines[angle]));
                pair[1] = mc::fused(odd, cosines[angle], even * sines[angle]);
            }
            for (int k = 0; k < 2; k++) {
                const T stored = mc::narrow<T>(pair[k]);
                projected[b * OWN_ROWS + row + k] = part < GROUP ? pair[k] * SCALE : mc::widen(stored);
                if (part >= GROUP) {
                    T* pool = part == GROUP ? keys : values;
                    const int* own_pages = pages + (size_t)b * max_pages;
                    pool[cached_at(own_pages, cached[b], head, rank) + at + k] = stored;
                }
            }
        }
        mc::group_sync(1, WORKERS);

        // ---- Scores over this block's lanes: [BATCH, GROUP, tokens of the request]
        const int share = me / TOKEN_LANES, part = me % TOKEN_LANES * 8;
        const bool active = LANES / 8 == TOKEN_LANES || part < LANES;
        float* own_scores = (float*)(arena + OWN_SCORES);
        int all_scores = 0;
        for (int b = 0; b < BATCH; b++) {
            const Tokens seen(cached[b]);
            const float* query = projected + b * OWN_ROWS;
            const float* key = query + GROUP * LANES;
            float* row = own_scores + all_scores;
            for (int n = 0; n < seen.tiles; n++, item++) {
                const T* tile = (const T*)ring.ready(item);
                const int begin = (seen.tile + n) * TILE_TOKENS;
#pragma unroll 1
                for (int t = share; t < TILE_TOKENS; t += TOKENS) {
                    const bool here = begin + t >= seen.first && begin + t < seen.end;
                    float k[8] = {};
                    if (active && here) mc::load8(tile + t * LANES + part, k);
#pragma unroll
                    for (int g = 0; g < GROUP; g++) {
                        float score = 0.0f;
                        if (active) {
#pragma unroll
                            for (int i = 0; i < 8; i++) {
                                score = mc::fused(query[g * LANES + part + i], k[i], score);
                            }
                        }
                        score = mc::warp_sum<TOKEN_LANES>(score);
                        if (here && part == 0) row[g * seen.scores() + begin + t - seen.first] = score;
                    }
                }
                ring.release(item);
            }
            for (int g = me; g < GROUP; g += WORKERS) {
                float score = 0.0f;
                for (int i = 0; i < LANES; i++) score = mc::fused(query[g * LANES + i], key[i], score);
                row[(g + 1) * seen.scores() - 1] = score;
            }
            all_scores += GROUP * seen.scores();
        }
        float* scores = (float*)(arena + SCORES);
        mc::cluster_reduce<mc::Sum, CLUSTER>(scores, own_scores, all_scores, published, 0, me, WORKERS, 1);

        // ---- Softmax, a query head per warp
        float* weights = (float*)(arena + WEIGHTS);  // [BATCH, GROUP]
        for (int b = 0, at = 0; b < BATCH; b++) {
            const int count = Tokens(cached[b]).scores();
            for (int g = 0; g < GROUP; g++, at += count) {
                if ((b * GROUP + g) % WARPS != warp) continue;
                float top = LOWEST, total = 0.0f;
                for (int i = lane; i < count; i += 32) top = mc::larger(top, scores[at + i]);
                top = mc::warp_max(top);
                for (int i = lane; i < count; i += 32) {
                    scores[at + i] = mc::power_of_two(scores[at + i] - top);
                    total += scores[at + i];
                }
                total = mc::warp_sum(total);
                if (lane == 0) weights[b * GROUP + g] = total;
            }
        }
        mc::group_sync(1, WORKERS);

        // ---- Values of this block's lanes
        float* attended = (float*)(arena + ATTENDED_AT);  // [BATCH, GROUP, LANES]
        float* joined = (float*)(arena + JOINED);  // [WARPS, GROUP, LANES]
        for (int b = 0, at = 0; b < BATCH; b++) {
            const Tokens seen(cached[b]);
            const float* value = projected + b * OWN_ROWS + (GROUP + 1) * LANES;
            float sum[GROUP][8] = {};
            for (int n = 0; n < seen.tiles; n++, item++) {
                const T* tile = (const T*)ring.ready(item);
                const int begin = (seen.tile + n) * TILE_TOKENS;
#pragma unroll 1
                for (int t = share; t < TILE_TOKENS; t += TOKENS) {
                    if (!active || begin + t < seen.first || begin + t >= seen.end) continue;
                    float v[8];
                    mc::load8(tile + t * LANES + part, v);
#pragma unroll
                    for (int g = 0; g < GROUP; g++) {
                        const float p = scores[at + g * seen.scores() + begin + t - seen.first];
#pragma unroll
                        for (int i = 0; i < 8; i++) sum[g][i] = mc::fused(p, v[i], sum[g][i]);
                    }
                }
                ring.release(item);
            }
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
#pragma unroll
                for (int apart = TOKEN_LANES; apart < 32; apart *= 2) {
#pragma unroll
                    for (int i = 0; i < 8; i++) sum[g][i] += mc::shuffle_xor(sum[g][i], apart);
                }
                if (lane < TOKEN_LANES && active) {
#pragma unroll
                    for (int i = 0; i < 8; i++) joined[(warp * GROUP + g) * LANES + part + i] = sum[g][i];
                }
            }
            mc::group_sync(1, WORKERS);
            for (int i = me; i < ATTENDED; i += WORKERS) {
                const int g = i / LANES;
                float total = scores[at + (g + 1) * seen.scores() - 1] * value[i % LANES];
                for (int w = 0; w < WARPS; w++) total += joined[w * ATTENDED + i];
                attended[b * ATTENDED + i] = total / weights[b * GROUP + g];
            }
            mc::group_sync(1, WORKERS);
            at += GROUP * seen.scores();
        }

        // ---- Output projection of this block's lanes, then its columns summed over the cluster
        float* outputs = (float*)(arena + OUTPUTS);  // [BATCH, HIDDEN]
        const auto put_outputs = [&](int group, int from, int step, auto four_at) {
            for (int n = from; n < 4 * BATCH; n += step) {
                const int column = 16 * group + n % 4 * 4;
                if (HIDDEN % 16 && column >= HIDDEN) continue;
                *(float4*)(outputs + n / 4 * HIDDEN + column) = four_at(4 * n);
            }
        };
        constexpr int first_out = 0, end_out = OUT_GROUPS;
        T* inputs = (T*)(arena + OUT_COLUMNS);
        mc::put_columns<T, BATCH, ATTENDED, WORKERS>(inputs, attended, me);
        mc::group_sync(1, WORKERS);
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
        float* own_columns = (float*)(arena + OWN_COLUMNS);
        for (int b = 0; b < BATCH; b++) {
            mc::cluster_reduce_part<mc::Sum, CLUSTER>(own_columns, outputs, b * HIDDEN + rank * OWN_OUTPUTS,
                                                      OWN_OUTPUTS, published + (b + 1) % 2, (b + 1) / 2 % 2, me, WORKERS, 1);
            for (int i = me * 4; i < OWN_OUTPUTS; i += WORKERS * 4) {
                const int at = b * HIDDEN + rank * OWN_OUTPUTS + i;
                float4 four = *(const float4*)(own_columns + i);
                if (head == 0) {
                    const float4 before = *(const float4*)(residual + at);
                    four.x += before.x;
                    four.y += before.y;
                    four.z += before.z;
                    four.w += before.w;
                }
                mc::add4(sums + at, four);
            }
        }
    }
    mc::cluster_sync();  // peers may still read this block's shared memory
}
MC_EXPORT(attention_block)
