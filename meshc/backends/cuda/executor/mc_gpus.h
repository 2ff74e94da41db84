// mc_gpus.h: one grid on each of several GPUs, all alive at once, for the executor.
//
// GPUs share nothing but *symmetric memory*: allocations of the same size on each. A kernel reaches those
// of its peers by their addresses, and all at once by a *multicast* address, which no thread may
// dereference. Allocations of *signals* hold words of put_signal() and wait_signal() and nothing else, those
// of *counters* words of gpu_arrive() and gpu_wait().
//
// What a thread does there is known to another one only by an order: barriers of a block or of threads of
// it, mbarriers, grid_sync() between blocks of one GPU, and between GPUs a signal or an arrival of the one
// (release) for which the other waits (acquire), both at the scope of the system; what the one knew by
// then, the other knows too. The
// results of the grid in front of a GPU are known to whoever passes wait_for_previous_grid() there. Every
// access by the functions below, and with MC_RACES every plain one, must know the accesses before it that it
// conflicts with, whatever the schedule of the run; so must the end of a GPU's grid, behind which its
// memory is used again. With late copies, a store holds NaNs where it goes until a thread there knows
// of it, and so do the results of the grid in front.
//
// Clocks are those of vector-clock race detection (Flanagan and Freund, FastTrack, PLDI 2009), kept by
// block: a thread's knowledge of a block is the number of its barriers that it knows all accesses before,
// of those of the threads that share group barrier 1 as well, and what single threads released beyond
// that. Not modelled: fences between the proxies of multicast and plain addresses; clusters in such grids
// and group barriers of changing threads, which are refused.
#pragma once

#include "mc_fibers.h"

namespace mc {

// What an allocation holds.
enum class Held : u64 { VALUES, SIGNALS, COUNTERS, WORDS };

// An allocation of ``bytes`` on every GPU, at ``parts``; ``multicast`` stands for all of them.
struct Symmetric {
    unsigned char* multicast;
    u64 bytes;
    Held held;
    unsigned char* const* parts;
};

// What the host says of the next launch: its GPUs, their memory; ``link_bytes`` comes back.
struct Gpus {
    const Symmetric* memories;
    u64 memory_count, count, link_bytes;
};

namespace gpus {

constexpr u32 MOST = 16, MOST_MEMORIES = 64;

inline Gpus* given = nullptr;  // null: a grid of a single GPU that is no part of this

inline u32 count() { return given ? (u32)given->count : 1; }

// Runs: before the first thread; behind the last thread of all, and of GPU ``gpu``.
void start();
void finish();
void end_grid(u32 gpu);

// What threads meet at. All of ``block`` that are alive have met. A thread arrives at group barrier 1 of
// its block, and the last of those that share it has.
void meet_block(const Block& block);
void arrive_at_group();
void meet_group();
void release(const void* at);
void acquire(const void* at);
void arrive_in_warp(const void* at, bool first);
void wait_for_previous_grid();

// A plain access, of any memory.
void access(const void* p, size_t bytes, bool write);

// Words that are under way to GPUs come there: whether there were any.
bool words_come();

// Words that a run before has left under way never come.
void forget_words();

// Where a waiter's signal lies, in words.
void describe(const void* slot, char* text, size_t bytes);

}  // namespace gpus

// ---- Primitives -----------------------------------------------------------------------------------

uint4 load_sum_of_gpus(const f16* p);
uint4 load_sum_of_gpus(const bf16* p);
uint4 load_sum_of_gpus(const float* p);
void store_to_gpus(void* p, uint4 v);
void store_to_gpus(float* p, float v);
uint4 load_from_gpu(const void* p);
void store_to_gpu(void* p, uint4 v);
void store_to_gpu(float* p, float v);
void store_word_to_gpu(u32* p, u32 v);
void store_word_to_gpus(u32* p, u32 v);
u32 load_word_of_gpus(const u32* p);
void load_words_of_gpus(const u32* p, u32 (&v)[4]);
void gpu_arrive(u32* counter);
void gpu_wait(const u32* counter, u32 target);
void put_signal(u32* slot);
void wait_signal(u32* slot);

}  // namespace mc
