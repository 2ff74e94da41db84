// mc_races.h: finds accesses to shared memory that no barrier puts in order, for the executor.
//
// A kernel compiled with -DMC_RACES -fsanitize=thread calls the functions at the end of mc_races.cc for
// each plain access; no library of the sanitizer is linked. The executor's own functions are compiled without
// that, and say themselves what they use of a kernel's memory (watch). Threads, and the copies that an mbarrier
// counts, have vector clocks (Flanagan and Freund, FastTrack, PLDI 2009, with all readers kept). Two
// accesses to a place, one of them a write, must be ordered by barriers of a block, a group or a
// cluster, by warp_sync() or by an mbarrier, whatever the schedule of the run; shuffles order nothing.
// wait() on an mbarrier shows what threads of the block did and copies that they started, and only
// wait_for_peers() what peers did. A relaxed arrival at the cluster's barrier orders nothing, but what
// was read before it has been read, so blocks may end behind it. Copies for all blocks of a cluster are to each as
// those of its own threads, and so is an arrival of a thread that has read (arrive_read).
// Products of warpgroups read what a thread that issues them may read, in the proxy of copies, until it waits for them.
// A read must come behind a write. Copies belong to another proxy: they see a plain write only behind
// a copy_fence() that the writer, or a thread it was ordered before, has passed. Peers and copies may
// use an mbarrier that was initialised before an init_fence(), peers behind any barrier of the cluster at
// which its thread arrived then.
//
// Global memory is looked at where the host names the arrays of a launch (mc_watch_arrays): what the
// grid in front writes is used, and any of them is written, only behind wait_for_previous_grid() of
// the thread or of one that was ordered before it. Copies of what other blocks of the grid wrote need fences
// (mc_proxies.h). Not covered: other threads of a grid that use the same place of global memory.
#pragma once

#include "mc_proxies.h"

#ifdef MC_RACES
#define MC_RACE(call) races::call

namespace mc::races {

// Products of the thread read shared memory, or have ``ended`` to.
void multiplied(const void* p, size_t bytes, bool ended);

// A plain access, of any memory.
void watch(const void* p, size_t bytes, bool write);

// Meetings of threads. ``clocks`` belong to two meetings in turn; ``first`` begins a new one.
void arrive(Clock (&clocks)[2], u32 generation, bool first);
void leave(const Clock (&clocks)[2], u32 generation);
void arrive_at_cluster(bool releases);
void leave_cluster();

// mbarriers.
void init(const Barrier* b);
void init_fence();
void arrive(const Barrier* b, bool has_read);
void end_phase(const Barrier* b);
void waited(const Barrier* b, u32 parity, bool for_peers);
void looked_at(const Barrier* b);

// Copies, and what orders them and grids.
void copy(const Copy& copy);
void copy_fence();
void wait_for_previous_grid();

// Runs: the shared memory of blocks that are alive together, from ``start`` to ``stop``; the last
// thread of the block whose first one is ``first`` has ended; variables of a new stack are NaNs.
void start(unsigned char* base, size_t bytes);
void stop();
void end_block(u32 first);
void poison(unsigned char* stack, size_t bytes);

}  // namespace mc::races
#else
#define MC_RACE(call)
#endif
