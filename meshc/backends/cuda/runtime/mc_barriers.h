// mc_barriers.h: barriers of threads, meetings of a warp and mbarriers, for the executor.
#pragma once

#include <cmath>
#include <cstring>

#include "mc_fibers.h"

#ifdef MC_RACES
#include "mc_races.h"
#define MC_RACE(call) races::call
#else
#define MC_RACE(call)
#endif

namespace mc {

// ---- Barriers of threads ------------------------------------------------------------------------

inline void meet(Rendezvous& r, u32 expected, const char* what) {
    const u32 generation = r.generation;
    MC_RACE(arrive(r.clocks, generation, !r.count));
    if (r.count && r.expected != expected) {
        fail("%s met by %u threads and by %u", what, r.expected, expected);
    }
    r.expected = expected;
    if (++r.count == expected) {
        r.count = 0;
        r.generation++;
        wake(&r, here().fibers, threads());
    } else {
        while (r.generation == generation) sleep(&r, what);
    }
    MC_RACE(leave(r.clocks, generation));
}

inline void block_sync() { meet(here().groups[0], here().alive, "block_sync"); }

inline void group_sync(u32 id, u32 count) {
    if (id < 1 || id > 15 || count % WARP || count > threads()) {
        fail("group_sync(%u, %u) in a block of %u threads", id, count, threads());
    }
    meet(here().groups[id], count, "group_sync");
}

// All threads of a cluster have arrived.
inline void end_meeting(Cluster& cluster) {
    cluster.all.count = 0;
    cluster.all.generation++;
    wake(&cluster.all, cluster.blocks[0]->fibers, cluster_size() * threads());
}

// What ``releases`` is ordered before what others do behind cluster_wait().
inline void arrive_at_cluster(bool releases) {
    Fiber& mine = *machine.current;
    Rendezvous& r = here().cluster->all;
    if (mine.arrived) fail("a thread arrives at the barrier of its cluster twice");
    mine.arrived = true;
    mine.arrival = r.generation;
    MC_RACE(arrive_at_cluster(releases));
    u32 expected = 0;
    for (const Block* b : here().cluster->blocks) expected += b->alive;
    if (++r.count == expected) end_meeting(*here().cluster);
}

inline void cluster_arrive_relaxed() { arrive_at_cluster(false); }

inline void cluster_wait() {
    Fiber& mine = *machine.current;
    if (!mine.arrived) fail("a thread waits for its cluster and has not arrived");
    Rendezvous& r = here().cluster->all;
    while (r.generation == mine.arrival) sleep(&r, "cluster_wait");
    MC_RACE(leave_cluster());
    mine.arrived = false;
}

inline void cluster_sync() {
    arrive_at_cluster(true);
    cluster_wait();
}

inline void grid_sync(u32* counter, u32 target) {
    block_sync();
    if (thread() == 0) {
        ++*counter;
        wake(counter, machine.fibers.data(), (u32)machine.fibers.size());
        while ((int32_t)(*counter - target) < 0) sleep(counter, "grid_sync");
    }
    block_sync();
}

// ---- Warps ----------------------------------------------------------------------------------------

inline void count_conflicts(Warp& w);

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

inline void warp_sync(Site site = Site::current()) {
    Warp& w = here().warps[warp()];
    [[maybe_unused]] const u32 generation = w.generation;
    gather_warp(
        site, [](Warp& w, u32) { MC_RACE(arrive(w.clocks, w.generation, !w.arrived)); },
        [](Warp&, u32) {});
    MC_RACE(leave(w.clocks, generation));
}

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

inline void check_phase(Barrier* b) {
    if (b->missing || b->bytes) return;
    b->phase_and_count ^= 0x8000;
    b->missing = b->phase_and_count & 0x7fff;
    const size_t block = ((unsigned char*)b - machine.shared) / machine.shared_bytes;
    wake(b, machine.blocks[block].fibers, threads());
    MC_RACE(end_phase(b));
}

inline bool phase_ended(const Barrier* b, u32 parity) {
    return (u32)(b->phase_and_count >> 15) != (parity & 1);
}

inline void init(Barrier* b, u32 arrivals) {
    if (!in_arena(b, sizeof *b) || (uintptr_t)b % 8) fail("an mbarrier outside of shared memory");
    if (!arrivals || arrivals > 0x7fff) fail("an mbarrier of %u arrivals", arrivals);
    MC_RACE(init(b));
    *b = {(u16)arrivals, (u16)arrivals, 0};
}

inline void init_fence() { MC_RACE(init_fence()); }

inline void arrive(Barrier* b) {
    MC_RACE(arrive(b));
    if (!b->missing) fail("more arrivals at an mbarrier than its phase has");
    b->missing--;
    check_phase(b);
}

inline void arrive_at(Barrier* b, u32 rank) { arrive(at_peer(b, rank)); }

inline void expect(Barrier* b, u32 bytes) {
    b->bytes += bytes;
    if (b->bytes >= 1 << 20) fail("an mbarrier that awaits %d bytes, of at most 1048575", b->bytes);
    arrive(b);
}

inline void finish_copies_of(const Barrier* b);

inline void await_phase(Barrier* b, u32 parity) {
    if (machine.launch.late_copies) yield();
    while (!phase_ended(b, parity)) {
        if (machine.launch.late_copies) {
            yield();
            finish_copies_of(b);
            if (phase_ended(b, parity)) break;
        }
        sleep(b, "wait on an mbarrier");
    }
}

inline void wait(Barrier* b, u32 parity) {
    await_phase(b, parity);
    MC_RACE(waited(b, parity, false));
}

inline void wait_for_peers(Barrier* b, u32 parity) {
    await_phase(b, parity);
    MC_RACE(waited(b, parity, true));
}

}  // namespace mc
