// mc_proxies.h: copies of global memory that a thread of the same grid has written, for the executor.
//
// Plain accesses and copies reach memory by two proxies, which see each other's writes behind fence.proxy.async alone
// (PTX ISA, "Memory consistency model", "Proxies"), here global_copy_fence(). What a grid writes before it starts, and
// what another one wrote, needs none. Where a fence must stand between blocks is written down in two ways: its effects
// are those of a single thread (PTX ISA, "membar, fence"), so whoever writes has one in front of the release; and it
// must be in the block of the access that is not plain (Lustig and others, "Mixed-proxy extensions for the NVIDIA PTX
// memory consistency model", ISCA 2022, 5.4), so whoever copies has one behind the acquire. Both are asked for here:
// by a thread of the writer's block to which the write is known, and by one of the copier's block that knows of it
// and that the copy comes behind. What the block itself wrote is not looked at: a copy may bring it beside what is used.
//
// Blocks that share no memory know of each other by counters: grid_arrive() and gpu_arrive() release,
// grid_wait() and gpu_wait() acquire. Words that are stored and loaded relaxed order nothing. A copy that may not know
// of a write brings what is not used yet, such as the row of a token behind the last one, and is not reported.
#pragma once

#include "mc_fibers.h"

#ifdef MC_RACES
namespace mc::races {

// A plain write of memory that the launch was given, and a copy of some.
void wrote(const void* p, size_t bytes);
void copied(const void* p, size_t bytes);

void global_copy_fence();

// Counters by which blocks of a grid, or of several, know of each other.
void release_by(const void* counter);
void acquire_by(const void* counter);

}  // namespace mc::races
#endif
