// mc_gpus.cc: symmetric memory of several GPUs, signals between them, and who knows of what.
#include "mc_known.h"
#include "mc_races.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace mc {
namespace gpus {

constexpr size_t GRAIN = 2;  // bytes of a cell

struct Cell {
    Access write, read;
    u32 readers = 0;  // further reads that do not know each other, in State::readers
};

struct Store {
    unsigned char* to;
    uint4 value;
    u32 bytes;
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
    std::vector<Group> groups;  // by block
    std::vector<Known> own;  // what else threads know
    std::vector<u32> counts;  // releases of each thread
    std::vector<char> touched;  // whether a thread has used such memory since it last met those around it
    std::vector<std::vector<Access>> readers;
    std::unordered_map<const void*, Known> released;
    // Where memory lies, apart, as plain accesses are looked up while the rest is in use.
    const unsigned char* places[MOST_MEMORIES][MOST];
};
static State state;

static bool late() { return machine.launch.late_copies; }

// ---- Knowledge ------------------------------------------------------------------------------------

// What thread ``who`` does now.
static Access now(u32 who) {
    const u32 block = block_of(who);
    const u32 group = in_group[who] ? state.groups[block].epoch : 0;
    return {who, state.epochs[block], state.counts[who], group};
}

// Whether the thread that runs knows of ``access``.
static bool is_known(const Access& access) {
    const u32 block = block_of(me());
    if (access.who == NOBODY || access.who == me()) return true;
    if (access.who < FRONTS && block_of(access.who) == block && access.epoch < state.epochs[block]) {
        return true;
    }
    if (holds(state.met[block], access) || holds(state.own[me()], access)) return true;
    return in_group[me()] && holds(state.groups[block].met, access);
}

// The stores to this GPU that the thread that runs knows of arrive.
static void settle(Part& part) {
    if (part.under_way.empty()) return;
    std::erase_if(part.under_way, [&](const Store& store) {
        if (!is_known(store.by)) return false;
        memcpy(store.to, &store.value, store.bytes);
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
    if (in_group[thread]) join(mine, state.groups[block].met);
    know_barriers(mine.closed, block, state.epochs[block]);
    if (state.touched[thread]) know_point(mine, now(thread));
    state.counts[thread]++;
    join(state.released[at], mine);
}

void acquire(const void* at) {
    const auto found = state.released.find(at);
    const u32 block = block_of(me());
    if (found == state.released.end() || within(found->second, state.met[block])) return;
    if (in_group[me()] && within(found->second, state.groups[block].met)) return;
    join(state.own[me()], found->second);
    settle_here();
}

void arrive_in_warp(const void* at, bool first) {
    if (first) state.released.erase(at);
    if (state.touched[me()] || !knows_nothing(state.own[me()])) release(at);
}

void meet_block(const Block& block) {
    const u32 first = (u32)(block.fibers - machine.fibers.data()), number = block_of(first);
    for (u32 thread = first; thread < first + threads(); thread++) {
        Known& own = state.own[thread];
        state.touched[thread] = false;
        if (machine.fibers[thread].ended || knows_nothing(own)) continue;
        join(state.met[number], own);
        own = {};
    }
    join(state.met[number], state.groups[number].met);
    state.epochs[number]++;
    settle_here();
}

void arrive_at_group() {
    Group& group = state.groups[block_of(me())];
    if (group.epoch && !in_group[me()]) fail("a group barrier of changing threads, which is not modelled");
    group.arrived.push_back(me());
}

void meet_group() {
    const u32 number = block_of(me());
    Group& group = state.groups[number];
    if (!group.epoch) {
        group.members = group.arrived;
        for (const u32 member : group.members) in_group[member] = true;
    }
    if (group.arrived.size() != group.members.size()) fail("a group barrier of changing threads, which is not modelled");
    group.arrived.clear();
    know_barriers(group.met.grouped, number, ++group.epoch);
    for (const u32 member : group.members) {
        Known& own = state.own[member];
        state.touched[member] = false;
        if (knows_nothing(own)) continue;
        join(group.met, own);
        own = {};
    }
    join(group.met, {});
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
    const Access mine = now(me());
    state.touched[mine.who] = true;
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

static const char* const A_WORD[] = {"a value", "a word for signals", "a counter of arrivals", "a word with a tag"};
static const char* const WORDS[] = {"values", "words for signals", "counters of arrivals", "words with tags"};

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
            if (given->memories[memory].held != Held::VALUES) fail("a plain access of %s", A_WORD[(u64)given->memories[memory].held]);
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

static Place place(const void* p, size_t bytes, bool multicast, Held held, const char* what) {
    if (!given) fail("%s in a grid of a single GPU", what);
    if ((uintptr_t)p % bytes) fail("%s of an address that is no multiple of %zu", what, bytes);
    const u32 gpus = multicast ? 1 : count();
    for (u32 memory = 0; memory < given->memory_count; memory++) {
        const Symmetric& one = given->memories[memory];
        for (u32 gpu = 0; gpu < gpus; gpu++) {
            const unsigned char* base = multicast ? one.multicast : one.parts[gpu];
            const size_t offset = (const unsigned char*)p - base;
            if (offset >= one.bytes) continue;
            if (one.held == held) return {memory, gpu, offset};
            if (held == Held::VALUES) fail("%s of %s", what, A_WORD[(u64)one.held]);
            fail("%s outside of the %s", what, WORDS[(u64)held]);
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

static void write(Part& part, size_t offset, uint4 v, u32 bytes = sizeof(uint4)) {
    use(part, offset, bytes, true);
    if (!late()) {
        memcpy(part.at + offset, &v, bytes);
        return;
    }
    memset(part.at + offset, 0xff, bytes);
    part.under_way.push_back({part.at + offset, v, bytes, now(me())});
}

// ---- Runs -------------------------------------------------------------------------------------------

void start() {
    const u32 blocks = count() * machine.launch.blocks;
    state.epochs.assign(blocks, 0);
    state.met.assign(blocks, {});
    state.groups.assign(blocks, {});
    in_group.assign(machine.fibers.size(), false);
    state.own.assign(machine.fibers.size(), {});
    state.counts.assign(machine.fibers.size(), 0);
    state.touched.assign(machine.fibers.size(), false);
    state.readers.assign(1, {});
    state.released.clear();
    forget_words();
    state.parts.clear();
    given->link_bytes = 0;
    for (u32 memory = 0; memory < given->memory_count; memory++) {
        const Symmetric& one = given->memories[memory];
        for (u32 gpu = 0; gpu < count(); gpu++) {
            state.places[memory][gpu] = one.parts[gpu];
            state.parts.push_back({one.parts[gpu], gpu, memory, {}, {}, {}, false});
            if (one.held != Held::VALUES) continue;
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
        join(all, state.groups[block].met);
        know_barriers(all.closed, block, NOBODY);
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
        for (const Store& store : part.under_way) memcpy(store.to, &store.value, store.bytes);
        part.under_way.clear();
        if (!part.hidden.empty()) memcpy(part.at, part.hidden.data(), part.hidden.size());
        part.hidden.clear();
    }
}

void finish() {
    words_come();
    for (u32 memory = 0; memory < given->memory_count && !machine.failed; memory++) {
        const Symmetric& one = given->memories[memory];
        for (u32 gpu = 0; gpu < count() * (one.held == Held::SIGNALS) && !machine.failed; gpu++) {
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
    const gpus::Place at = gpus::place(p, sizeof(uint4), true, Held::VALUES, "load_sum_of_gpus");
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
    const gpus::Place at = gpus::place(p, sizeof v, true, Held::VALUES, "store_to_gpus");
    for (u32 gpu = 0; gpu < gpus::count(); gpu++) gpus::write(gpus::part_of(at, gpu), at.offset, v);
    gpus::count_bytes(sizeof v, gpus::count() > 1);
}

void store_to_gpus(float* p, float v) {
    const gpus::Place at = gpus::place(p, sizeof v, true, Held::VALUES, "store_to_gpus");
    for (u32 gpu = 0; gpu < gpus::count(); gpu++) {
        gpus::write(gpus::part_of(at, gpu), at.offset, {bits_of(v)}, sizeof v);
    }
    gpus::count_bytes(sizeof v, gpus::count() > 1);
}

uint4 load_from_gpu(const void* p) {
    const gpus::Place at = gpus::place(p, sizeof(uint4), false, Held::VALUES, "load_from_gpu");
    gpus::count_bytes(sizeof(uint4), at.gpu != here().gpu);
    return gpus::read(gpus::part_of(at, at.gpu), at.offset);
}

void store_to_gpu(void* p, uint4 v) {
    const gpus::Place at = gpus::place(p, sizeof v, false, Held::VALUES, "store_to_gpu");
    gpus::count_bytes(sizeof v, at.gpu != here().gpu);
    gpus::write(gpus::part_of(at, at.gpu), at.offset, v);
}

void store_to_gpu(float* p, float v) {
    const gpus::Place at = gpus::place(p, sizeof v, false, Held::VALUES, "store_to_gpu");
    gpus::count_bytes(sizeof v, at.gpu != here().gpu);
    gpus::write(gpus::part_of(at, at.gpu), at.offset, {bits_of(v)}, sizeof v);
}

void gpu_arrive(u32* counter) {
    gpus::place(counter, sizeof *counter, false, Held::COUNTERS, "gpu_arrive");
    MC_RACE(release_by(counter));
    gpus::release(counter);
    ++*counter;
    wake(counter, machine.fibers.data(), (u32)machine.fibers.size());
}

void gpu_wait(const u32* counter, u32 target) {
    gpus::place(counter, sizeof *counter, false, Held::COUNTERS, "gpu_wait");
    while ((int32_t)(*counter - target) < 0) sleep(counter, "gpu_wait");
    MC_RACE(acquire_by(counter));
    gpus::acquire(counter);
}

void put_signal(u32* slot) {
    gpus::place(slot, sizeof *slot, false, Held::SIGNALS, "put_signal");
    while (*slot) sleep(slot, "put_signal");
    MC_RACE(release_by(slot));
    gpus::release(slot);
    *slot = 1;
    wake(slot, machine.fibers.data(), (u32)machine.fibers.size());
}

void wait_signal(u32* slot) {
    gpus::place(slot, sizeof *slot, false, Held::SIGNALS, "wait_signal");
    while (!*slot) sleep(slot, "wait_signal");
    MC_RACE(acquire_by(slot));
    gpus::acquire(slot);
    *slot = 0;
    wake(slot, machine.fibers.data(), (u32)machine.fibers.size());
}

}  // namespace mc
