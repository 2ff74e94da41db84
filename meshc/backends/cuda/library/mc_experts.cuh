// Mixtures of experts: the gates of a token, and which experts a block brings weights of.
#pragma once

#include "mc_functions.cuh"

namespace mc {

// By all workers: the gates of a token, which are scores of the COUNT experts whose choices are largest, of equal ones
// of the first, and 0 for the others. Only the KEPT of GROUPS runs of experts count whose best BEST have the largest
// sums. ``work`` has room for N choices and GROUPS sums.
template <int N, int COUNT, int GROUPS, int KEPT, int BEST, bool NORMALISED, int WORKERS, class Score, class Choice>
MC_INLINE void put_gates(float* gates, float* work, int me, u32 id, Score score, Choice choice) {
    constexpr int GROUP = N / GROUPS;
    float* const sums = work + N;
#pragma unroll 1
    for (int x = me; x < N; x += WORKERS) work[x] = choice(x);
    group_sync(id, WORKERS);
    if (GROUPS > 1) {
        for (int group = me; group < GROUPS; group += WORKERS) {
            float sum = 0.0f;
            for (int x = group * GROUP; x < (group + 1) * GROUP; x++) {
                int before = 0;
                for (int y = group * GROUP; y < (group + 1) * GROUP; y++)
                    before += work[y] > work[x] || (work[y] == work[x] && y < x);
                if (before < BEST) sum += work[x];
            }
            sums[group] = sum;
        }
        group_sync(id, WORKERS);
#pragma unroll 1
        for (int x = me; x < N; x += WORKERS) {
            const int group = x / GROUP;
            int before = 0;
            for (int y = 0; y < GROUPS; y++) before += sums[y] > sums[group] || (sums[y] == sums[group] && y < group);
            if (before >= KEPT) work[x] = -infinity();
        }
        group_sync(id, WORKERS);
    }
#pragma unroll 1
    for (int x = me; x < N; x += WORKERS) {
        const float mine = work[x];
        int before = 0;
#pragma unroll 4
        for (int y = 0; y < N; y++) before += (int)(work[y] > mine) | ((int)(work[y] == mine) & (int)(y < x));
        gates[x] = before < COUNT ? score(x) : 0.0f;
    }
    group_sync(id, WORKERS);
    if (NORMALISED) {
        float sum = 0.0f;
        for (int x = (int)lane(); x < N; x += 32) sum += gates[x];
        sum = warp_sum(sum) + 1e-20f;
        group_sync(id, WORKERS);
#pragma unroll 1
        for (int x = me; x < N; x += WORKERS) gates[x] = gates[x] / sum;
        group_sync(id, WORKERS);
    }
}

// The experts that some token is sent to, EXPERTS at the most. Workers find them and tell the warp that brings, which
// brings nothing of experts before. Two choices take turns; none is written over before that warp is done with it.
template <int EXPERTS>
struct Choice {
    static constexpr int WARPS = 8;
    static constexpr int WORDS = 1 + EXPERTS + WARPS;  // how many there are, which, and how many each warp finds
    int* words;
    Barrier* told;
    int made;

    MC_INLINE Choice(unsigned char* words, unsigned char* told) : words((int*)words), told((Barrier*)told), made(0) {}

    // By one thread, before anything else.
    MC_INLINE void set_up() const {
        for (int i = 0; i < 2; i++) init(told + i, 2);
    }

    // By all workers: that of the gates [BATCH, experts], rows ``stride`` apart, once their words have the tag.
    template <int BITS, int BATCH, int WORKERS>
    MC_INLINE void make(const float* gates, int stride, int experts, u32 tag, int me, u32 id) {
        if (made > 1 && me == 0) wait(told + (made - 1) % 2, (made - 1) / 2 & 1);
        group_sync(id, WORKERS);
        int* const chosen = words + made % 2 * WORDS;
        int* const of_warps = chosen + 1 + EXPERTS;
        static_assert(WORKERS == 32 * WARPS, "there is a count for each warp");
        constexpr int SOME = BATCH < 16 ? BATCH : 16;  // gates that are asked for at once
        int count = 0;
        for (int first = 0; first < experts; first += WORKERS) {
            const int x = first + me;
            int sent = 0;
#pragma unroll 1
            for (int row = 0; row < BATCH; row += SOME) {
                const float* from[SOME];
                u32 tags[SOME];
                float came[SOME];
#pragma unroll
                for (int n = 0; n < SOME; n++) {
                    const int b = BATCH % SOME ? min(row + n, BATCH - 1) : row + n;
                    from[n] = gates + b * stride + x, tags[n] = tag;
                }
                need<BITS>(from, tags, x < experts ? (1u << SOME) - 1 : 0, came);
#pragma unroll
                for (int n = 0; n < SOME; n++) sent |= (int)(x < experts && came[n] != 0.0f);
            }
            int place = sent;  // how many the warp finds up to this thread's
#pragma unroll
            for (int apart = 1; apart < 32; apart *= 2) {
                const int other = shuffle(place, max((int)lane() - apart, 0));
                if ((int)lane() >= apart) place += other;
            }
            if (lane() == 31) of_warps[warp()] = place;
            group_sync(id, WORKERS);
            for (int w = 0; w < (int)warp(); w++) place += of_warps[w];
            if (sent) chosen[count + place] = x;
            for (int w = 0; w < WARPS; w++) count += of_warps[w];
            group_sync(id, WORKERS);
        }
        if (me == 0) chosen[0] = count;
        group_sync(id, WORKERS);
        if (me == 0) arrive(told + made % 2);
        made++;
    }

    // By the warp that brings.
    MC_INLINE void hear() {
        warp_sync();
        if (lane() == 0) arrive(told + made % 2);
        wait(told + made % 2, made / 2 & 1);
        made++;
    }

    MC_INLINE int count() const { return words[(made - 1) % 2 * WORDS]; }
    MC_INLINE int expert(int n) const { return words[(made - 1) % 2 * WORDS + 1 + n]; }
};

}  // namespace mc
