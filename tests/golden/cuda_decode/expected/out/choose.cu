// choose: the next token of each request, by the logits of a step, as one kernel.
//
// Written by meshc, from a program of tasks. Blocks stay on their multiprocessors; any number of them gives the
// same bits. Of the tasks of a phase each block has a run. Eight warps compute, and a ninth has nothing to bring.
#include "mc.cuh"

namespace choose_ {

typedef mc::f16 T;

constexpr int BATCH = 1;
constexpr int WARPS = 8;
constexpr int WORKERS = 32 * WARPS;
constexpr int THREADS = WORKERS + 32;

// ---- Shared memory, 7552 bytes ---------------------------------------------------------------
constexpr int PARTS = 0;  // sums of the warps
constexpr int LOCALS = 128;  // values of tasks

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

}  // namespace choose_

// logits [1, ..]: of each request. settings, stream [1, 4]: how a token is drawn by them. token [1]: the index that is
// chosen, kept in row ``row`` of chosen too. tokens, cached, left [1]: what the next step reads, at which
// positions, and how many tokens are to come. ends [16]: tokens that end a text, -1 for none. met: 0, and left so.

extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(choose_::THREADS, 1)
    choose(const float* logits, float* largest_of_parts, float* first_of_parts, const float* settings, float* weight_of_parts, int* stream, float* token, int* tokens, int* cached, int* left, const int* ends, int* chosen, mc::u32* met, int row) {
    using namespace choose_;
    unsigned char* arena = mc::arena();
    const int me = mc::thread();
    mc::wait_for_previous_grid();
    if (mc::warp() == WARPS) return;  // nothing is brought

    // ---- Compute
    float* const parts = (float*)(arena + PARTS);
    float* const locals = (float*)(arena + LOCALS);
    mc::u32 target = 0;

    // ---- logits_largest
    {
        mc::group_sync(1, WORKERS);
        const mc::Run mine(100);
        #pragma unroll 1
        for (int task = mine.first(0); task < mine.last(100); task++) {
            const int part = task;
            float* const largest = locals + 0;
            mc::combine_rows<mc::Largest, WORKERS>(largest, parts, 1, 2, me, [&](int row, int lane) {
                return logits[lane + 2 * part];
            });
            if (const int element = me; element < 1) {
                largest_of_parts[part] = largest[0];
            }
            mc::group_sync(1, WORKERS);
        }
    }

    // ---- logits_first
    {
        arrive(met, target, me);
        wait(met, target, me);
        const mc::Run mine(100);
        #pragma unroll 1
        for (int task = mine.first(0); task < mine.last(100); task++) {
            const int part = task;
            float* const tops = locals + 0;
            mc::fetch<0, 100, WORKERS>(tops, me,
                [&](int element) { return largest_of_parts + element; },
                [&](int element) { return 0u; });
            mc::group_sync(1, WORKERS);
            float* const top = locals + 100;
            mc::combine_rows<mc::Largest, WORKERS>(top, parts, 1, 100, me, [&](int row, int lane) {
                return tops[lane];
            });
            float* const first_1 = locals + 104;
            mc::combine_rows<mc::Largest, WORKERS>(first_1, parts, 1, 2, me, [&](int row, int lane) {
                const int index = lane + 2 * part;
                return index < 200 && logits[lane + 2 * part] == top[0] ? -(float)index : -mc::infinity();
            });
            if (const int element = me; element < 1) {
                first_of_parts[part] = first_1[0];
            }
            mc::group_sync(1, WORKERS);
            if (const int element = me; element < 2) {
                weight_of_parts[element + 2 * part] = mc::likelihood(logits[element + 2 * part], top[0], settings[0]);
            }
            mc::group_sync(1, WORKERS);
        }
    }

    // ---- token
    {
        arrive(met, target, me);
        wait(met, target, me);
        const mc::Run mine(1);
        #pragma unroll 1
        for (int task = mine.first(0); task < mine.last(1); task++) {
            const int b = 0;
            float* const firsts = locals + 0;
            float* const weights = locals + 100;
            mc::fetch<0, 300, WORKERS>(firsts, me,
                [&](int element) {
                    if (element < 100) return first_of_parts + element;
                    element -= 100;
                    return weight_of_parts + element;
                },
                [&](int element) { return 0u; });
            mc::group_sync(1, WORKERS);
            float* const first_1_1 = locals + 300;
            mc::combine_rows<mc::Largest, WORKERS>(first_1_1, parts, 1, 100, me, [&](int row, int lane) {
                return firsts[lane];
            });
            float* const drawn = locals + 304;
            mc::draw<200, WORKERS>(drawn, (mc::u64*)(locals + 308), me, 1,
                (first_1_1[0] * -1.0f), settings[0], settings[1], settings[2], settings[3], stream[0], stream[1], stream[2], stream[3],
                [&](int lane) { return logits[lane]; }, [&](int lane) { return weights[lane]; });
            if (const int element = me; element < 1) {
                token[0] = drawn[0];
            }
            mc::group_sync(1, WORKERS);
            if (me == 0)  // the thread that has given the token
                mc::go_on<16>(token[b], logits + b * 200, tokens + b, cached + b,
                    left + b, stream + b * 4, ends, chosen + row * BATCH + b);
        }
    }
    if (me == 0) mc::grid_leave(met, target + mc::blocks());
}
MC_EXPORT(choose)
