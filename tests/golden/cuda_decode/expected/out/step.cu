// step: a decode step from the look-up of its tokens to the logits, as one kernel.
//
// Written by meshc, from a program of tasks. Blocks stay on their multiprocessors; any number of them gives the
// same bits. Of the tasks of a phase each block has a run. One warp brings what they stream, through one ring of
// tiles, in the order in which it is needed and across meetings; eight warps compute.
#include "mc.cuh"

namespace step_ {

typedef mc::f16 T;

constexpr int BATCH = 1;
constexpr int CLUSTER = 2;  // blocks that have key heads together
constexpr int WARPS = 8;
constexpr int WORKERS = 32 * WARPS;
constexpr int THREADS = WORKERS + 32;
constexpr int LANES = 32;  // threads that have an element of 16 lanes of all requests, in whole warps

// ---- Shared memory, 223488 bytes ---------------------------------------------------------------
constexpr int STAGES = 13;
constexpr int TILE_BYTES = 16384;
constexpr int TILE_BLOCKS = 32;  // of 16 x 16 weights
constexpr int FLYING = 3;  // tiles that are on their way at once: more would delay meetings
constexpr int EARLY = 1;  // of those that are needed behind a meeting to come
constexpr int RING = 0;
constexpr int BARRIERS = 212992;
constexpr int PACE = 213248;  // that meetings are over
constexpr int PARTS = 213376;  // sums of the warps
constexpr int PUBLISHED = 214400;  // where blocks of the cluster meet, in turns
constexpr int CLUSTER_O_1_1 = 214528;  // %o_1_1 of the cluster
constexpr int CLUSTER_O_2_1 = 215040;  // %o_2_1 of the cluster
constexpr int CLUSTER_V_1_1 = 215296;  // %v_1 of the cluster
constexpr int CLUSTER_RECORDS = 215552;  // %records of the cluster
constexpr int COLUMNS = 216192;  // left sides of products
constexpr int ATTENDING = 216192;  // values of tasks that attend
constexpr int JOINED = 217216;  // attention sums of the warps
constexpr int STATISTICS = 221312;  // their highest scores and weights
constexpr int ASKED = 221440;  // queries as fragments
typedef mc::Ring<STAGES> Ring;

// All workers of all blocks meet, in two halves.
MC_INLINE void arrive(mc::u32* met, mc::u32& target, int me) {
    target += mc::blocks();
    mc::group_sync(1, WORKERS);  // all of this block's is written
    if (me == 0) mc::grid_arrive(met);
}

MC_INLINE void wait(mc::u32* met, mc::u32 target, int me) {
    if (me == 0) mc::grid_wait(met, target);
    mc::group_sync(1, WORKERS);
}

// All workers of all blocks of a cluster meet, by two mbarriers in turn.
MC_INLINE void meet_in_cluster(mc::Barrier* published, int& round, int me) {
    mc::cluster_publish<CLUSTER>(published + round % 2, round / 2 & 1, me, WORKERS, 1);
    round++;
}

}  // namespace step_

// tokens, cached [1]: ids and positions. pages [1, 4]: those of the caches. met: 0, and
// left so.
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(step_::THREADS, 1)
    step(const step_::T* embedding, const step_::T* qkv, const step_::T* norm_of_attention, const step_::T* out, const step_::T* gate_up, const step_::T* norm_of_ffn, const step_::T* down, const step_::T* norm_of_head, float* x_of_layer, const float* cosines, const float* sines, step_::T* keys, step_::T* values, float* o_parts, float* x_2_1, float* y_2_1, float* logits, const int* tokens, const int* cached, const int* pages, mc::u32* met) {
    using namespace step_;
    unsigned char* arena = mc::arena();
    Ring ring(arena + BARRIERS, arena + RING, TILE_BYTES);
    mc::Pace<FLYING, EARLY> pace(arena + PACE);
    const int me = mc::thread();
    mc::wait_for_previous_grid();
    if (me == 0) {
        ring.set_up(WARPS);
        pace.set_up(WARPS);
        for (int i = 0; i < 2; i++) mc::init((mc::Barrier*)(arena + PUBLISHED) + i, CLUSTER);
        mc::init_fence();
    }
    mc::cluster_sync();  // the mbarriers of all blocks of the cluster are ready
    const int pos = cached[0];
    int item = 0;

    if (mc::warp() == WARPS) {
        // ---- Bring the tiles. Nothing that is brought changes within a step, so it waits for no meeting.
        for (int layer = 0; layer < 2; layer++) {
            {  // q_k_v
                pace.meet();
                const mc::ClusterRun<CLUSTER> mine(2, 16);
                if (mc::lane() == 0) {
                    for (int group = mine.group; group < mine.last_group; group++) {
                        #pragma unroll 1
                        for (int task = mine.first(0); task < mine.last(8); task++) {
                            const int g = group * 8 + task;
                            mc::bring_row_group(ring, item, qkv + (size_t)(256 * layer + 8 * (g % 8) + 128 * (g / 8)) * 256, 8, TILE_BLOCKS, pace);
                        }
                    }
                }
                item = mc::shuffle(item, 0);
                if (mc::lane() == 0) {
                    for (int group = mine.group; group < mine.last_group; group++) {
                        #pragma unroll 1
                        for (int task = mine.first(8); task < mine.last(12); task++) {
                            const int g = group * 4 + task - 8;
                            mc::bring_row_group(ring, item, qkv + (size_t)(256 * layer + 8 * (g % 4) + 128 * (g / 4) + 64) * 256, 8, TILE_BLOCKS, pace);
                        }
                    }
                }
                item = mc::shuffle(item, 0);
                if (mc::lane() == 0) {
                    for (int group = mine.group; group < mine.last_group; group++) {
                        #pragma unroll 1
                        for (int task = mine.first(12); task < mine.last(16); task++) {
                            const int g = group * 4 + task - 12;
                            mc::bring_row_group(ring, item, qkv + (size_t)(256 * layer + 8 * (g % 4) + 128 * (g / 4) + 96) * 256, 8, TILE_BLOCKS, pace);
                        }
                    }
                }
                item = mc::shuffle(item, 0);
            }
            {  // attend
                const mc::ClusterRun<CLUSTER> mine(2, 1);
                for (int group = mine.group; group < mine.last_group; group++) {
                    #pragma unroll 1
                    for (int task = mine.first(0); task < mine.last(1); task++) {
                        const int g = group;
                        mc::Pages<16, 2, 64> from(pages, 0, 64, pos);
                        const int tiles = (pos + 63) / 64;
                        for (int n = 0; n < tiles; n++) {
                            const int begin = 0, count = min(64, pos - begin);
                            if (mc::lane() == 0) ring.limit(item, pace), ring.acquire(item, count * 256);
                            mc::warp_sync();
                            mc::CacheRows<2, 16, 64>::bring(ring, item, from.of() * 8192, from.of() ? values + (size_t)layer * 8192 : keys + (size_t)layer * 8192, from, g, begin, count);
                            from.turn();
                            item++;
                        }
                    }
                }
            }
            {  // o
                const mc::ClusterRun<CLUSTER> mine(2, 8);
                if (mc::lane() == 0) {
                    for (int group = mine.group; group < mine.last_group; group++) {
                        #pragma unroll 1
                        for (int task = mine.first(0); task < mine.last(8); task++) {
                            const int part = group, g = task % 8;
                            mc::bring_row_group(ring, item, out + (size_t)(16 * g + 128 * layer + 8 * part) * 256, 8, TILE_BLOCKS, pace);
                        }
                    }
                }
                item = mc::shuffle(item, 0);
            }
            {  // gate_up
                pace.meet();
                const mc::Run mine(24);
                if (mc::lane() == 0) {
                    #pragma unroll 1
                    for (int task = mine.first(0); task < mine.last(24); task++) {
                        const int g = task;
                        mc::bring_row_group(ring, item, gate_up + (size_t)(8 * g + 192 * layer) * 256, 8, TILE_BLOCKS, pace);
                    }
                }
                item = mc::shuffle(item, 0);
            }
            {  // y
                pace.meet();
                const mc::Run mine(8);
                if (mc::lane() == 0) {
                    #pragma unroll 1
                    for (int task = mine.first(0); task < mine.last(8); task++) {
                        const int g = task;
                        mc::bring_row_group(ring, item, down + (size_t)(12 * g + 96 * layer) * 256, 12, TILE_BLOCKS, pace);
                    }
                }
                item = mc::shuffle(item, 0);
            }
        }
        {  // result
            pace.meet();
            const mc::Run mine(13);
            if (mc::lane() == 0) {
                #pragma unroll 1
                for (int task = mine.first(0); task < mine.last(13); task++) {
                    const int g = task;
                    mc::bring_row_group(ring, item, embedding + (size_t)(8 * g) * 256, 8, TILE_BLOCKS, pace);
                }
            }
            item = mc::shuffle(item, 0);
        }
        mc::cluster_arrive_relaxed();
        mc::cluster_wait();
        return;
    }

    // ---- Compute
    float* const parts = (float*)(arena + PARTS);
    T* const columns = (T*)(arena + COLUMNS);
    T* const asked = (T*)(arena + ASKED);
    float* const joined = (float*)(arena + JOINED);
    float* const statistics = (float*)(arena + STATISTICS);
    float* const o_1_1 = (float*)(arena + CLUSTER_O_1_1);
    float* const o_2_1 = (float*)(arena + CLUSTER_O_2_1);
    float* const v_1_1 = (float*)(arena + CLUSTER_V_1_1);
    float* const records = (float*)(arena + CLUSTER_RECORDS);
    mc::Barrier* const published = (mc::Barrier*)(arena + PUBLISHED);
    int round = 0;  // of meetings in the cluster
    mc::u32 target = 0;
    int turn = 0;  // of the halves of ``parts``
    const int i = me % 16;  // its lane

    // ---- x
    {
        mc::group_sync(1, WORKERS);
        const mc::Run mine(8);
        for (int at = mine.first(0) * 16 + me; at < mine.last(8) * 16; at += WORKERS) {
            const int task = at / 16, i = at % 16;
            const int g = task;
            x_of_layer[16 * g + i] = (tokens[0] >= 0 && tokens[0] < 200 ? mc::widen(embedding[mc::in_fragments<128>(tokens[0], 16 * g + i)]) : 0.0f);
        }
    }
    for (int layer = 0; layer < 2; layer++) {

        // ---- q_k_v: q, k, v
        {
            pace.meet();
            arrive(met, target, me);
            const mc::Gains<T, 128, WORKERS> gains(norm_of_attention + (size_t)layer * 128, me);
            wait(met, target, me);
            mc::put_normed_columns<T, BATCH, 128, WORKERS>(columns, x_of_layer, gains, 1e-05f, parts, me, 1);
            pace.over();
            const mc::ClusterRun<CLUSTER> mine(2, 16);
            for (int group = mine.group; group < mine.last_group; group++) {
                #pragma unroll 1
                for (int task = mine.first(0); task < mine.last(8); task++) {
                    const int g = group * 8 + task;
                    const float cosine_1 = me < 16 * BATCH ? cosines[(size_t)pos * 32 + 8 * (g % 4) + i / 2] : 0.0f;
                    const float sine_1 = me < 16 * BATCH ? sines[(size_t)pos * 32 + 8 * (g % 4) + i / 2] : 0.0f;
                    const float sum = mc::multiply_row_group<WARPS, BATCH>(ring, item, columns, parts, turn, 8, TILE_BLOCKS, me);
                    if (me < LANES) {
                        const float q = sum;
                        const float other = mc::shuffle_xor(q, 1);
                        const float o_1 = mc::fused(q, cosine_1, (i % 2 == 0 ? -(other * sine_1) : other * sine_1));
                        if (me < 16 * BATCH) {
                            mc::cluster_put<CLUSTER>(o_1_1 + (16 * g + i) % 128, o_1);
                        }
                    }
                }
            }
            for (int group = mine.group; group < mine.last_group; group++) {
                #pragma unroll 1
                for (int task = mine.first(8); task < mine.last(12); task++) {
                    const int g = group * 4 + task - 8;
                    const float cosine_2 = me < 16 * BATCH ? cosines[(size_t)pos * 32 + 8 * (g % 4) + i / 2] : 0.0f;
                    const float sine_2 = me < 16 * BATCH ? sines[(size_t)pos * 32 + 8 * (g % 4) + i / 2] : 0.0f;
                    const float sum = mc::multiply_row_group<WARPS, BATCH>(ring, item, columns, parts, turn, 8, TILE_BLOCKS, me);
                    if (me < LANES) {
                        const float k_1 = sum;
                        const float other_1 = mc::shuffle_xor(k_1, 1);
                        const float o_2 = mc::fused(k_1, cosine_2, (i % 2 == 0 ? -(other_1 * sine_2) : other_1 * sine_2));
                        if (me < 16 * BATCH) {
                            mc::cluster_put<CLUSTER>(o_2_1 + (16 * g + i) % 64, o_2);
                        }
                    }
                }
            }
            for (int group = mine.group; group < mine.last_group; group++) {
                #pragma unroll 1
                for (int task = mine.first(12); task < mine.last(16); task++) {
                    const int g = group * 4 + task - 12;
                    const float sum = mc::multiply_row_group<WARPS, BATCH>(ring, item, columns, parts, turn, 8, TILE_BLOCKS, me);
                    if (me < LANES) {
                        const float v_1 = sum;
                        if (me < 16 * BATCH) {
                            mc::cluster_put<CLUSTER>(v_1_1 + (16 * g + i) % 64, v_1);
                        }
                    }
                }
            }
        }

        // ---- attend
        {
            meet_in_cluster(published, round, me);
            const mc::ClusterRun<CLUSTER> mine(2, 1);
            float* const locals = (float*)(arena + ATTENDING);
            for (int group = mine.group; group < mine.last_group; group++) {
                #pragma unroll 1
                for (int task = mine.first(0); task < mine.last(1); task++) {
                    const int g = group;
                    const float key = me < 64 ? mc::widen(mc::narrow<T>(o_2_1[me])) : 0.0f, value = me < 64 ? mc::widen(mc::narrow<T>(v_1_1[me])) : 0.0f;
                    if (const int element = me; element < 128) {
                        locals[element] = o_1_1[element] * 0.18033688011112042f;
                    }
                    if (me < 64) {
                        const T new_key = mc::narrow<T>(key), new_value = mc::narrow<T>(value);
                        locals[128 + me] = mc::widen(new_key);
                        locals[192 + me] = mc::widen(new_value);
                        keys[(size_t)layer * 8192 + mc::CacheRows<2, 16, 64>::lane(pages, pos, g, me)] = new_key;
                        values[(size_t)layer * 8192 + mc::CacheRows<2, 16, 64>::lane(pages, pos, g, me)] = new_value;
                    }
                    mc::group_sync(1, WORKERS);
                    mc::GroupAttention<T, 2, 64, WARPS>::put_queries(asked, locals);
                    mc::group_sync(1, WORKERS);
                    mc::GroupAttention<T, 2, 64, WARPS> attended(asked);
                    if (mc::warp() == 0) attended.start(locals, locals + 128, locals + 192);
                    const int tiles = (pos + 63) / 64;
                    for (int n = 0; n < tiles; n++) {
                        const T* const keys = (const T*)ring.ready(item);
                        attended.template add<64>(keys, keys + 4096, n, 0, pos, 0, pos);
                        ring.release(item++);
                    }
                    float* const record = records + 0;
                    attended.put(joined, statistics);
                    mc::group_sync(1, WORKERS);
                    mc::GroupAttention<T, 2, 64, WARPS>::join(joined, statistics, me, [=](int i, float sum, float most, float weight) {
                        float* const own = record + i / 64 * 68;
                        mc::cluster_put<CLUSTER>(own + i % 64, sum);
                        if (i % 64 != 0) return;
                        mc::cluster_put<CLUSTER>(own + 64, weight);
                        mc::cluster_put<CLUSTER>(own + 65, most);
                    });
                    mc::group_sync(1, WORKERS);
                }
            }
        }

        // ---- o
        {
            meet_in_cluster(published, round, me);
            const mc::ClusterRun<CLUSTER> mine(2, 8);
            int made = -1;  // whose columns are there
            for (int group = mine.group; group < mine.last_group; group++) {
                #pragma unroll 1
                for (int task = mine.first(0); task < mine.last(8); task++) {
                    const int part = group, g = task % 8;
                    if (made != part) {
                        made = part;
                        mc::put_merged_columns<BATCH, 1, 1, 2, 64, 68, WORKERS>(columns, records, 136, me);
                    }
                    const float sum = mc::multiply_row_group<WARPS, BATCH>(ring, item, columns, parts, turn, 8, TILE_BLOCKS, me);
                    if (me < LANES) {
                        const float o_part = sum;
                        if (me < 16 * BATCH) {
                            o_parts[16 * g + i + 128 * part] = o_part;
                        }
                    }
                }
            }
        }

        // ---- o_sum
        {
            arrive(met, target, me);
            wait(met, target, me);
            const mc::Run mine(8);
            for (int at = mine.first(0) * 16 + me; at < mine.last(8) * 16; at += WORKERS) {
                const int task = at / 16, i = at % 16;
                const int g = task;
                float o_4 = o_parts[16 * g + i];
                for (int s = 0; s < 1; s++) {
                    o_4 = (o_4 + o_parts[16 * g + i + 128]);
                }
                const float x_2 = (x_of_layer[16 * g + i] + o_4);
                x_2_1[16 * g + i] = x_2;
            }
        }

        // ---- gate_up: gate
        {
            pace.meet();
            arrive(met, target, me);
            const mc::Gains<T, 128, WORKERS> gains(norm_of_ffn + (size_t)layer * 128, me);
            wait(met, target, me);
            mc::put_normed_columns<T, BATCH, 128, WORKERS>(columns, x_2_1, gains, 1e-05f, parts, me, 1);
            pace.over();
            const mc::Run mine(24);
            #pragma unroll 1
            for (int task = mine.first(0); task < mine.last(24); task++) {
                const int g = task;
                const float sum = mc::multiply_row_group<WARPS, BATCH>(ring, item, columns, parts, turn, 8, TILE_BLOCKS, me);
                if (me < LANES) {
                    const float gate = mc::shuffle(sum, mc::lane() / 16 * 16 + 2 * i);
                    const float up = mc::shuffle(sum, mc::lane() / 16 * 16 + 2 * i + 1);
                    const float y_1 = mc::silu(gate);
                    const float y_2 = (y_1 * up);
                    if (me < 16 * BATCH && i < 8) {
                        y_2_1[8 * g + i] = y_2;
                    }
                }
            }
        }

        // ---- y
        {
            pace.meet();
            arrive(met, target, me);
            wait(met, target, me);
            mc::put_plain_columns<BATCH, 192, WORKERS>(columns, y_2_1, 192, me);
            pace.over();
            const mc::Run mine(8);
            #pragma unroll 1
            for (int task = mine.first(0); task < mine.last(8); task++) {
                const int g = task;
                const float x_2_3 = me < 16 * BATCH ? x_2_1[16 * g + i] : 0.0f;
                const float sum = mc::multiply_row_group<WARPS, BATCH>(ring, item, columns, parts, turn, 12, TILE_BLOCKS, me);
                if (me < LANES) {
                    const float y = sum;
                    const float x_3 = (x_2_3 + y);
                    if (me < 16 * BATCH) {
                        x_of_layer[16 * g + i] = x_3;
                    }
                }
            }
        }
    }

    // ---- result
    {
        pace.meet();
        arrive(met, target, me);
        const mc::Gains<T, 128, WORKERS> gains(norm_of_head, me);
        wait(met, target, me);
        mc::put_normed_columns<T, BATCH, 128, WORKERS>(columns, x_of_layer, gains, 1e-05f, parts, me, 1);
        pace.over();
        const mc::Run mine(13);
        #pragma unroll 1
        for (int task = mine.first(0); task < mine.last(13); task++) {
            const int g = task;
            const float sum = mc::multiply_row_group<WARPS, BATCH>(ring, item, columns, parts, turn, 8, TILE_BLOCKS, me);
            if (me < LANES) {
                const float result = sum;
                if (me < 16 * BATCH) {
                    if (16 * g + i < 200) logits[16 * g + i] = result;
                }
            }
        }
    }
    if (me == 0) mc::grid_leave(met, target + mc::blocks());
    mc::cluster_arrive_relaxed();
    mc::cluster_wait();  // peers may still store here
}
MC_EXPORT(step)
