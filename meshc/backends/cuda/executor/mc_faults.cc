// mc_faults.cc: global memory that a launch was not given, for the executor.
#include "mc_faults.h"

#include <signal.h>

#include <algorithm>

namespace mc {

// Whether ``bytes`` at ``p`` lie within the array.
static bool holds(const Given& array, const void* p, size_t bytes) {
    const size_t at = (const unsigned char*)p - array.at;
    return at < array.bytes && bytes <= array.bytes - at;
}

// The last array whose memory, pages around it included, has ``p``; null where none does.
static const Given* around(const void* p) {
    const Given* const all = machine.given;
    const auto before = [](const void* p, const Given& array) { return p < array.begin; };
    const Given* const behind = std::upper_bound(all, all + machine.given_count, p, before);
    return behind != all && p < behind[-1].end ? behind - 1 : nullptr;
}

// Whether ``bytes`` at ``p`` lie within an array of the memory whose ``last`` array is given.
static bool held(const Given* last, const void* p, size_t bytes) {
    for (const Given* one = last;; one--) {
        if (holds(*one, p, bytes)) return true;
        if (one == machine.given || one[-1].begin != last->begin) return false;
    }
}

bool is_given(const void* p, size_t bytes) {
    const Given* const last = around(p);
    return last && held(last, p, bytes);
}

void check_given(const void* p, size_t bytes, const char* what) {
    if (machine.given && !is_given(p, bytes)) {
        fail("a %s of %zu bytes that are not all in one array of the launch", what, bytes);
    }
}

[[noreturn]] static void report(const void* p, const char* does) {
    const Fiber& f = *machine.current;
    const Given* array = around(p);
    if (!array) fail("thread %u of block %u %s memory that the launch was not given", f.thread, f.block->index, does);
    const bool behind = p >= array->at;
    const size_t off = behind ? (const unsigned char*)p - array->at - array->bytes : array->at - (const unsigned char*)p;
    fail("thread %u of block %u %s memory %zu bytes %s argument %u, an array of %llu bytes", f.thread,
         f.block->index, does, off, behind ? "behind" : "in front of", (u32)array->argument, (unsigned long long)array->bytes);
}

void check_around(const void* p, size_t bytes, bool write) {
    const Given* const last = around(p);
    if (last && !held(last, p, bytes)) report(p, write ? "writes" : "reads");
}

// ---- Signals --------------------------------------------------------------------------------------

static const int SIGNALS[] = {SIGSEGV, SIGBUS};
static struct sigaction others[2];  // what the process did with them
static stack_t other_stack;
static unsigned char stack[65536];  // of the handler, as that of a fiber may have no room
static thread_local bool running;  // whether this thread runs a kernel

// What an access did that ended in a signal, where the system says it.
static const char* done_by(void* context) {
#if defined(__linux__) && defined(__x86_64__)
    return ((ucontext_t*)context)->uc_mcontext.gregs[REG_ERR] & 2 ? "writes" : "reads";
#else
    return "uses";
#endif
}

static void on_fault(int number, siginfo_t* info, void* context) {
    if (running && machine.current && machine.current != &machine.host) {
        report(info->si_addr, done_by(context));  // goes on with the host's stack
    }
    const struct sigaction& other = others[number != SIGNALS[0]];
    if (other.sa_flags & SA_SIGINFO) return other.sa_sigaction(number, info, context);
    if (other.sa_handler != SIG_DFL && other.sa_handler != SIG_IGN) return other.sa_handler(number);
    signal(number, SIG_DFL);  // the access is tried again
}

Faults::Faults() {
    const stack_t own = {.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof stack};
    sigaltstack(&own, &other_stack);
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    for (int n = 0; n < 2; n++) sigaction(SIGNALS[n], &action, &others[n]);
    running = true;
}

Faults::~Faults() {
    running = false;
    for (int n = 0; n < 2; n++) sigaction(SIGNALS[n], &others[n], nullptr);
    sigaltstack(&other_stack, nullptr);
}

}  // namespace mc
