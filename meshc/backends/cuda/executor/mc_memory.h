// mc_memory.h: copies, memory of peers and of the device, for the executor.
#pragma once

#include "mc_barriers.h"

namespace mc {

// ---- Copies ---------------------------------------------------------------------------------------

// The bytes of a copy under way arrive.
void finish(const Copy& copy);
// So do those of all copies under way that ``b`` counts.
void finish_copies_of(const Barrier* b);

void copy_in(void* to, const void* from, u32 bytes, Barrier* b);
void push(void* to, u32 rank, const void* from, u32 bytes, Barrier* b);
void copy_to_all(void* to, u32 count, const void* from, u32 bytes, Barrier* b);
void copy_fence();
void global_copy_fence();

// Changes nothing but where memory is found, so all it must do is to stay within an array of the launch.
void prefetch(const void* from, u32 bytes);

// ---- Grids that follow each other -----------------------------------------------------------------

// The executor runs one grid after the other. With MC_RACES, what is read or written before this is
// looked at.
void wait_for_previous_grid();

// The next grid relies on the one in front of this having ended.
void let_next_grid_start();

// ---- Shared memory of a peer --------------------------------------------------------------------

inline void count_peer(u32 rank, u32 bytes) {
    if (rank != cluster_rank()) machine.counts.dsmem_bytes += bytes;
}

inline float load_peer(const float* p, u32 rank) {
    count_peer(rank, 4);
    return *at_peer(p, rank);
}

inline void store_peer(float* p, u32 rank, float v) {
    count_peer(rank, 4);
    *at_peer(p, rank) = v;
}

// ---- Global memory --------------------------------------------------------------------------------

// Words that one thread stores and others wait for; what is in a word is all that they tell each other.
void store_word(u32* p, u32 v);
void store_words(u32* p, const u32 (&v)[4]);
u32 load_word(const u32* p);
void load_words(const u32* p, u32 (&v)[4]);

// A word was stored: who waits for some looks again. Whether anybody did.
bool tell_of_words();

// Until some word is stored.
void wait_for_words(u32& left);

inline void add(float* p, float v) { *p += v; }

}  // namespace mc
