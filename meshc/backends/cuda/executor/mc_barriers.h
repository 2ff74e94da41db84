// mc_barriers.h: barriers of threads, meetings of a warp and mbarriers, for the executor.
#pragma once

#include <cstring>

#include "mc_fibers.h"

namespace mc {

// ---- Barriers of threads ------------------------------------------------------------------------

void block_sync();
void group_sync(u32 id, u32 count);

// All threads of a cluster have arrived.
void end_meeting(Cluster& cluster);

void cluster_arrive_relaxed();
void cluster_wait();
void cluster_sync();
void grid_sync(u32* counter, u32 target);
void grid_arrive(u32* counter);
void grid_wait(u32* counter, u32 target);
bool grid_arrive_last(u32* counter, u32 target);
bool grid_leave(u32* counter, u32 total);

// ---- Warps ----------------------------------------------------------------------------------------

// Counts the bank conflicts of 16-byte loads that the lanes did since they met last (mc_loads.h).
void count_conflicts(Warp& w);

// All lanes meet at one place of the program. ``deposit`` runs for each, ``last`` for the last one;
// values of two meetings in turn lie apart, so a slow lane still finds its own.
template <class Deposit, class Last>
inline u32 gather_warp(Site site, Deposit deposit, Last last) {
    Warp& w = here().warps[warp()];
    const u32 generation = w.generation, half = generation & 1;
    if (w.arrived && w.line != site.line()) {
        fail("lanes of a warp meet at lines %u and %u", w.line, site.line());
    }
    w.line = site.line();
    deposit(w, half);
    if (++w.arrived == WARP) {
        last(w, half);
        if (machine.launch.lint) count_conflicts(w);
        w.arrived = 0;
        w.generation++;
        wake(&w, here().fibers + warp() * WARP, WARP);
    } else {
        while (w.generation == generation) sleep(&w, "a meeting of its warp");
    }
    return half;
}

void warp_sync(Site site = Site::current());

inline float shuffle(float v, u32 from, Site site = Site::current()) {
    const u32 half = gather_warp(
        site, [&](Warp& w, u32 h) { w.values[h][lane()] = v; }, [](Warp&, u32) {});
    return here().warps[warp()].values[half][from % WARP];
}

inline int shuffle(int v, u32 from, Site site = Site::current()) {
    const u32 half = gather_warp(
        site, [&](Warp& w, u32 h) { w.words[h][lane()][0] = (u32)v; }, [](Warp&, u32) {});
    return (int)here().warps[warp()].words[half][from % WARP][0];
}

inline float shuffle_xor(float v, u32 mask, Site site = Site::current()) {
    const u32 half = gather_warp(
        site, [&](Warp& w, u32 h) { w.values[h][lane()] = v; }, [](Warp&, u32) {});
    return here().warps[warp()].values[half][(lane() ^ mask) % WARP];
}

// The device's exchange with lanes at distance W/2, W/4, .., 1: the same sums to the bit.
template <int W, class Combine>
inline float butterfly(float v, Combine combine, Site site) {
    const u32 half = gather_warp(
        site, [&](Warp& w, u32 h) { w.values[h][lane()] = v; },
        [&](Warp& w, u32 h) {
            float next[WARP];
            for (int mask = W / 2; mask; mask >>= 1) {
                for (int i = 0; i < WARP; i++) {
                    next[i] = combine(w.values[h][i], w.values[h][i ^ mask]);
                }
                memcpy(w.values[h], next, sizeof next);
            }
        });
    return here().warps[warp()].values[half][lane()];
}

inline float larger(float a, float b) { return fmaxf(a, b); }

template <int W = WARP>
inline float warp_sum(float v, Site site = Site::current()) {
    return butterfly<W>(v, [](float a, float b) { return a + b; }, site);
}

template <int W = WARP>
inline float warp_max(float v, Site site = Site::current()) {
    return butterfly<W>(v, larger, site);
}

// ---- mbarriers ------------------------------------------------------------------------------------

// Ends the phase of ``b`` if neither arrivals nor bytes are missing.
void check_phase(Barrier* b);

void init(Barrier* b, u32 arrivals);
void init_fence();
void arrive(Barrier* b);
void arrive_at(Barrier* b, u32 rank);
void arrive_read(Barrier* b, u32 rank);
void expect(Barrier* b, u32 bytes);
void wait(Barrier* b, u32 parity);
void wait_for_peers(Barrier* b, u32 parity);
void wait_for_either(Barrier* b, u32 parity, Barrier* other, u32 other_parity);

}  // namespace mc
