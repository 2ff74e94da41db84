// mc_barriers.cc: how threads meet, and the phases of mbarriers.
#include "mc_gpus.h"
#include "mc_memory.h"
#include "mc_races.h"

namespace mc {

// ---- Barriers of threads ------------------------------------------------------------------------

static void meet(Rendezvous& r, u32 expected, const char* what) {
    const u32 generation = r.generation;
    MC_RACE(arrive(r.clocks, generation, !r.count));
    const bool whole = &r == &here().groups[0], group = &r == &here().groups[1];
    if (gpus::given && group) gpus::arrive_at_group();
    if (gpus::given && !whole && !group) gpus::release(&r.clocks[generation & 1]);
    if (r.count && r.expected != expected) {
        fail("%s met by %u threads and by %u", what, r.expected, expected);
    }
    r.expected = expected;
    if (++r.count == expected) {
        r.count = 0;
        r.generation++;
        if (gpus::given && whole) gpus::meet_block(here());
        if (gpus::given && group) gpus::meet_group();
        wake(&r, here().fibers, threads());
    } else {
        while (r.generation == generation) sleep(&r, what);
    }
    MC_RACE(leave(r.clocks, generation));
    if (gpus::given && !whole && !group) gpus::acquire(&r.clocks[generation & 1]);
}

void block_sync() { meet(here().groups[0], here().alive, "block_sync"); }

void group_sync(u32 id, u32 count) {
    if (id < 1 || id > 15 || count % WARP || count > threads()) {
        fail("group_sync(%u, %u) in a block of %u threads", id, count, threads());
    }
    meet(here().groups[id], count, "group_sync");
}

void end_meeting(Cluster& cluster) {
    cluster.all.count = 0;
    cluster.all.generation++;
    wake(&cluster.all, cluster.blocks[0]->fibers, cluster_size() * threads());
}

// What ``releases`` is ordered before what others do behind cluster_wait().
static void arrive_at_cluster(bool releases) {
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

void cluster_arrive_relaxed() { arrive_at_cluster(false); }

void cluster_wait() {
    Fiber& mine = *machine.current;
    if (!mine.arrived) fail("a thread waits for its cluster and has not arrived");
    Rendezvous& r = here().cluster->all;
    while (r.generation == mine.arrival) sleep(&r, "cluster_wait");
    MC_RACE(leave_cluster());
    mine.arrived = false;
}

void cluster_sync() {
    arrive_at_cluster(true);
    cluster_wait();
}

void grid_arrive(u32* counter) {
    MC_RACE(watch(counter, sizeof *counter, true));
    MC_RACE(release_by(counter));
    if (gpus::given) gpus::release(counter);
    ++*counter;
    wake(counter, machine.fibers.data(), (u32)machine.fibers.size());
}

void grid_wait(u32* counter, u32 target) {
    MC_RACE(watch(counter, sizeof *counter, false));
    while ((int32_t)(*counter - target) < 0) sleep(counter, "grid_wait");
    MC_RACE(acquire_by(counter));
    if (gpus::given) gpus::acquire(counter);
}

bool grid_arrive_last(u32* counter, u32 target) {
    grid_arrive(counter);
    if (*counter != target) return false;
    MC_RACE(acquire_by(counter));
    if (gpus::given) gpus::acquire(counter);
    return true;
}

bool grid_leave(u32* counter, u32 total) {
    MC_RACE(watch(counter, sizeof *counter, true));
    if (++*counter != total) return false;
    *counter = 0;
    return true;
}

void grid_sync(u32* counter, u32 target) {
    block_sync();
    if (thread() == 0) {
        grid_arrive(counter);
        grid_wait(counter, target);
    }
    block_sync();
}

void warp_sync(Site site) {
    Warp& w = here().warps[warp()];
    [[maybe_unused]] const u32 generation = w.generation;
    if (gpus::given) gpus::arrive_in_warp(&w.clocks[generation & 1], !w.arrived);
    gather_warp(
        site, [](Warp& w, u32) { MC_RACE(arrive(w.clocks, w.generation, !w.arrived)); },
        [](Warp&, u32) {});
    MC_RACE(leave(w.clocks, generation));
    if (gpus::given) gpus::acquire(&w.clocks[generation & 1]);
}

// ---- mbarriers ----------------------------------------------------------------------------------

void check_phase(Barrier* b) {
    if (b->missing || b->bytes) return;
    b->phase_and_count ^= 0x8000;
    b->missing = b->phase_and_count & 0x7fff;
    const size_t block = ((unsigned char*)b - machine.shared) / machine.shared_bytes;
    wake(b, machine.blocks[block].fibers, threads());
    MC_RACE(end_phase(b));
}

static bool phase_ended(const Barrier* b, u32 parity) {
    return (u32)(b->phase_and_count >> 15) != (parity & 1);
}

void init(Barrier* b, u32 arrivals) {
    if (!in_arena(b, sizeof *b) || (uintptr_t)b % 8) fail("an mbarrier outside of shared memory");
    if (!arrivals || arrivals > 0x7fff) fail("an mbarrier of %u arrivals", arrivals);
    MC_RACE(init(b));
    *b = {(u16)arrivals, (u16)arrivals, 0};
}

void init_fence() { MC_RACE(init_fence()); }

// Where threads release what they know by an arrival in the phase of this parity.
static const void* phase_of(const Barrier* b, u32 parity) { return (const unsigned char*)b + (parity & 1); }

static void arrive(Barrier* b, bool has_read) {
    MC_RACE(arrive(b, has_read));
    (void)has_read;
    if (gpus::given) gpus::release(phase_of(b, b->phase_and_count >> 15));
    if (!b->missing) fail("more arrivals at an mbarrier than its phase has");
    b->missing--;
    check_phase(b);
}

void arrive(Barrier* b) { arrive(b, false); }

void arrive_read(Barrier* b, u32 rank) { arrive(at_peer(b, rank), true); }

void arrive_at(Barrier* b, u32 rank) { arrive(at_peer(b, rank)); }

void expect(Barrier* b, u32 bytes) {
    b->bytes += bytes;
    if (b->bytes >= 1 << 20) fail("an mbarrier that awaits %d bytes, of at most 1048575", b->bytes);
    arrive(b);
}

static void await_phase(Barrier* b, u32 parity) {
    if (machine.launch.late_copies) yield();
    while (!phase_ended(b, parity)) {
        if (machine.launch.late_copies) {
            yield();
            finish_copies_of(b);
            if (phase_ended(b, parity)) break;
        }
        sleep(b, "wait on an mbarrier");
    }
    if (gpus::given) gpus::acquire(phase_of(b, parity));
}

void wait(Barrier* b, u32 parity) {
    await_phase(b, parity);
    MC_RACE(waited(b, parity, false));
}

void wait_for_peers(Barrier* b, u32 parity) {
    await_phase(b, parity);
    MC_RACE(waited(b, parity, true));
}

void wait_for_either(Barrier* b, u32 parity, Barrier* other, u32 other_parity) {
    MC_RACE(looked_at(b));
    MC_RACE(looked_at(other));
    if (machine.launch.late_copies) yield();
    while (!phase_ended(b, parity) && !phase_ended(other, other_parity)) {
        if (machine.launch.late_copies) {
            yield();
            finish_copies_of(b);
            if (phase_ended(b, parity) || phase_ended(other, other_parity)) break;
        }
        sleep(b, "wait on two mbarriers", other);
    }
}

}  // namespace mc
