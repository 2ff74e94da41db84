// mc_executor.h: the primitives of mc.cuh on a CPU, to run emitted kernels without a GPU.
//
// Every thread of a kernel is a fiber; all blocks of a cluster (or of the grid) are alive at once and
// a fiber runs until it waits. What real hardware leaves open is varied instead: the order in which
// threads run (Schedule) and when asynchronous copies happen (early: when issued; late: when
// somebody waits for them). Shared memory and the targets of copies under way hold NaNs. A wrong
// barrier, wait or byte count then shows as other numbers, as a report of who waits for what, or as
// a fault. With MC_RACES, accesses to shared memory that nothing puts in order are reported as well,
// see mc_races.h. docs/cuda.md lists what is not modelled.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <source_location>
#include <tuple>
#include <utility>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define __global__
#define __device__
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define MC_INLINE inline

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
template <class T>
inline T min(T a, T b) {
    return b < a ? b : a;
}
template <class T>
inline T max(T a, T b) {
    return a < b ? b : a;
}

namespace mc {

typedef uint16_t u16;
typedef uint32_t u32;
typedef unsigned long long u64;
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

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
    const volatile u32* waits_on;  // not to be resumed while *waits_on == seen
    u32 seen;
    const char* waits_for;
};

namespace races {
struct Clock {  // what is ordered before a point of the program, by thread
    std::vector<u32> seen, fenced;
    bool behind = false;  // the grid in front
};
}  // namespace races

struct Rendezvous {
    u32 count = 0, generation = 0, expected = 0;
    races::Clock clocks[2] = {};
};

struct Warp {
    u32 arrived = 0, generation = 0, line = 0;
    races::Clock clocks[2] = {};
    float values[2][WARP];
    u32 words[2][WARP][6];
    u16 rows[2][WARP][8];
    float sums[WARP][4];
    std::vector<std::vector<u32>> loads;  // of shared memory since the last collective, by lane
};

struct Cluster;
struct Block {
    u32 index, rank, alive;
    bool early;  // has let the next grid start
    unsigned char* shared;
    Rendezvous groups[16];
    std::vector<Warp> warps;
    Cluster* cluster;
};

struct Cluster {
    Rendezvous all;
    std::vector<Block*> blocks;
};

struct Copy {
    void* to;
    const void* from;
    u32 bytes;
    Barrier* barrier;
};

struct Machine {
    Launch launch;
    Counts counts;
    std::function<void()> kernel;
    std::vector<Fiber> fibers;
    std::vector<u32> order;
    size_t at;
    Fiber* current;
    Fiber host;
    std::vector<Copy> copies;
    std::mt19937 random;
    size_t shared_bytes;  // of a block, rounded up to pages
    char message[512];
    bool failed;
};

inline Machine machine;

// Multicast memory of several emulated GPUs: an address from ``base`` on stands for that offset on each.
struct Multicast {
    unsigned char* base = nullptr;
    std::vector<unsigned char*> gpus;
};
inline Multicast multicast;

// ---- Fibers -----------------------------------------------------------------------------------

#if defined(__x86_64__)
extern "C" void mc_switch(void** from, void* to);
// Saves what a call must preserve, exchanges stacks, restores.
asm(R"(.text
.weak mc_switch
.hidden mc_switch
.type mc_switch, @function
mc_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size mc_switch, . - mc_switch
)");
inline void exchange(Fiber* from, Fiber* to) { mc_switch(&from->stack, to->stack); }
#else
inline void exchange(Fiber* from, Fiber* to) { swapcontext(&from->context, &to->context); }
#endif

inline void resume(Fiber* to) {
    Fiber* from = machine.current;
    to->waits_on = nullptr;
    if (to == from) return;
    machine.counts.switches++;
    machine.current = to;
    exchange(from, to);
}

// Ends the run with a message; the fibers are abandoned.
[[noreturn]] __attribute__((format(printf, 1, 2))) inline void fail(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(machine.message, sizeof machine.message, format, arguments);
    va_end(arguments);
    machine.failed = true;
    resume(&machine.host);
    __builtin_unreachable();
}

inline bool can_run(const Fiber& f) {
    return !f.ended && !(f.waits_on && *f.waits_on == f.seen);
}

inline void finish(const Copy& copy);

inline bool starved(const Fiber& f) {
    const u32 seed = machine.launch.seed;
    if (machine.launch.schedule == STARVE_WARP) {
        return f.thread / WARP == seed % (machine.launch.threads / WARP);
    }
    return machine.launch.schedule == STARVE_BLOCK && f.block->rank == seed % machine.launch.cluster;
}

// The next fiber that can run, or none.
inline Fiber* choose() {
    const size_t count = machine.order.size();
    if (machine.launch.schedule == RANDOM) {
        for (int attempt = 0; attempt < 8; attempt++) {
            const size_t at = machine.random() % count;
            if (can_run(machine.fibers[machine.order[at]])) {
                machine.at = at;
                return &machine.fibers[machine.order[at]];
            }
        }
    }
    for (const bool favour : {true, false}) {
        if (favour && machine.launch.schedule < STARVE_WARP) continue;
        for (size_t n = 0; n < count; n++) {
            if (++machine.at >= count) machine.at = 0;
            Fiber& f = machine.fibers[machine.order[machine.at]];
            if (can_run(f) && !(favour && starved(f))) return &f;
        }
    }
    return nullptr;
}

[[noreturn]] inline void report_deadlock() {
    char text[400] = "";
    size_t length = 0, shown = 0, waiting = 0;
    for (const Fiber& f : machine.fibers) {
        if (f.ended) continue;
        waiting++;
        if (shown == 4 || length > 300) continue;
        shown++;
        length += snprintf(text + length, sizeof text - length, "%s block %u thread %u in %s",
                           shown > 1 ? "," : "", f.block->index, f.thread, f.waits_for);
    }
    fail("deadlock: %zu threads wait for ever:%s", waiting, text);
}

// Let others run; returns when this fiber's turn has come again.
inline void yield() {
    for (;;) {
        Fiber* next = choose();
        if (next) {
            resume(next);
            return;
        }
        if (std::all_of(machine.fibers.begin(), machine.fibers.end(),
                        [](const Fiber& f) { return f.ended; })) {
            resume(&machine.host);
        }
        if (machine.copies.empty()) report_deadlock();
        const Copy copy = machine.copies.front();
        machine.copies.erase(machine.copies.begin());
        finish(copy);
    }
}

inline void wait_while(const volatile u32* word, u32 value, const char* what) {
    while (*word == value) {
        machine.current->waits_on = word;
        machine.current->seen = value;
        machine.current->waits_for = what;
        yield();
    }
}

// ---- Places -----------------------------------------------------------------------------------

inline Block& here() { return *machine.current->block; }
inline u32 thread() { return machine.current->thread; }
inline u32 lane() { return thread() % WARP; }
inline u32 warp() { return thread() / WARP; }
inline u32 threads() { return machine.launch.threads; }
inline u32 block() { return here().index; }
inline u32 blocks() { return machine.launch.blocks; }
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

// ---- Barriers of threads ------------------------------------------------------------------------

#ifdef MC_RACES
}  // namespace mc
#include "mc_races.h"
namespace mc {
#define MC_RACE(call) races::call
#else
#define MC_RACE(call)
#endif

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
    } else {
        wait_while(&r.generation, generation, what);
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

inline void cluster_sync() {
    Rendezvous& r = here().cluster->all;
    u32 expected = 0;
    for (const Block* b : here().cluster->blocks) expected += b->alive;
    meet(r, expected, "cluster_sync");
}

inline void grid_sync(u32* counter, u32 target) {
    block_sync();
    if (thread() == 0) {
        ++*counter;
        while ((int32_t)(*counter - target) < 0) wait_while(counter, *counter, "grid_sync");
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
    } else {
        wait_while(&w.generation, generation, "a meeting of its warp");
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

inline void wait(Barrier* b, u32 parity) {
    if (machine.launch.late_copies) yield();
    while (!phase_ended(b, parity)) {
        if (machine.launch.late_copies) {
            yield();
            finish_copies_of(b);
            if (phase_ended(b, parity)) break;
        }
        // The phase lies in the barrier's first word, with the arrivals that are missing.
        const volatile u32* word = (const volatile u32*)b;
        wait_while(word, *word, "wait on an mbarrier");
    }
    MC_RACE(waited(b, parity));
}

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
inline void prefetch(const void*, u32) {}

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

// ---- Arithmetic -----------------------------------------------------------------------------------

inline float power_of_two(float x) { return exp2f(x); }
inline float inverse_root(float x) { return 1.0f / sqrtf(x); }
inline float fused(float a, float b, float c) { return fmaf(a, b, c); }

inline float widen(f16 v) { return (float)std::bit_cast<_Float16>(v.bits); }
inline float widen(bf16 v) { return std::bit_cast<float>((u32)v.bits << 16); }
template <class T>
inline T narrow(float v);
template <>
inline f16 narrow<f16>(float v) {
    return {std::bit_cast<u16>((_Float16)v)};
}
template <>
inline bf16 narrow<bf16>(float v) {
    const u32 bits = std::bit_cast<u32>(v);
    if (v != v) return {0x7fff};
    return {(u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

inline void log_load(const void* p) {
    if (!machine.launch.lint || !in_arena(p, 16)) return;
    Warp& w = here().warps[warp()];
    w.loads.resize(WARP);
    w.loads[lane()].push_back((u32)((const unsigned char*)p - arena()));
}

template <class T>
inline void load8(const T* p, float* to) {
    if ((uintptr_t)p % 16) fail("load8 of an address that is no multiple of 16");
    log_load(p);
    for (int i = 0; i < 8; i++) to[i] = widen(p[i]);
}

// Cycles of 16-byte loads of a warp from 32 banks of four bytes: eight lanes at a time, one cycle for
// each further word that a bank must give.
inline void count_conflicts(Warp& w) {
    if (w.loads.empty()) return;
    size_t count = w.loads[0].size();
    for (const auto& lane : w.loads) count = std::min(count, lane.size());
    for (size_t n = 0; n < count; n++) {
        for (int quarter = 0; quarter < 4; quarter++) {
            std::vector<u32> words[32];
            size_t most = 0;
            for (int lane = 8 * quarter; lane < 8 * quarter + 8; lane++) {
                for (u32 part = 0; part < 4; part++) {
                    const u32 word = w.loads[lane][n] / 4 + part;
                    auto& bank = words[word % 32];
                    if (std::find(bank.begin(), bank.end(), word) == bank.end()) {
                        bank.push_back(word);
                    }
                    most = std::max(most, bank.size());
                }
            }
            machine.counts.shared_loads++;
            machine.counts.shared_load_cycles += most;
        }
    }
    for (auto& lane : w.loads) lane.clear();
}

// ---- Fragments of tensor cores --------------------------------------------------------------------

template <class T>
inline void store8(T* p, const float* from) {
    if ((uintptr_t)p % 16) fail("store8 to an address that is no multiple of 16");
    for (int i = 0; i < 8; i++) p[i] = narrow<T>(from[i]);
}

template <class T, int N>
inline void load_fragment(const T* p, u32 (&words)[N]) {
    if ((uintptr_t)p % sizeof words) fail("load_fragment of an address that is no multiple of its size");
    if (N == 4) log_load(p);
    for (int i = 0; i < N; i++) words[i] = p[2 * i].bits | (u32)p[2 * i + 1].bits << 16;
}

// Every lane deposits its row; then each picks two values of each matrix.
inline void load_rows(u32 (&words)[4], const void* row, bool transposed, Site site) {
    if ((uintptr_t)row % 16) fail("load_matrices of a row that is no multiple of 16");
    if (!in_arena(row, 16)) fail("load_matrices of a row outside of shared memory");
    log_load(row);
    const u32 half = gather_warp(
        site,
        [&](Warp& w, u32 h) {
            const u16* values = (const u16*)row;
            for (int i = 0; i < 8; i++) w.rows[h][lane()][i] = values[i];
        },
        [](Warp&, u32) {});
    const auto& rows = here().warps[warp()].rows[half];
    const u32 major = lane() / 4, minor = lane() % 4 * 2;
    for (u32 m = 0; m < 4; m++) {
        const u16 low = transposed ? rows[8 * m + minor][major] : rows[8 * m + major][minor];
        const u16 high = transposed ? rows[8 * m + minor + 1][major] : rows[8 * m + major][minor + 1];
        words[m] = low | (u32)high << 16;
    }
}

inline void load_matrices(u32 (&words)[4], const void* row, Site site = Site::current()) {
    load_rows(words, row, false, site);
}

inline void load_matrices_transposed(u32 (&words)[4], const void* row, Site site = Site::current()) {
    load_rows(words, row, true, site);
}

template <class T>
inline void multiply_16x8x16(float* c, const u32* a, const u32* b, T, Site site = Site::current()) {
    const auto half = [](u32 word, int upper) {
        return widen(T{(u16)(upper ? word >> 16 : word)});
    };
    gather_warp(
        site,
        [&](Warp& w, u32 h) {
            for (int i = 0; i < 4; i++) w.words[h][lane()][i] = a[i];
            for (int i = 0; i < 2; i++) w.words[h][lane()][4 + i] = b[i];
            for (int i = 0; i < 4; i++) w.sums[lane()][i] = c[i];
        },
        [&](Warp& w, u32 h) {
            float left[16][16], right[16][8], sums[16][8];
            for (int l = 0; l < WARP; l++) {
                const int group = l / 4, place = l % 4;
                for (int i = 0; i < 4; i++) {
                    for (int upper = 0; upper < 2; upper++) {
                        left[group + 8 * (i & 1)][2 * place + upper + 8 * (i >> 1)] =
                            half(w.words[h][l][i], upper);
                    }
                    sums[group + 8 * (i >> 1)][2 * place + (i & 1)] = w.sums[l][i];
                }
                for (int i = 0; i < 2; i++) {
                    for (int upper = 0; upper < 2; upper++) {
                        right[2 * place + upper + 8 * i][group] = half(w.words[h][l][4 + i], upper);
                    }
                }
            }
            for (int i = 0; i < 16; i++) {
                for (int k = 0; k < 16; k++) {
                    const float factor = left[i][k];
                    for (int j = 0; j < 8; j++) sums[i][j] += factor * right[k][j];
                }
            }
            for (int l = 0; l < WARP; l++) {
                for (int i = 0; i < 4; i++) {
                    w.sums[l][i] = sums[l / 4 + 8 * (i >> 1)][2 * (l % 4) + (i & 1)];
                }
            }
        });
    memcpy(c, here().warps[warp()].sums[lane()], 4 * sizeof(float));
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

// ---- Running a kernel ---------------------------------------------------------------------------------

inline void run_fiber() {
    machine.kernel();
    Fiber* f = machine.current;
    Block* b = f->block;
    f->ended = true;
    b->alive--;
    if (!b->alive) {
        MC_RACE(end_block(f - machine.fibers.data() - f->thread));
        memset(b->shared, 0xff, machine.launch.shared_bytes);
    }
    // Threads that have ended are no longer waited for.
    Rendezvous& all = b->cluster->all;
    u32 alive = 0;
    for (const Block* other : b->cluster->blocks) alive += other->alive;
    if (all.count && all.count == alive) {
        all.count = 0;
        all.generation++;
    }
    yield();
    __builtin_unreachable();
}

struct Memory {
    unsigned char* at;
    size_t bytes;
    explicit Memory(size_t bytes) : bytes(bytes) {
        void* found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        at = found == MAP_FAILED ? nullptr : (unsigned char*)found;
    }
    ~Memory() {
        if (at) munmap(at, bytes);
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
};

inline void prepare(Fiber& f, unsigned char* stack) {
    MC_RACE(poison(stack, STACK_BYTES));
    memcpy(stack, &STACK_END, sizeof STACK_END);
#if defined(__x86_64__)
    // Tops differ by some lines, or all stacks would meet in the same cache sets.
    const size_t shift = &f - machine.fibers.data();
    u64* top = (u64*)(stack + STACK_BYTES - shift % 61 * 64 - 64);
    *--top = 0;
    *--top = (u64)(void*)run_fiber;
    for (int saved = 0; saved < 6; saved++) *--top = 0;
    f.stack = top;
#else
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = stack;
    f.context.uc_stack.ss_size = STACK_BYTES;
    f.context.uc_link = nullptr;
    makecontext(&f.context, run_fiber, 0);
#endif
}

inline void check_stacks(const unsigned char* stacks) {
    for (size_t n = 0; n < machine.fibers.size(); n++) {
        if (memcmp(stacks + n * STACK_BYTES, &STACK_END, sizeof STACK_END)) {
            snprintf(machine.message, sizeof machine.message, "a thread's stack is too deep");
            machine.failed = true;
            return;
        }
    }
}

// Run the blocks from ``first`` on that are alive together.
inline void run_batch(u32 first, u32 count, unsigned char* stacks, unsigned char* shared) {
    const Launch& l = machine.launch;
    std::vector<Block> blocks(count);
    std::vector<Cluster> clusters(count / l.cluster);
    for (u32 n = 0; n < count; n++) {
        Block& b = blocks[n];
        b.index = first + n;
        b.rank = n % l.cluster;
        b.alive = l.threads;
        b.early = false;
        b.shared = shared + n * machine.shared_bytes;
        memset(b.shared, 0xff, l.shared_bytes);
        b.warps.resize(l.threads / WARP);
        b.cluster = &clusters[n / l.cluster];
        b.cluster->blocks.push_back(&b);
    }
    machine.order.clear();
    for (u32 n = 0; n < count * l.threads; n++) {
        Fiber& f = machine.fibers[n];
        f.block = &blocks[n / l.threads];
        f.thread = n % l.threads;
        f.ended = false;
        f.behind = false;
        f.waits_on = nullptr;
        f.waits_for = "no barrier";
        prepare(f, stacks + n * STACK_BYTES);
        machine.order.push_back(n);
    }
    if (l.schedule == REVERSE) std::reverse(machine.order.begin(), machine.order.end());
    if (l.schedule == SHUFFLED) {
        std::shuffle(machine.order.begin(), machine.order.end(), machine.random);
    }
    MC_RACE(start(shared, count * machine.shared_bytes));
    machine.at = 0;
    machine.host.waits_on = nullptr;
    machine.current = &machine.host;
    Fiber* start = &machine.fibers[machine.order[0]];
    machine.current = start;
    exchange(&machine.host, start);
    if (machine.failed) return;
    check_stacks(stacks);
    if (!machine.failed && !machine.copies.empty()) {
        snprintf(machine.message, sizeof machine.message,
                 "the kernel ended with %zu copies under way", machine.copies.size());
        machine.failed = true;
    }
}

inline bool refuse(const char* message) {
    snprintf(machine.message, sizeof machine.message, "%s", message);
    machine.failed = true;
    return false;
}

inline bool check(const Launch& l) {
    if (!l.threads || l.threads % WARP || l.threads > 1024) {
        return refuse("a block has 32 to 1024 threads, a multiple of 32");
    }
    if (!l.cluster || l.cluster > 16 || !l.blocks || l.blocks % l.cluster) {
        return refuse("a grid is made of whole clusters of 1 to 16 blocks");
    }
    if (l.shared_bytes > 232448) return refuse("a block has at most 232448 bytes of shared memory");
    return true;
}

inline int run(const Launch& launch, std::function<void()> kernel, Counts* counts, char* message,
               size_t message_bytes) {
    machine.launch = launch;
    machine.counts = {};
    machine.failed = false;
    machine.message[0] = 0;
    machine.kernel = std::move(kernel);
    machine.copies.clear();
    machine.random.seed(launch.seed);
    machine.shared_bytes = (launch.shared_bytes + 8191) / 4096 * 4096;
    if (check(launch)) {
        const u32 alive = launch.whole_grid ? launch.blocks : launch.cluster;
        // One stack's room below the first, so that a stack that is too deep does not fault.
        Memory stacks(((size_t)alive * launch.threads + 1) * STACK_BYTES);
        Memory shared((size_t)alive * machine.shared_bytes);
        machine.fibers.assign((size_t)alive * launch.threads, Fiber{});
        if (!stacks.at || !shared.at) refuse("not enough memory for the threads of a kernel");
        for (u32 first = 0; first < launch.blocks && !machine.failed; first += alive) {
            run_batch(first, alive, stacks.at + STACK_BYTES, shared.at);
        }
        MC_RACE(stop());
    }
    if (counts) *counts = machine.counts;
    if (message && message_bytes) snprintf(message, message_bytes, "%s", machine.message);
    return machine.failed ? 1 : 0;
}

// A kernel with its arguments in an array of pointers to them, as drivers launch it.
template <class... Arguments>
int run_kernel(void (*kernel)(Arguments...), const Launch* launch, void** arguments, Counts* counts,
               char* message, size_t message_bytes) {
    return [&]<size_t... N>(std::index_sequence<N...>) {
        std::tuple<Arguments...> held(*(std::remove_reference_t<Arguments>*)arguments[N]...);
        return run(
            *launch, [&] { std::apply(kernel, held); }, counts, message, message_bytes);
    }(std::index_sequence_for<Arguments...>{});
}

}  // namespace mc

// The symbol ``run_KERNEL`` of the compiled library.
#define MC_EXPORT(kernel)                                                                      \
    extern "C" __attribute__((visibility("default"))) int run_##kernel(                        \
        const mc::Launch* launch, void** arguments, mc::Counts* counts, char* message,         \
        size_t message_bytes) {                                                                \
        return mc::run_kernel(kernel, launch, arguments, counts, message, message_bytes);      \
    }
