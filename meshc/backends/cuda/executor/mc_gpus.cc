// mc_gpus.cc: symmetric memory of several GPUs, signals between them, and who knows of what.
#include "mc_gpus.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace mc {
namespace gpus {

constexpr u32 NOBODY = ~0u;
constexpr u32 FRONTS = 0xffffff00;  // and above: the grid in front of each GPU
constexpr size_t GRAIN = 2;  // bytes of a cell

// By thread ``who``, behind ``epoch`` barriers of its block and ``count`` releases of its own.
struct Access {
    u32 who = NOBODY, epoch = 0, count = 0;
};

// Accesses that are known: those in front of so many barriers of each block, those of single threads up to a
// point, results of grids in front.
struct Known {
    std::vector<u32> closed;
    std::vector<Access> open;
    u32 fronts = 0;  // a bit for each GPU
};

struct Cell {
    Access write, read;
    u32 readers = 0;  // further reads that do not know each other, in State::readers
};

struct Store {
    unsigned char* to;
    uint4 value;
    Access by;
};

// An allocation on a GPU. ``hidden`` are the results of the grid in front while nobody knows of them.
struct Part {
    unsigned char* at;
    u32 gpu, memory;
    std::vector<Cell> cells;
    std::vector<Store> under_way;
    std::vector<unsigned char> hidden;
    bool ended;  // the grid of this GPU
};

struct State {
    std::vector<Part> parts;  // of the first allocation, by GPU; of the second; ..
    std::vector<u32> epochs;  // by block
    std::vector<Known> met;  // what all threads of a block know, by block
    std::vector<Known> own;  // what else threads know
    std::vector<u32> counts;  // releases of each thread
    std::vector<std::vector<Access>> readers;
    std::unordered_map<const void*, Known> released;
    // Where memory lies, apart, as plain accesses are looked up while the rest is in use.
    const unsigned char* places[MOST_MEMORIES][MOST];
};
static State state;

static u32 me() { return (u32)(machine.current - machine.fibers.data()); }
static u32 block_of(u32 thread) { return thread / machine.launch.threads; }
static u32 gpu_of(u32 block) { return block / machine.launch.blocks; }
static u32 here_gpu() { return gpu_of(block_of(me())); }
static bool late() { return machine.launch.late_copies; }

// ---- Knowledge ------------------------------------------------------------------------------------

static bool later(const Access& a, const Access& b) {
    return a.epoch != b.epoch ? a.epoch > b.epoch : a.count > b.count;
}

static bool holds(const Known& known, const Access& access) {
    if (access.who >= FRONTS) return known.fronts >> (access.who - FRONTS) & 1;
    const u32 block = block_of(access.who);
    if (block < known.closed.size() && access.epoch < known.closed[block]) return true;
    for (const Access& point : known.open) {
        if (point.who == access.who) return !later(access, point);
    }
    return false;
}

static void know_barriers(Known& known, u32 block, u32 epoch) {
    if (known.closed.empty()) known.closed.assign(state.epochs.size(), 0);
    known.closed[block] = std::max(known.closed[block], epoch);
}

static void know_point(Known& known, const Access& point) {
    for (Access& other : known.open) {
        if (other.who != point.who) continue;
        if (later(point, other)) other = point;
        return;
    }
    known.open.push_back(point);
}

static void join(Known& to, const Known& from) {
    to.fronts |= from.fronts;
    for (u32 block = 0; block < from.closed.size(); block++) know_barriers(to, block, from.closed[block]);
    for (const Access& point : from.open) know_point(to, point);
    std::erase_if(to.open, [&](const Access& point) {
        const u32 block = block_of(point.who);
        return block < to.closed.size() && point.epoch < to.closed[block];
    });
}

// Whether the thread that runs knows of ``access``.
static bool is_known(const Access& access) {
    const u32 block = block_of(me());
    if (access.who == NOBODY || access.who == me()) return true;
    if (access.who < FRONTS && block_of(access.who) == block && access.epoch < state.epochs[block]) {
        return true;
    }
    return holds(state.met[block], access) || holds(state.own[me()], access);
}

// The stores to this GPU that the thread that runs knows of arrive.
static void settle(Part& part) {
    if (part.under_way.empty()) return;
    std::erase_if(part.under_way, [&](const Store& store) {
        if (!is_known(store.by)) return false;
        memcpy(store.to, &store.value, sizeof store.value);
        return true;
    });
}

static void settle_here() {
    for (Part& part : state.parts) {
        if (part.gpu == here_gpu()) settle(part);
    }
}

void release(const void* at) {
    const u32 thread = me(), block = block_of(thread);
    Known mine = state.met[block];
    join(mine, state.own[thread]);
    know_barriers(mine, block, state.epochs[block]);
    know_point(mine, {thread, state.epochs[block], state.counts[thread]++});
    join(state.released[at], mine);
}

void acquire(const void* at) {
    join(state.own[me()], state.released[at]);
    settle_here();
}

void meet_block(const Block& block) {
    const u32 first = (u32)(block.fibers - machine.fibers.data()), number = block_of(first);
    for (u32 thread = first; thread < first + threads(); thread++) {
        Known& own = state.own[thread];
        if (machine.fibers[thread].ended || (own.closed.empty() && own.open.empty() && !own.fronts)) {
            continue;
        }
        join(state.met[number], own);
        own = {};
    }
    state.epochs[number]++;
    settle_here();
}

void wait_for_previous_grid() {
    state.own[me()].fronts |= 1u << here_gpu();
    for (Part& part : state.parts) {
        if (part.gpu != here_gpu() || part.hidden.empty()) continue;
        memcpy(part.at, part.hidden.data(), part.hidden.size());
        part.hidden.clear();
    }
}

// ---- Accesses ---------------------------------------------------------------------------------------

static void name(char* text, size_t bytes, const Access& access) {
    if (access.who >= FRONTS) {
        snprintf(text, bytes, "the grid in front of GPU %u", access.who - FRONTS);
        return;
    }
    const u32 block = block_of(access.who), each = machine.launch.blocks;
    snprintf(text, bytes, "thread %u of block %u of GPU %u", access.who % threads(), block % each,
             gpu_of(block));
}

[[noreturn]] static void report(const char* does, const Part& part, size_t offset, const Access& other) {
    char mine[64], theirs[64];
    name(mine, sizeof mine, {me()});
    name(theirs, sizeof theirs, other);
    fail("a race between GPUs: %s %s byte %zu of GPU %u's symmetric memory %u, which %s uses: no release"
         " and acquire put them in order", mine, does, offset, part.gpu, part.memory, theirs);
}

static void add_reader(Cell& cell, const Access& reader) {
    if (cell.read.who == reader.who || is_known(cell.read)) {
        cell.read = reader;
        return;
    }
    if (!cell.readers) {
        cell.readers = (u32)state.readers.size();
        state.readers.emplace_back();
    }
    for (Access& other : state.readers[cell.readers]) {
        if (other.who != reader.who && !is_known(other)) continue;
        other = reader;
        return;
    }
    state.readers[cell.readers].push_back(reader);
}

static void use(Part& part, size_t offset, size_t bytes, bool write) {
    const u32 thread = me();
    const Access mine{thread, state.epochs[block_of(thread)], state.counts[thread]};
    const char* does = write ? "writes" : "reads";
    if (part.ended) {
        char whose[64];
        name(whose, sizeof whose, mine);
        fail("a race between GPUs: %s %s byte %zu of GPU %u's symmetric memory %u behind the end of the"
             " grid there", whose, does, offset, part.gpu, part.memory);
    }
    for (size_t at = offset / GRAIN; at < (offset + bytes + GRAIN - 1) / GRAIN; at++) {
        Cell& cell = part.cells[at];
        if (!is_known(cell.write)) report(does, part, at * GRAIN, cell.write);
        if (!write) {
            add_reader(cell, mine);
            continue;
        }
        if (!is_known(cell.read)) report(does, part, at * GRAIN, cell.read);
        for (const Access& reader : state.readers[cell.readers]) {
            if (!is_known(reader)) report(does, part, at * GRAIN, reader);
        }
        cell.write = mine;
        cell.read = {};
        if (cell.readers) state.readers[cell.readers].clear();
    }
}

void access(const void* p, size_t bytes, bool write) {
    const unsigned char* at = (const unsigned char*)p;
    for (u32 memory = 0; memory < given->memory_count; memory++) {
        const u64 size = given->memories[memory].bytes;
        if ((u64)(at - given->memories[memory].multicast) < size) {
            fail("a plain access of a multicast address");
        }
        for (u32 gpu = 0; gpu < given->count; gpu++) {
            const u64 offset = at - state.places[memory][gpu];
            if (offset >= size) continue;
            if (given->memories[memory].signals) fail("a plain access of a word for signals");
            if (bytes > size - offset) fail("an access past the end of symmetric memory %u", memory);
            return use(state.parts[memory * given->count + gpu], offset, bytes, write);
        }
    }
}

// The memory whose multicast address ``p`` is, or that holds ``p`` on some GPU, which is the result.
struct Place {
    u32 memory, gpu;
    size_t offset;
};

static Place place(const void* p, size_t bytes, bool multicast, bool signals, const char* what) {
    if (!given) fail("%s in a grid of a single GPU", what);
    if ((uintptr_t)p % bytes) fail("%s of an address that is no multiple of %zu", what, bytes);
    const u32 gpus = multicast ? 1 : count();
    for (u32 memory = 0; memory < given->memory_count; memory++) {
        const Symmetric& one = given->memories[memory];
        for (u32 gpu = 0; gpu < gpus; gpu++) {
            const unsigned char* base = multicast ? one.multicast : one.parts[gpu];
            const size_t offset = (const unsigned char*)p - base;
            if (offset >= one.bytes) continue;
            if (!one.signals != !signals) {
                fail(signals ? "%s outside of the words for signals" : "%s of a word for signals", what);
            }
            return {memory, gpu, offset};
        }
    }
    fail(multicast ? "%s of an address that is no multicast address"
                   : "%s of an address outside of symmetric memory", what);
}

static Part& part_of(const Place& at, u32 gpu) { return state.parts[at.memory * count() + gpu]; }

static void count_bytes(u32 bytes, bool other) {
    if (other) given->link_bytes += bytes;
}

static uint4 read(Part& part, size_t offset) {
    use(part, offset, sizeof(uint4), false);
    settle(part);
    uint4 found;
    __builtin_memcpy(&found, part.at + offset, sizeof found);
    return found;
}

static void write(Part& part, size_t offset, uint4 v) {
    use(part, offset, sizeof v, true);
    if (!late()) {
        __builtin_memcpy(part.at + offset, &v, sizeof v);
        return;
    }
    const u32 thread = me();
    __builtin_memset(part.at + offset, 0xff, sizeof v);
    part.under_way.push_back(
        {part.at + offset, v, {thread, state.epochs[block_of(thread)], state.counts[thread]}});
}

// ---- Runs -------------------------------------------------------------------------------------------

void start() {
    const u32 blocks = count() * machine.launch.blocks;
    state.epochs.assign(blocks, 0);
    state.met.assign(blocks, {});
    state.own.assign(machine.fibers.size(), {});
    state.counts.assign(machine.fibers.size(), 0);
    state.readers.assign(1, {});
    state.released.clear();
    state.parts.clear();
    given->link_bytes = 0;
    for (u32 memory = 0; memory < given->memory_count; memory++) {
        const Symmetric& one = given->memories[memory];
        for (u32 gpu = 0; gpu < count(); gpu++) {
            state.places[memory][gpu] = one.parts[gpu];
            state.parts.push_back({one.parts[gpu], gpu, memory, {}, {}, {}, false});
            if (one.signals) continue;
            Part& part = state.parts.back();
            part.cells.assign((one.bytes + GRAIN - 1) / GRAIN, {{FRONTS + gpu}, {}, 0});
            if (!late()) continue;
            part.hidden.assign(part.at, part.at + one.bytes);
            memset(part.at, 0xff, one.bytes);
        }
    }
}

// Memory of a GPU is used again behind its grid: all accesses to it are known to some thread there.
void end_grid(u32 gpu) {
    Known all;
    const u32 first = gpu * machine.launch.blocks, end = first + machine.launch.blocks;
    for (u32 block = first; block < end; block++) {
        join(all, state.met[block]);
        know_barriers(all, block, NOBODY);
    }
    for (u32 thread = first * threads(); thread < end * threads(); thread++) join(all, state.own[thread]);
    const auto check = [&](const Access& access, const Part& part, size_t cell) {
        if (access.who == NOBODY || access.who == FRONTS + gpu || holds(all, access)) return;
        char theirs[64];
        name(theirs, sizeof theirs, access);
        fail("a race between GPUs: the grid of GPU %u ends, whose symmetric memory %u %s uses at byte %zu:"
             " no release and acquire put them in order", gpu, part.memory, theirs, cell * GRAIN);
    };
    for (Part& part : state.parts) {
        if (part.gpu != gpu) continue;
        part.ended = true;
        for (size_t n = 0; n < part.cells.size(); n++) {
            const Cell& cell = part.cells[n];
            check(cell.write, part, n);
            check(cell.read, part, n);
            for (const Access& reader : state.readers[cell.readers]) check(reader, part, n);
        }
        for (const Store& store : part.under_way) memcpy(store.to, &store.value, sizeof store.value);
        part.under_way.clear();
        if (!part.hidden.empty()) memcpy(part.at, part.hidden.data(), part.hidden.size());
        part.hidden.clear();
    }
}

void finish() {
    for (u32 memory = 0; memory < given->memory_count && !machine.failed; memory++) {
        const Symmetric& one = given->memories[memory];
        for (u32 gpu = 0; gpu < count() * one.signals && !machine.failed; gpu++) {
            const u32* words = (const u32*)one.parts[gpu];
            const u32* found = std::find_if(words, words + one.bytes / 4, [](u32 w) { return w; });
            if (found == words + one.bytes / 4) continue;
            machine.failed = true;
            snprintf(machine.message, sizeof machine.message,
                     "nobody waits for the signal in word %zu of GPU %u", (size_t)(found - words), gpu);
        }
    }
}

void describe(const void* slot, char* text, size_t bytes) {
    *text = 0;
    for (u32 memory = 0; given && memory < given->memory_count; memory++) {
        for (u32 gpu = 0; gpu < count(); gpu++) {
            const size_t offset = (const unsigned char*)slot - given->memories[memory].parts[gpu];
            if (offset >= given->memories[memory].bytes) continue;
            snprintf(text, bytes, " (word %zu of GPU %u)", offset / 4, gpu);
        }
    }
}

}  // namespace gpus

// ---- Primitives -----------------------------------------------------------------------------------

static float widen(float v) { return v; }

template <class T>
static T rounded(float v) {
    if constexpr (std::is_same_v<T, float>) return v;
    else return narrow<T>(v);
}

template <class T>
static uint4 sum_of_gpus(const T* p) {
    const gpus::Place at = gpus::place(p, sizeof(uint4), true, false, "load_sum_of_gpus");
    constexpr int LANES = sizeof(uint4) / sizeof(T);
    float sums[LANES] = {};
    for (u32 gpu = 0; gpu < gpus::count(); gpu++) {
        const uint4 words = gpus::read(gpus::part_of(at, gpu), at.offset);
        for (int i = 0; i < LANES; i++) sums[i] += widen(((const T*)&words)[i]);
    }
    gpus::count_bytes(sizeof(uint4), gpus::count() > 1);
    uint4 found;
    for (int i = 0; i < LANES; i++) ((T*)&found)[i] = rounded<T>(sums[i]);
    return found;
}

uint4 load_sum_of_gpus(const f16* p) { return sum_of_gpus(p); }
uint4 load_sum_of_gpus(const bf16* p) { return sum_of_gpus(p); }
uint4 load_sum_of_gpus(const float* p) { return sum_of_gpus(p); }

void store_to_gpus(void* p, uint4 v) {
    const gpus::Place at = gpus::place(p, sizeof v, true, false, "store_to_gpus");
    for (u32 gpu = 0; gpu < gpus::count(); gpu++) gpus::write(gpus::part_of(at, gpu), at.offset, v);
    gpus::count_bytes(sizeof v, gpus::count() > 1);
}

uint4 load_from_gpu(const void* p) {
    const gpus::Place at = gpus::place(p, sizeof(uint4), false, false, "load_from_gpu");
    gpus::count_bytes(sizeof(uint4), at.gpu != here().gpu);
    return gpus::read(gpus::part_of(at, at.gpu), at.offset);
}

void store_to_gpu(void* p, uint4 v) {
    const gpus::Place at = gpus::place(p, sizeof v, false, false, "store_to_gpu");
    gpus::count_bytes(sizeof v, at.gpu != here().gpu);
    gpus::write(gpus::part_of(at, at.gpu), at.offset, v);
}

void put_signal(u32* slot) {
    gpus::place(slot, sizeof *slot, false, true, "put_signal");
    while (*slot) sleep(slot, "put_signal");
    gpus::release(slot);
    *slot = 1;
    wake(slot, machine.fibers.data(), (u32)machine.fibers.size());
}

void wait_signal(u32* slot) {
    gpus::place(slot, sizeof *slot, false, true, "wait_signal");
    while (!*slot) sleep(slot, "wait_signal");
    gpus::acquire(slot);
    *slot = 0;
    wake(slot, machine.fibers.data(), (u32)machine.fibers.size());
}

}  // namespace mc
