// mc_memory.h: copies, memory of peers, of the device and of several, for the executor.
#pragma once

#include <cstring>

#include "mc_barriers.h"

namespace mc {

// ---- Copies ---------------------------------------------------------------------------------------

inline void finish(const Copy& copy) {
    memcpy(copy.to, copy.from, copy.bytes);
    copy.barrier->bytes -= copy.bytes;
    check_phase(copy.barrier);
}

inline void finish_copies_of(const Barrier* b) {
    for (size_t i = 0; i < machine.copies.size();) {
        if (machine.copies[i].barrier != b) {
            i++;
            continue;
        }
        const Copy copy = machine.copies[i];
        machine.copies.erase(machine.copies.begin() + i);
        finish(copy);
    }
}

inline void issue(const Copy& copy) {
    if (((uintptr_t)copy.to | (uintptr_t)copy.from | copy.bytes) % 16 || !copy.bytes) {
        fail("a copy of %u bytes whose size or addresses are no multiples of 16", copy.bytes);
    }
    MC_RACE(copy(copy));
    machine.counts.copied_bytes += copy.bytes;
    if (!machine.launch.late_copies) return finish(copy);
    memset(copy.to, 0xff, copy.bytes);
    machine.copies.push_back(copy);
}

inline void copy_in(void* to, const void* from, u32 bytes, Barrier* b) {
    if (!in_arena(to, bytes)) fail("a copy of %u bytes past the end of shared memory", bytes);
    issue({to, from, bytes, b});
}

inline void push(void* to, u32 rank, const void* from, u32 bytes, Barrier* b) {
    if (!in_arena(to, bytes) || !in_arena(from, bytes)) {
        fail("a push of %u bytes past the end of shared memory", bytes);
    }
    if (rank != cluster_rank()) machine.counts.dsmem_bytes += bytes;
    issue({at_peer((unsigned char*)to, rank), from, bytes, at_peer(b, rank)});
}

inline void copy_fence() { MC_RACE(copy_fence()); }

// Changes nothing but where memory is found, so all it must do is to stay within an array of the launch.
inline void prefetch(const void* from, u32 bytes) {
    if (((uintptr_t)from | bytes) % 16 || !bytes) {
        fail("a prefetch of %u bytes whose size or address is no multiple of 16", bytes);
    }
    bool held = !machine.given;
    for (u32 n = 0; n < machine.given_count && !held; n++) {
        const size_t at = (const unsigned char*)from - machine.given[n].at;
        held = at < machine.given[n].bytes && bytes <= machine.given[n].bytes - at;
    }
    if (!held) fail("a prefetch of %u bytes that are not all in one array of the launch", bytes);
    machine.counts.prefetched_bytes += bytes;
}

// ---- Grids that follow each other -----------------------------------------------------------------

// The executor runs one grid after the other. With MC_RACES, what is read or written before this is
// looked at.
inline void wait_for_previous_grid() {
    machine.current->behind = true;
    MC_RACE(wait_for_previous_grid());
}

// The next grid relies on the one in front of this having ended.
inline void let_next_grid_start() {
    if (!machine.current->behind) fail("the next grid may start before the one in front has ended");
    machine.counts.early_blocks += !here().early;
    here().early = true;
}

// ---- Shared memory of a peer --------------------------------------------------------------------

inline void count_peer(u32 rank, u32 bytes) {
    if (rank != cluster_rank()) machine.counts.dsmem_bytes += bytes;
}

inline float load_peer(const float* p, u32 rank) {
    count_peer(rank, 4);
    return *at_peer(p, rank);
}

inline float4 load_peer4(const float* p, u32 rank) {
    if ((uintptr_t)p % 16) fail("load_peer4 of an address that is no multiple of 16");
    count_peer(rank, 16);
    return *at_peer((const float4*)p, rank);
}

inline void store_peer(float* p, u32 rank, float v) {
    count_peer(rank, 4);
    *at_peer(p, rank) = v;
}

// ---- Global memory --------------------------------------------------------------------------------

inline void add(float* p, float v) { *p += v; }

inline void add4(float* p, float4 v) {
    if ((uintptr_t)p % 16) fail("add4 to an address that is no multiple of 16");
    p[0] += v.x;
    p[1] += v.y;
    p[2] += v.z;
    p[3] += v.w;
}

// ---- Multicast memory -------------------------------------------------------------------------------

inline uint4 load_sum_of_gpus(const uint4* p) {
    const size_t offset = (const unsigned char*)p - multicast.base;
    float sums[8] = {};
    for (const unsigned char* gpu : multicast.gpus) {
        const bf16* values = (const bf16*)(gpu + offset);
        for (int i = 0; i < 8; i++) sums[i] += widen(values[i]);
    }
    uint4 found;
    for (int i = 0; i < 8; i++) ((bf16*)&found)[i] = narrow<bf16>(sums[i]);
    return found;
}

inline void store_to_gpus(uint4* p, uint4 v) {
    const size_t offset = (const unsigned char*)p - multicast.base;
    for (unsigned char* gpu : multicast.gpus) memcpy(gpu + offset, &v, sizeof v);
}

}  // namespace mc
