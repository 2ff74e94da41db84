// mc_fibers.h: the threads of the executor: switches, schedules, waiting, places.
#pragma once

#include "mc_machine.h"

namespace mc {

// ---- Fibers -----------------------------------------------------------------------------------

// Let ``to`` run in place of ``from``, which goes on when somebody does the reverse.
void exchange(Fiber* from, Fiber* to);

// Ends the run with a message; the fibers are abandoned.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);

// Whether ``f`` can run.
void set_ready(const Fiber& f, bool ready);

// Those of ``count`` fibers that wait on ``what`` can run.
void wake(const void* what, Fiber* fibers, u32 count);

// Whether the schedule lets this fiber run only when no other can.
bool starved(const Fiber& f);

// Let others run; returns when this fiber's turn has come again.
void yield();

// Let others run until one of them wakes those that wait ``on`` this, or on that ``too``.
void sleep(const void* on, const char* what, const void* too = nullptr);

// ---- Places -----------------------------------------------------------------------------------

inline Block& here() { return *machine.current->block; }
inline u32 thread() { return machine.current->thread; }
inline u32 lane() { return thread() % WARP; }
inline u32 warp() { return thread() / WARP; }
inline u32 threads() { return machine.launch.threads; }
inline u32 block() { return here().index; }
inline u32 blocks() { return machine.launch.blocks; }
inline int renewed(int v) { return v; }
inline u32 cluster_rank() { return here().rank; }
inline u32 cluster_size() { return machine.launch.cluster; }
inline u32 cluster_index() { return here().index / machine.launch.cluster; }
inline u32 clusters() { return machine.launch.blocks / machine.launch.cluster; }
inline unsigned char* arena() { return here().shared; }
inline bool in_arena(const void* p, size_t bytes) {
    const unsigned char* at = (const unsigned char*)p;
    return at >= arena() && at + bytes <= arena() + machine.launch.shared_bytes;
}

// ``p`` of this block in block ``rank`` of the cluster.
template <class T>
inline T* at_peer(T* p, u32 rank) {
    if (rank >= machine.launch.cluster) fail("rank %u in a cluster of %u", rank, cluster_size());
    if (!in_arena(p, sizeof(T))) fail("an address outside of shared memory given to a peer");
    return (T*)(here().cluster->blocks[rank]->shared + ((const unsigned char*)p - arena()));
}

}  // namespace mc
