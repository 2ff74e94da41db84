// mc_races.cc: finds accesses to shared memory that no barrier puts in order, for the executor.
#include "mc_faults.h"
#include "mc_gpus.h"
#include "mc_races.h"

#include <array>
#include <cstdio>
#include <cstring>
#include <deque>
#include <unordered_map>
#include <vector>

namespace mc::races {

constexpr u32 NOBODY = ~0u, NEVER = ~0u;
constexpr u32 MOST_BARRIERS = 64;  // of a block
constexpr size_t GRAIN = 2;  // bytes of a cell, unless it is split

// By a thread, or by copies that an mbarrier counts: ``who`` is a place in the clocks of its cluster.
struct Access {
    u32 who = NOBODY, when = 0;
};

struct Cell {
    Access write, read;
    bool by_copy = false;  // the write
    bool barrier = false;
    bool split = false;  // each byte has a cell of its own, in State::halves[readers]
    u32 readers = 0;  // further concurrent reads, in State::readers
};

// What one side brings to the phases of an mbarrier; ``who`` stands for its copies in clocks, whose time
// is the number of the phase.
struct Side {
    u32 who = NOBODY;
    bool copies = false;  // in this phase
    Clock pending, ended[2];
};

// An mbarrier, with what its own block does and what peers do.
struct Phases {
    Side own, peers;
    u32 phase = 0;
    u32 maker = NOBODY;  // a thread of the grid
    Access made;
    bool fenced = false;
    u32 announced = NEVER;  // to peers behind so many meetings of the cluster
};

// Global memory that a launch was given; ``written``: by the grid in front of it.
struct Array {
    const unsigned char* at;
    u64 bytes, written;
};

struct State {
    std::vector<Clock> threads;
    std::vector<u32> barrier_counts;  // by cluster
    std::vector<Cell> cells;
    std::vector<std::vector<Access>> readers;
    std::deque<std::array<Cell, GRAIN>> halves;
    std::unordered_map<const void*, Phases> barriers;
    std::vector<Phases*> unannounced;  // initialised and fenced
    unsigned char* base = nullptr;
    size_t bytes = 0;
    std::vector<Clock> ends;  // of blocks
    std::vector<std::vector<u32>> read;  // by then, of each block
    const Array* arrays = nullptr;
    u32 array_count = 0;
};
static State state;

static void start_proxies();

static void raise(std::vector<u32>& to, const std::vector<u32>& from) {
    if (from.empty()) return;
    if (to.size() < from.size()) to.resize(from.size());
    u32* a = to.data();
    const u32* b = from.data();
    for (size_t n = from.size(); n--;) a[n] = a[n] < b[n] ? b[n] : a[n];
}

// ``near``: within a block.
static void join(Clock& to, const Clock& from, bool near) {
    raise(to.seen, from.seen);
    raise(to.fenced, from.fenced);
    raise(to.told, from.told);
    raise(to.far, from.far);
    if (near) raise(to.taken, from.taken), raise(to.far_taken, from.far_taken);
    if (to.meetings < from.meetings) to.meetings = from.meetings;
    to.behind |= from.behind;
}

// Threads of a cluster, whose shared memory no others reach: clocks have a place for each of them, then for
// the copies of each mbarrier.
static u32 cluster_threads() { return machine.launch.cluster * machine.launch.threads; }
static u32 clock_size() { return cluster_threads() + 2 * MOST_BARRIERS * machine.launch.cluster; }

static u32 me() { return (u32)(machine.current - machine.fibers.data()); }
static u32 place() { return me() % cluster_threads(); }

static void release(Clock& to) {
    Clock& mine = state.threads[me()];
    join(to, mine, true);
    mine.seen[place()]++;
}

static void acquire(const Clock& from, bool near = true) {
    join(state.threads[me()], from, near);
    machine.current->behind |= from.behind;
}

void wait_for_previous_grid() { state.threads[me()].behind = true; }

void copy_fence() {
    Clock& mine = state.threads[me()];
    raise(mine.fenced, mine.seen);
    mine.seen[place()]++;  // what is written from now on is not fenced
}

// ---- Meetings of threads: a clock for each of two meetings in turn ------------------------------

void arrive(Clock (&clocks)[2], u32 generation, bool first) {
    if (first) clocks[generation & 1] = {};
    release(clocks[generation & 1]);
}

void leave(const Clock (&clocks)[2], u32 generation) { acquire(clocks[generation & 1]); }

static size_t block_of(const void* p) {
    return ((const unsigned char*)p - state.base) / machine.shared_bytes;
}

void arrive_at_cluster(bool releases) {
    Cluster& cluster = *here().cluster;
    const u32 half = cluster.all.generation & 1;
    if (!cluster.all.count) {
        cluster.all.clocks[half] = {};
        cluster.read[half].clear();
    }
    std::erase_if(state.unannounced, [&](Phases* phases) {
        if (phases->maker != me()) return false;
        phases->announced = cluster.all.generation + 1;
        return true;
    });
    raise(cluster.read[half], state.threads[me()].seen);
    if (releases) {
        release(cluster.all.clocks[half]);
    } else {
        state.threads[me()].seen[place()]++;
    }
}

void leave_cluster() {
    const u32 arrival = machine.current->arrival;
    acquire(here().cluster->all.clocks[arrival & 1], false);
    raise(state.read[block_of(arena())], here().cluster->read[arrival & 1]);
    Clock& mine = state.threads[me()];
    if (mine.meetings <= arrival) mine.meetings = arrival + 1;
}

// ---- Accesses -----------------------------------------------------------------------------------

[[noreturn]] static void report(const char* what, const unsigned char* at, const Access& other) {
    const size_t offset = at - state.base, threads = machine.launch.threads;
    char whom[64] = "which a copy uses";
    if (other.who == NOBODY) {
        snprintf(whom, sizeof whom, "where nothing was written, or no longer is");
    } else if (other.who < cluster_threads()) {
        snprintf(whom, sizeof whom, "which thread %u of rank %u uses", (u32)(other.who % threads),
                 (u32)(other.who / threads));
    }
    fail("a race: thread %u of rank %u %s byte %zu of rank %u's shared memory, %s",
         thread(), cluster_rank(), what, offset % machine.shared_bytes,
         (u32)(offset / machine.shared_bytes % machine.launch.cluster), whom);
}

static bool ordered(const Access& access, const std::vector<u32>& before) {
    return access.who == NOBODY || access.when <= before.data()[access.who];
}

static void add_reader(Cell& cell, const Access& reader, const std::vector<u32>& seen) {
    if (cell.read.who == reader.who || ordered(cell.read, seen)) {
        cell.read = reader;
        return;
    }
    if (!cell.readers) {
        cell.readers = (u32)state.readers.size();
        state.readers.emplace_back();
    }
    for (Access& known : state.readers[cell.readers]) {
        if (known.who == reader.who || ordered(known, seen)) {
            known = reader;
            return;
        }
    }
    state.readers[cell.readers].push_back(reader);
}

static void check_readers(const Cell& cell, const unsigned char* at, const char* what) {
    const auto& seen = state.threads[me()].seen;
    if (!ordered(cell.read, seen)) report(what, at, cell.read);
    if (!cell.readers) return;
    for (const Access& reader : state.readers[cell.readers]) {
        if (!ordered(reader, seen)) report(what, at, reader);
    }
}

static void set_writer(Cell& cell, const Access& writer, bool by_copy) {
    cell.write = writer;
    cell.by_copy = by_copy;
    cell.read = {};
    if (cell.readers) state.readers[cell.readers].clear();
}

// From now on each byte of ``cell`` has a cell of its own.
static void split(Cell& cell) {
    std::array<Cell, GRAIN> halves;
    for (Cell& own : halves) {
        own = cell;
        if (!cell.readers) continue;
        own.readers = (u32)state.readers.size();
        state.readers.push_back(std::vector<Access>(state.readers[cell.readers]));
    }
    cell = {};
    cell.split = true;
    cell.readers = (u32)state.halves.size();
    state.halves.push_back(halves);
}

// use(cell, address) for each cell of some bytes: threads may use neighbouring bytes at any time.
template <class Use>
static void each_cell(const unsigned char* from, size_t bytes, Use use) {
    const unsigned char* const end = from + bytes;
    for (const unsigned char* at = from - (from - state.base) % GRAIN; at < end; at += GRAIN) {
        Cell& cell = state.cells[(at - state.base) / GRAIN];
        if (!cell.split && at >= from && at + GRAIN <= end) {
            use(cell, at);
            continue;
        }
        if (!cell.split) split(cell);
        for (size_t byte = 0; byte < GRAIN; byte++) {
            if (at + byte >= from && at + byte < end) use(state.halves[cell.readers][byte], at + byte);
        }
    }
}

// A block whose threads have ended has no shared memory.
static void check_alive(const unsigned char* at) {
    if (!state.ends[block_of(at)].seen.empty()) report("uses", at, {});
}

static void access(const void* p, size_t bytes, bool write) {
    const auto& seen = state.threads[me()].seen;
    const Access mine{place(), seen[place()]};
    const unsigned char* end = (const unsigned char*)p + bytes;
    check_alive((const unsigned char*)p);
    if ((end - state.base - 1) % machine.shared_bytes >= machine.launch.shared_bytes) {
        fail("an access past the end of shared memory");
    }
    each_cell((const unsigned char*)p, bytes, [&](Cell& cell, const unsigned char* at) {
        if (cell.barrier) return;
        if (!ordered(cell.write, seen)) report(write ? "writes" : "reads", at, cell.write);
        if (!write && cell.write.who == NOBODY) report("reads", at, {});
        if (write) {
            check_readers(cell, at, "writes");
            set_writer(cell, mine, false);
        } else {
            add_reader(cell, mine, seen);
        }
    });
}

static bool watched(const void* p) { return (size_t)((unsigned char*)p - state.base) < state.bytes; }

// Of global memory.
static void access_global(const void* p, size_t bytes, bool write) {
    const Fiber* f = machine.current;
    if (!f || f == &machine.host) return;
    check_around(p, bytes, write);
    if (write) wrote(p, bytes);
    if (gpus::given) gpus::access(p, bytes, write);
    if (!state.array_count || f->behind) return;
    for (u32 n = 0; n < state.array_count; n++) {
        const Array& a = state.arrays[n];
        const unsigned char* from = (const unsigned char*)p;
        if (from + bytes <= a.at || from >= a.at + a.bytes || !(write || a.written)) continue;
        fail("a race: thread %u of block %u %s byte %zu of array %u while the grid in front may run",
             f->thread, f->block->index, write ? "writes" : "reads", (size_t)(from - a.at), n);
    }
}

// ---- mbarriers ------------------------------------------------------------------------------------

void init(const Barrier* b) {
    Phases& found = state.barriers[b];
    if (found.own.who != NOBODY) fail("an mbarrier that is initialised twice");
    u32& count = state.barrier_counts[me() / cluster_threads()];
    if (count == MOST_BARRIERS * machine.launch.cluster) fail("more than %u mbarriers a block", MOST_BARRIERS);
    found.own.who = cluster_threads() + 2 * count++;
    found.peers.who = found.own.who + 1;
    found.maker = me();
    found.made = {place(), state.threads[me()].seen[place()]};
    for (size_t n = 0; n < sizeof *b / GRAIN; n++) {
        state.cells[((const unsigned char*)b - state.base) / GRAIN + n].barrier = true;
    }
}

void init_fence() {
    for (auto& [_, phases] : state.barriers) {
        if (phases.fenced || phases.maker != me()) continue;
        phases.fenced = true;
        state.unannounced.push_back(&phases);
    }
}

static bool is_far(const void* p) { return block_of(p) != block_of(arena()); }

// The phases of ``b``, which this thread must know to be initialised; ``fenced`` for peers and copies.
static Phases& known(const Barrier* b, bool fenced) {
    const auto found = state.barriers.find(b);
    if (found == state.barriers.end()) fail("an mbarrier that was not initialised");
    Phases& phases = found->second;
    const Clock& mine = state.threads[me()];
    const bool told = is_far(b) && phases.announced <= mine.meetings;
    if (!told && !ordered(phases.made, mine.seen)) {
        fail("a race: an mbarrier that another thread may not have initialised yet");
    }
    if (fenced && !phases.fenced) fail("an mbarrier used by a peer or a copy without init_fence");
    return phases;
}

static Side& my_side(Phases& phases, const Barrier* b, bool as_own) {
    return is_far(b) && !as_own ? phases.peers : phases.own;
}

void arrive(const Barrier* b, bool has_read) {
    if (is_far(b)) check_alive((const unsigned char*)b);
    release(my_side(known(b, is_far(b)), b, has_read).pending);
}

void end_phase(const Barrier* b) {
    Phases& phases = state.barriers.at(b);
    for (Side* side : {&phases.own, &phases.peers}) {
        Clock& ended = side->ended[phases.phase & 1];
        ended = std::move(side->pending);
        side->pending = {};
        if (!side->copies) continue;
        if (ended.seen.empty()) ended.seen.assign(clock_size(), 0);
        ended.seen[side->who] = phases.phase + 1;
        side->copies = false;
    }
    phases.phase++;
}

void waited(const Barrier* b, u32 parity, bool for_peers) {
    const Phases& phases = known(b, false);
    acquire(phases.own.ended[parity & 1]);
    if (for_peers) acquire(phases.peers.ended[parity & 1], false);
}

void looked_at(const Barrier* b) { known(b, false); }

// Who does ``what`` in the proxy of copies comes behind the write of ``cell``.
static void check_copied(const Cell& cell, const unsigned char* at, const char* what, const char* who) {
    const Clock& clock = state.threads[me()];
    if (!ordered(cell.write, clock.seen)) report(what, at, cell.write);
    if (!cell.by_copy && !ordered(cell.write, clock.fenced)) {
        fail("%s of shared memory without copy_fence behind the plain writes of it", who);
    }
}

void multiplied(const void* p, size_t bytes, bool ended) {
    const auto& seen = state.threads[me()].seen;
    each_cell((const unsigned char*)p, bytes, [&](Cell& cell, const unsigned char* at) {
        if (cell.write.who == NOBODY) report("multiplies", at, {});
        check_copied(cell, at, "multiplies", "a product");
        if (ended) add_reader(cell, {place(), seen[place()]}, seen);
    });
}

void copy(const Copy& copy) {
    Phases& phases = known(copy.barrier, true);
    Side& side = my_side(phases, copy.barrier, copy.for_all);
    side.copies = true;
    const Access mine{side.who, phases.phase + 1};
    const Clock& clock = state.threads[me()];
    const unsigned char *from = (const unsigned char*)copy.from, *to = (unsigned char*)copy.to;
    check_alive(to);
    if (!watched(from)) {
        access_global(from, copy.bytes, false);
        copied(from, copy.bytes);
    } else {
        each_cell(from, copy.bytes, [&](Cell& source, const unsigned char* at) {
            if (source.write.who == NOBODY) report("copies", at, {});
            check_copied(source, at, "copies", "a copy");
            add_reader(source, mine, clock.seen);
        });
    }
    each_cell(to, copy.bytes, [&](Cell& target, const unsigned char* at) {
        if (target.barrier) fail("a copy over an mbarrier");
        check_copied(target, at, "copies to", "a copy");
        check_readers(target, at, "copies to");
        set_writer(target, mine, true);
    });
}

// ---- Blocks ---------------------------------------------------------------------------------------

void start(unsigned char* base, size_t bytes) {
    const size_t count = machine.order.size();
    state.threads.assign(count, {});
    for (size_t n = 0; n < count; n++) {
        state.threads[n].seen.assign(clock_size(), 0);
        state.threads[n].fenced.assign(clock_size(), 0);
        state.threads[n].seen[n % cluster_threads()] = 1;
    }
    state.barrier_counts.assign(count / cluster_threads(), 0);
    state.cells.assign(bytes / GRAIN, {});
    state.readers.assign(1, {});
    state.halves.clear();
    state.barriers.clear();
    state.unannounced.clear();
    state.ends.assign(bytes / machine.shared_bytes, {});
    state.read.assign(bytes / machine.shared_bytes, {});
    state.base = base;
    state.bytes = bytes;
    start_proxies();
}

// Variables that are not initialised are NaNs.
void poison(unsigned char* stack, size_t bytes) { memset(stack, 0xff, bytes); }

// Behind a run: its shared memory is given back, and may come back as anything.
void stop() { state.bytes = 0; }

// The last thread of a block has ended: what peers did in its shared memory must come before.
void end_block(u32 first) {
    const size_t block = block_of(arena());
    Clock end;
    for (u32 n = 0; n < threads(); n++) join(end, state.threads[first + n], false);
    std::vector<u32> read = end.seen;
    raise(read, state.read[block]);
    const auto check = [&](const Access& access, const std::vector<u32>& before, const unsigned char* at) {
        if (!ordered(access, before)) report("ends before a use of", at, access);
    };
    each_cell(state.base + block * machine.shared_bytes, machine.shared_bytes, [&](Cell& cell, const unsigned char* at) {
        check(cell.write, end.seen, at);
        check(cell.read, read, at);
        for (const Access& reader : state.readers[cell.readers]) check(reader, read, at);
    });
    state.ends[block] = std::move(end);
}

void watch(const void* p, size_t bytes, bool write) {
    if ((size_t)((const unsigned char*)p - state.base) < state.bytes) {
        access(p, bytes, write);
    } else {
        access_global(p, bytes, write);
    }
}

}  // namespace mc::races

// The arrays of the next launch, which outlive it; none of them are looked at when ``count`` is 0.
extern "C" __attribute__((visibility("default"))) void mc_watch_arrays(
    const mc::races::Array* arrays, mc::u32 count) {
    mc::races::state.arrays = arrays;
    mc::races::state.array_count = count;
}

// What -fsanitize=thread calls.
#define MC_WATCH(bytes)                                                                          \
    extern "C" void __tsan_read##bytes(void* p) { mc::races::watch(p, bytes, false); } \
    extern "C" void __tsan_write##bytes(void* p) { mc::races::watch(p, bytes, true); } \
    extern "C" void __tsan_unaligned_read##bytes(void* p) {                         \
        mc::races::watch(p, bytes, false);                                                       \
    }                                                                                            \
    extern "C" void __tsan_unaligned_write##bytes(void* p) {                        \
        mc::races::watch(p, bytes, true);                                                        \
    }                                                                                            \
    extern "C" void __tsan_volatile_read##bytes(void*) {}                           \
    extern "C" void __tsan_volatile_write##bytes(void*) {}
MC_WATCH(1)
MC_WATCH(2)
MC_WATCH(4)
MC_WATCH(8)
MC_WATCH(16)
extern "C" void __tsan_read_range(void* p, size_t n) { mc::races::watch(p, n, false); }
extern "C" void __tsan_write_range(void* p, size_t n) { mc::races::watch(p, n, true); }
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_vptr_update(void*, void*) {}
extern "C" void __tsan_init() {}
