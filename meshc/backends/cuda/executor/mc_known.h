// mc_known.h: which accesses to the memory of several GPUs a thread knows of, for the executor.
#pragma once

#include "mc_gpus.h"

namespace mc::gpus {

constexpr u32 NOBODY = ~0u;
constexpr u32 FRONTS = 0xffffff00;  // and above: the grid in front of each GPU

// By thread ``who``, behind ``epoch`` barriers of its block, ``group`` ones of the threads with which it
// shares a group barrier and ``count`` releases of its own.
struct Access {
    u32 who = NOBODY, epoch = 0, count = 0, group = 0;
};

// Accesses that are known: those in front of so many barriers of each block, of so many of its group, those
// of single threads up to a point, results of grids in front.
struct Known {
    std::vector<u32> closed, grouped;
    std::vector<Access> open;
    u32 fronts = 0;  // a bit for each GPU
};

// The threads of a block that share group barrier 1, and how often they have met.
struct Group {
    std::vector<u32> members, arrived;
    u32 epoch = 0;
    Known met;  // what all of them know
};

inline u32 me() { return (u32)(machine.current - machine.fibers.data()); }
inline u32 block_of(u32 thread) { return thread / machine.launch.threads; }
inline u32 gpu_of(u32 block) { return block / machine.launch.blocks; }
inline u32 here_gpu() { return gpu_of(block_of(me())); }

// By thread, whether it shares group barrier 1 of its block.
inline std::vector<char> in_group;

bool holds(const Known& known, const Access& access);
bool within(const Known& from, const Known& to);
bool knows_nothing(const Known& known);
void know_barriers(std::vector<u32>& known, u32 block, u32 epoch);
void know_point(Known& known, const Access& point);
void join(Known& to, const Known& from);

}  // namespace mc::gpus
