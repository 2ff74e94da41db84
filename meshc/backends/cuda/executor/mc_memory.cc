// mc_memory.cc: copies that happen early or late, and prefetches.
#include <cstring>

#include "mc_faults.h"
#include "mc_gpus.h"
#include "mc_memory.h"
#include "mc_races.h"

namespace mc {

// ---- Copies -------------------------------------------------------------------------------------

void finish(const Copy& copy) {
    memcpy(copy.to, copy.from, copy.bytes);
    copy.barrier->bytes -= copy.bytes;
    check_phase(copy.barrier);
}

void finish_copies_of(const Barrier* b) {
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

static void issue(const Copy& copy) {
    if (((uintptr_t)copy.to | (uintptr_t)copy.from | copy.bytes) % 16 || !copy.bytes) {
        fail("a copy of %u bytes whose size or addresses are no multiples of 16", copy.bytes);
    }
    MC_RACE(copy(copy));
    if (!machine.launch.late_copies) return finish(copy);
    memset(copy.to, 0xff, copy.bytes);
    machine.copies.push_back(copy);
}

void copy_in(void* to, const void* from, u32 bytes, Barrier* b) {
    if (!in_arena(to, bytes)) fail("a copy of %u bytes past the end of shared memory", bytes);
    check_given(from, bytes, "copy");
    machine.counts.copied_bytes += bytes;
    issue({to, from, bytes, b, false});
}

void push(void* to, u32 rank, const void* from, u32 bytes, Barrier* b) {
    if (!in_arena(to, bytes) || !in_arena(from, bytes)) {
        fail("a push of %u bytes past the end of shared memory", bytes);
    }
    if (rank != cluster_rank()) machine.counts.dsmem_bytes += bytes;
    machine.counts.copied_bytes += bytes;
    issue({at_peer((unsigned char*)to, rank), from, bytes, at_peer(b, rank), false});
}

void copy_to_all(void* to, u32 count, const void* from, u32 bytes, Barrier* b) {
    if (!in_arena(to, bytes)) fail("a copy of %u bytes past the end of shared memory", bytes);
    check_given(from, bytes, "copy");
    machine.counts.copied_bytes += bytes;
    for (u32 rank = 0; rank < count; rank++) {
        issue({at_peer((unsigned char*)to, rank), from, bytes, at_peer(b, rank), true});
    }
}

void copy_fence() { MC_RACE(copy_fence()); }

void global_copy_fence() { MC_RACE(global_copy_fence()); }

void prefetch(const void* from, u32 bytes) {
    if (((uintptr_t)from | bytes) % 16 || !bytes) {
        fail("a prefetch of %u bytes whose size or address is no multiple of 16", bytes);
    }
    check_given(from, bytes, "prefetch");
    machine.counts.prefetched_bytes += bytes;
}

// ---- Grids that follow each other ---------------------------------------------------------------

void wait_for_previous_grid() {
    machine.current->behind = true;
    MC_RACE(wait_for_previous_grid());
    if (gpus::given) gpus::wait_for_previous_grid();
}

void let_next_grid_start() {
    if (!machine.current->behind) fail("the next grid may start before the one in front has ended");
    machine.counts.early_blocks += !here().early;
    here().early = true;
}

// ---- Words ------------------------------------------------------------------------------------------

static u32 waiting;  // how many wait for words, at its address

static void check_words(const void* p, size_t bytes, bool write) {
    if ((uintptr_t)p % bytes) fail("words at an address that is no multiple of %zu", bytes);
    MC_RACE(watch(p, bytes, write));
    (void)write;
}

bool tell_of_words() {
    if (!waiting) return false;
    waiting = 0;
    wake(&waiting, machine.fibers.data(), (u32)machine.fibers.size());
    return true;
}

void store_word(u32* p, u32 v) {
    check_words(p, sizeof v, true);
    *p = v;
    tell_of_words();
}

void store_words(u32* p, const u32 (&v)[4]) {
    check_words(p, sizeof v, true);
    memcpy(p, v, sizeof v);
    tell_of_words();
}

u32 load_word(const u32* p) {
    check_words(p, sizeof *p, false);
    return *p;
}

void load_words(const u32* p, u32 (&v)[4]) {
    check_words(p, sizeof v, false);
    memcpy(v, p, sizeof v);
}

void wait_for_words(u32&) {
    if (gpus::given && gpus::words_come()) return;
    waiting++;
    sleep(&waiting, "wait_for_words");
}

}  // namespace mc
