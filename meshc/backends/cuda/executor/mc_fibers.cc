// mc_fibers.cc: switches between fibers, and the schedules that choose the next one.
#include <bit>
#include <cstdarg>
#include <cstdio>

#include "mc_gpus.h"
#include "mc_memory.h"

namespace mc {

Machine machine;

#if defined(__x86_64__)
extern "C" void mc_switch(void** from, void* to);
// Saves what a call must preserve, exchanges stacks, restores.
asm(R"(.text
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
void exchange(Fiber* from, Fiber* to) { mc_switch(&from->stack, to->stack); }
#else
void exchange(Fiber* from, Fiber* to) { swapcontext(&from->context, &to->context); }
#endif

static void resume(Fiber* to) {
    Fiber* from = machine.current;
    if (to == from) return;
    machine.counts.switches++;
    machine.current = to;
    exchange(from, to);
}

[[noreturn]] void fail(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(machine.message, sizeof machine.message, format, arguments);
    va_end(arguments);
    machine.failed = true;
    resume(&machine.host);
    __builtin_unreachable();
}

void set_ready(const Fiber& f, bool ready) {
    const u64 bit = 1ull << f.place % 64;
    u64& word = machine.ready[f.place / 64];
    word = ready ? word | bit : word & ~bit;
}

void wake(const void* what, Fiber* fibers, u32 count) {
    for (Fiber* f = fibers; f < fibers + count; f++) {
        if (f->waits_on != what && f->waits_too != what) continue;
        f->waits_on = f->waits_too = nullptr;
        set_ready(*f, true);
    }
}

// The first place of the order in ``from .. end - 1`` whose fiber can run, or ``end``; ``favoured``
// leaves out those that starve.
static size_t next_ready(size_t from, size_t end, bool favoured) {
    for (size_t at = from; at < end; at = (at / 64 + 1) * 64) {
        const u64 left_out = favoured ? machine.starved[at / 64] : 0;
        const u64 left = (machine.ready[at / 64] & ~left_out) >> at % 64;
        if (left) return std::min(end, at + std::countr_zero(left));
    }
    return end;
}

bool starved(const Fiber& f) {
    const u32 seed = machine.launch.seed;
    if (machine.launch.schedule == STARVE_WARP) {
        return f.thread / WARP == seed % (machine.launch.threads / WARP);
    }
    if (machine.launch.schedule != STARVE_BLOCK) return false;
    if (gpus::given) return f.block->gpu == seed % gpus::count();
    return f.block->rank == seed % machine.launch.cluster;
}

// The next fiber that can run, or none.
static Fiber* choose() {
    const size_t count = machine.order.size();
    const auto turn = [](size_t at) {
        machine.at = at;
        return &machine.fibers[machine.order[at]];
    };
    if (machine.launch.schedule == RANDOM) {
        for (int attempt = 0; attempt < 8; attempt++) {
            const size_t at = machine.random() % count;
            if (next_ready(at, at + 1, false) == at) return turn(at);
        }
    }
    // Behind the fiber that had its turn to the end, then from the first to it.
    const size_t behind = machine.at + 1;
    for (const bool favoured : {true, false}) {
        size_t at = next_ready(behind, count, favoured);
        if (at < count) return turn(at);
        at = next_ready(0, behind, favoured);
        if (at < behind) return turn(at);
    }
    return nullptr;
}

[[noreturn]] static void report_deadlock() {
    char text[400] = "";
    size_t length = 0, shown = 0, waiting = 0;
    for (const Fiber& f : machine.fibers) {
        if (f.ended) continue;
        waiting++;
        if (shown == 4 || length > 300) continue;
        shown++;
        char gpu[16] = "", slot[48] = "";
        if (gpus::given) snprintf(gpu, sizeof gpu, " GPU %u", f.block->gpu);
        gpus::describe(f.waits_on, slot, sizeof slot);
        length += snprintf(text + length, sizeof text - length, "%s%s block %u thread %u in %s%s",
                           shown > 1 ? "," : "", gpu, f.block->index, f.thread, f.waits_for, slot);
    }
    fail("deadlock: %zu threads wait for ever:%s", waiting, text);
}

void yield() {
    for (;;) {
        Fiber* next = choose();
        if (next) {
            resume(next);
            return;
        }
        if (!machine.alive) resume(&machine.host);
        if (machine.copies.empty()) report_deadlock();
        const Copy copy = machine.copies.front();
        machine.copies.erase(machine.copies.begin());
        finish(copy);
    }
}

void sleep(const void* on, const char* what, const void* too) {
    machine.current->waits_on = on;
    machine.current->waits_too = too;
    machine.current->waits_for = what;
    set_ready(*machine.current, false);
    yield();
}

}  // namespace mc
