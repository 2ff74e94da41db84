// mc_launch.cc: grids of the executor, from the first block to the last.
#include "mc_launch.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "mc_barriers.h"
#include "mc_faults.h"
#include "mc_products.h"
#include "mc_races.h"

namespace mc {

// The last thread of ``block`` has ended, perhaps the last of its GPU.
static void end_grid_of(const Block& block) {
    for (const Block& other : machine.blocks) {
        if (other.gpu == block.gpu && other.alive) return;
    }
    gpus::end_grid(block.gpu);
}

static void run_fiber() {
    Fiber* f = machine.current;
    machine.kernel((const char*)machine.arguments + f->block->gpu * machine.argument_bytes);
    Block* b = f->block;
    if (f->arrived) fail("a thread ends that has arrived at the barrier of its cluster and not waited");
    end_products(b->warps[f->thread / WARP]);
    f->ended = true;
    set_ready(*f, false);
    machine.alive--;
    b->alive--;
    if (!b->alive) {
        end_products(*b);
        MC_RACE(end_block(f - machine.fibers.data() - f->thread));
        memset(b->shared, 0xff, machine.launch.shared_bytes);
    }
    if (gpus::given && !b->alive) end_grid_of(*b);
    // Threads that have ended are no longer waited for.
    Rendezvous& all = b->cluster->all;
    u32 alive = 0;
    for (const Block* other : b->cluster->blocks) alive += other->alive;
    if (all.count && all.count == alive) end_meeting(*b->cluster);
    yield();
    __builtin_unreachable();
}

static void prepare(Fiber& f, unsigned char* stack) {
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

static void check_stacks(const unsigned char* stacks) {
    for (size_t n = 0; n < machine.fibers.size(); n++) {
        if (memcmp(stacks + n * STACK_BYTES, &STACK_END, sizeof STACK_END)) {
            snprintf(machine.message, sizeof machine.message, "a thread's stack is too deep");
            machine.failed = true;
            return;
        }
    }
}

// What lies between the shared memory of a block and that of the next one is as it was.
static void check_shared() {
    const size_t own = machine.launch.shared_bytes, apart = machine.shared_bytes - own;
    for (const Block& b : machine.blocks) {
        const unsigned char* behind = b.shared + own;
        if (behind[0] == 0xff && !memcmp(behind, behind + 1, apart - 1)) continue;
        snprintf(machine.message, sizeof machine.message,
                 "block %u wrote behind its %zu bytes of shared memory", b.index, own);
        machine.failed = true;
        return;
    }
}

// Run the blocks from ``first`` on that are alive together.
static void run_batch(u32 first, u32 count, unsigned char* stacks, unsigned char* shared) {
    const Launch& l = machine.launch;
    std::vector<Block>& blocks = machine.blocks;
    blocks.assign(count, {});
    machine.shared = shared;
    std::vector<Cluster> clusters(count / l.cluster);
    for (u32 n = 0; n < count; n++) {
        Block& b = blocks[n];
        b.index = (first + n) % l.blocks;
        b.gpu = (first + n) / l.blocks;
        b.rank = n % l.cluster;
        b.alive = l.threads;
        b.early = false;
        b.shared = shared + n * machine.shared_bytes;
        b.fibers = &machine.fibers[n * l.threads];
        memset(b.shared, 0xff, machine.shared_bytes);
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
        f.arrived = false;
        f.waits_on = f.waits_too = nullptr;
        f.waits_for = "no barrier";
        prepare(f, stacks + n * STACK_BYTES);
        machine.order.push_back(n);
    }
    for (u32 n = (u32)machine.order.size(); n--;) {
        if (l.schedule == REVERSE) machine.order[n] = (u32)machine.order.size() - 1 - n;
        if (l.schedule == SHUFFLED) std::swap(machine.order[n], machine.order[machine.random() % (n + 1)]);
    }
    machine.alive = machine.order.size();
    machine.ready.assign(machine.alive / 64 + 1, 0);
    machine.starved.assign(machine.alive / 64 + 1, 0);
    for (u32 place = 0; place < machine.alive; place++) {
        Fiber& f = machine.fibers[machine.order[place]];
        f.place = place;
        set_ready(f, true);
        machine.starved[place / 64] |= (u64)starved(f) << place % 64;
    }
    MC_RACE(start(shared, count * machine.shared_bytes));
    if (gpus::given) gpus::start();
    machine.at = 0;
    machine.current = &machine.host;
    Fiber* start = &machine.fibers[machine.order[0]];
    machine.current = start;
    exchange(&machine.host, start);
    if (machine.failed) return;
    check_stacks(stacks);
    if (!machine.failed) check_shared();
    if (!machine.failed && !machine.copies.empty()) {
        snprintf(machine.message, sizeof machine.message,
                 "the kernel ended with %zu copies under way", machine.copies.size());
        machine.failed = true;
    }
    if (gpus::given) gpus::finish();
}

// Memory for the shared memory and the stacks of a launch: the host's, which keeps it from launch to
// launch so that it need not be cleared for each, or else pages that are given back at the end.
struct Pages {
    unsigned char* at;
    size_t bytes;
};
static Pages given_pages;

struct Memory {
    unsigned char* at;  // null where there was not enough
    size_t owned;
    explicit Memory(size_t bytes) : at(given_pages.at), owned(given_pages.bytes < bytes ? bytes : 0) {
        if (!owned) return;
        void* found = mmap(nullptr, owned, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        at = found == MAP_FAILED ? nullptr : (unsigned char*)found;
    }
    ~Memory() {
        if (owned && at) munmap(at, owned);
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
};

// How many blocks are alive at once.
static u32 together(const Launch& l) {
    return gpus::given || l.whole_grid ? l.blocks * gpus::count() : l.cluster;
}

// Shared memory of a block, rounded up to pages.
static size_t shared_bytes(const Launch& l) { return (l.shared_bytes + 8191) / 4096 * 4096; }

// One stack's room lies below the first, so that a stack that is too deep does not fault.
static size_t stack_bytes(const Launch& l) {
    return ((size_t)together(l) * l.threads + 1) * STACK_BYTES;
}

static bool refuse(const char* message) {
    snprintf(machine.message, sizeof machine.message, "%s", message);
    machine.failed = true;
    return false;
}

static bool check(const Launch& l) {
    if (!l.threads || l.threads % WARP || l.threads > 1024) {
        return refuse("a block has 32 to 1024 threads, a multiple of 32");
    }
    if (!l.cluster || l.cluster > 16 || !l.blocks || l.blocks % l.cluster) {
        return refuse("a grid is made of whole clusters of 1 to 16 blocks");
    }
    if (gpus::given && l.cluster > 1) return refuse("clusters in a grid of several GPUs are not modelled");
    if (gpus::count() < 1 || gpus::count() > gpus::MOST) return refuse("a grid runs on 1 to 16 GPUs");
    if (gpus::given && gpus::given->memory_count > gpus::MOST_MEMORIES) {
        return refuse("more allocations of symmetric memory than the executor knows");
    }
    if (l.shared_bytes > 232448) return refuse("a block has at most 232448 bytes of shared memory");
    return true;
}

// The bytes that a launch takes of the host's memory; 0 for one that is refused.
extern "C" __attribute__((visibility("default"))) size_t mc_memory_bytes(const Launch* l) {
    return check(*l) ? together(*l) * shared_bytes(*l) + stack_bytes(*l) : 0;
}

int run(const Launch& launch, void (*kernel)(const void*), const void* arguments,
        size_t argument_bytes, Counts* counts, char* message, size_t message_bytes) {
    machine.launch = launch;
    machine.counts = {};
    machine.failed = false;
    machine.message[0] = 0;
    machine.kernel = kernel;
    machine.arguments = arguments;
    machine.argument_bytes = argument_bytes;
    machine.copies.clear();
    machine.random.state = launch.seed;
    machine.shared_bytes = shared_bytes(launch);
    if (check(launch)) {
        const u32 all = launch.blocks * gpus::count();
        const u32 alive = together(launch);
        const Memory memory(mc_memory_bytes(&launch));
        unsigned char* const stacks = memory.at + alive * shared_bytes(launch) + STACK_BYTES;
        machine.fibers.assign((size_t)alive * launch.threads, Fiber{});
        if (!memory.at) refuse("not enough memory for the threads of a kernel");
        const Faults faults;
        for (u32 first = 0; first < all && !machine.failed; first += alive) {
            run_batch(first, alive, stacks, memory.at);
        }
        MC_RACE(stop());
    }
    given_pages = {};
    if (counts) *counts = machine.counts;
    if (message && message_bytes) snprintf(message, message_bytes, "%s", machine.message);
    return machine.failed ? 1 : 0;
}

}  // namespace mc

// The arrays of the next launches, which outlive them; null where the host does not say.
extern "C" __attribute__((visibility("default"))) void mc_give_arrays(const mc::Given* arrays,
                                                                      mc::u32 count) {
    mc::machine.given = arrays;
    mc::machine.given_count = count;
}

// The GPUs of the next launches, and their memory; null for a single one.
extern "C" __attribute__((visibility("default"))) void mc_give_gpus(mc::Gpus* gpus) {
    mc::gpus::given = gpus;
}

// Memory for the next launch, if it is enough.
extern "C" __attribute__((visibility("default"))) void mc_give_memory(unsigned char* at,
                                                                      size_t bytes) {
    mc::given_pages = {at, bytes};
}
