// mc_machine.h: what the executor keeps of a run.
#pragma once

#include <cstdint>
#include <source_location>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "mc_values.h"

namespace mc {

// An mbarrier: phase, arrivals still missing in it, arrivals of each phase, bytes still missing.
struct Barrier {
    u16 phase_and_count;
    u16 missing;
    int32_t bytes;
};
static_assert(sizeof(Barrier) == 8);

enum Schedule { FORWARD, REVERSE, SHUFFLED, RANDOM, STARVE_WARP, STARVE_BLOCK };
constexpr int WARP = 32;
constexpr size_t STACK_BYTES = 32768;
constexpr u64 STACK_END = 0x6d657368635f656e;  // overwritten by a stack that is too deep

// What the host asks for; ``whole_grid`` keeps all blocks alive at once, for grid_sync().
struct Launch {
    u32 blocks, threads, cluster, shared_bytes;
    u32 schedule, late_copies, whole_grid, lint, seed;
};

// What a run counted. ``dsmem_bytes`` went between blocks of a cluster, by copies, loads or stores;
// ``early_blocks`` let the next grid start before they ended.
struct Counts {
    u64 copied_bytes, dsmem_bytes, shared_loads, shared_load_cycles, switches, early_blocks;
    u64 prefetched_bytes;
};

typedef std::source_location Site;

struct Block;
struct Fiber {
    void* stack;
#if !defined(__x86_64__)
    ucontext_t context;
#endif
    Block* block;
    u32 thread;
    bool ended;
    bool behind;  // the grid in front, as far as this thread knows
    bool arrived;  // at the barrier of its cluster, and has not waited yet
    u32 arrival;  // the generation in which it did
    u32 place;  // in the order of the schedule
    const void* waits_on;  // not to be resumed before wake() of that; null: can run
    const void* waits_too;  // or of that; null: of nothing else
    const char* waits_for;
};

namespace races {
struct Clock {  // what is ordered before a point of the program, by thread
    std::vector<u32> seen, fenced;
    // Of global memory (mc_proxies.h): fenced by who wrote, and by this block; what other clusters released, by number
    // of the thread that did, and how much of that this block has fenced.
    std::vector<u32> told, taken, far, far_taken;
    u32 meetings = 0;  // of the cluster that have ended
    bool behind = false;  // the grid in front
};
}  // namespace races

struct Rendezvous {
    u32 count = 0, generation = 0, expected = 0;
    races::Clock clocks[2] = {};
};

// A product of a warp's 16 rows with columns of 16 values that is under way, of a group once it is committed.
struct Product {
    u32 left[WARP][4];
    const u32* left_of[WARP];
    const unsigned char* columns;
    u32 eight_bytes;  // from eight columns to the next ones
    u32 group;
    bool multiplied;
};

struct Warp {
    u32 arrived = 0, generation = 0, line = 0;
    races::Clock clocks[2] = {};
    float values[2][WARP];
    u32 words[2][WARP][6];
    u16 rows[2][WARP][8];
    float sums[WARP][4];
    bool fenced[WARP] = {};  // fragments that were loaded, by fence_products()
    std::vector<Product> products;  // under way
    u32 issued = 0, groups = 0;
    u32 count = 0;  // of sums of a lane
    float* sums_of[WARP];
    std::vector<float> held;  // sums while products are under way, lane by lane
    const float* known_of[WARP] = {};  // sums that were fenced or awaited last
    std::vector<float> known[WARP];  // and what they were
    std::vector<std::vector<u32>> loads;  // of shared memory since the last collective, by lane
};

struct Cluster;
struct Block {
    u32 index, rank, alive, gpu;
    bool early;  // has let the next grid start
    unsigned char* shared;
    Fiber* fibers;
    Rendezvous groups[16];
    std::vector<Warp> warps;
    Cluster* cluster;
};

struct Cluster {
    Rendezvous all;
    std::vector<u32> read[2];  // what was read before a relaxed arrival, of two meetings in turn
    std::vector<Block*> blocks;
};

struct Copy {
    void* to;
    const void* from;
    u32 bytes;
    Barrier* barrier;
    bool for_all;  // blocks of the cluster, which wait for it as for a copy of their own
};

// An array of the device that a launch was given as one of its arguments; its memory and what lies around
// that, which only arrays have that lie in it too, goes from ``begin`` to ``end``.
struct Given {
    const unsigned char *at, *begin, *end;
    u64 bytes, argument;
};

// Numbers that look random, by the mixing steps of SplitMix64 (Steele and others, OOPSLA 2014).
struct Random {
    u64 state;
    u32 operator()() {
        u64 z = state += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        return (u32)(z >> 32 ^ z >> 1);
    }
};

struct Machine {
    Launch launch;
    Counts counts;
    void (*kernel)(const void* arguments);
    const void* arguments;  // of the kernel on each GPU in turn, ``argument_bytes`` apart
    size_t argument_bytes;
    std::vector<Fiber> fibers;
    std::vector<u32> order;
    // By place in the order, a bit for each fiber: those that can run, and those of them that only
    // run when no other can.
    std::vector<u64> ready, starved;
    size_t at, alive;
    Fiber* current;
    std::vector<Block> blocks;  // alive together, with shared memory from ``shared`` on
    unsigned char* shared;
    Fiber host;
    std::vector<Copy> copies;
    Random random;
    size_t shared_bytes;  // of a block, rounded up to pages
    char message[512];
    bool failed;
    const Given* given;  // in the order in which they lie; null: the host does not say
    u32 given_count;
};

extern Machine machine;

}  // namespace mc
