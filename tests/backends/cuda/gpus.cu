// Kernels of several GPUs with one fault each that schedules may hide, and a twin without it.
#include "mc.cuh"

enum Fault {
    NONE, NO_FRONT, NO_START, NO_END, OTHERS_READ, OTHERS_WROTE, ONE_PUTS, WRONG_SLOT, PUT_TWICE, SAME_ROW
};

// Each GPU adds up its row of what all have, and gives the sum to all.
template <Fault F>
MC_INLINE void exchange(const mc::bf16* values, mc::bf16* sums, mc::u32* const* signals, int rank,
                        int gpus) {
    const mc::u32 me = mc::thread();
    if (F != NO_FRONT) mc::wait_for_previous_grid();
    const auto meet = [&](bool before, bool behind) {
        if (before) mc::block_sync();
        if (me < (mc::u32)gpus) {
            const int slot = F == WRONG_SLOT ? 0 : rank;
            if (F != ONE_PUTS || rank) mc::put_signal(signals[me] + mc::block() * gpus + slot);
            mc::wait_signal(signals[rank] + mc::block() * gpus + me);
        }
        if (behind) mc::block_sync();
    };
    if (F != NO_START) meet(true, F != OTHERS_READ);
    const int row = F == SAME_ROW ? 0 : rank;
    const int at = (row * mc::blocks() + mc::block()) * 8 * mc::threads() + 8 * me;
    mc::store_to_gpus(sums + at, mc::load_sum_of_gpus(values + at));
    if (F != NO_END) meet(F != OTHERS_WROTE, true);
    if (F == PUT_TWICE && me == 0) mc::put_signal(signals[rank] + mc::block() * gpus);
}

#define EXCHANGE(name, fault)                                                                  \
    extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(64, 1)              \
        name(const mc::bf16* values, mc::bf16* sums, mc::u32* const* signals, int rank, int gpus) { \
        exchange<fault>(values, sums, signals, rank, gpus);                                    \
    }                                                                                          \
    MC_EXPORT(name)

EXCHANGE(right, NONE)
EXCHANGE(no_front, NO_FRONT)
EXCHANGE(no_start, NO_START)
EXCHANGE(no_end, NO_END)
EXCHANGE(others_read, OTHERS_READ)
EXCHANGE(others_wrote, OTHERS_WROTE)
EXCHANGE(one_puts, ONE_PUTS)
EXCHANGE(wrong_slot, WRONG_SLOT)
EXCHANGE(put_twice, PUT_TWICE)
EXCHANGE(same_row, SAME_ROW)

// GPU 0 hands values to GPU 1, whose block 0 hands what it knows to block 1, and that to GPU 2: an order
// through others, without a signal between the first and the last.
extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(64, 1)
    handed_on(mc::u32* const* parts, mc::u32* const* signals, mc::u32* counter, int rank, int gpus,
              int in_order) {
    mc::wait_for_previous_grid();
    mc::meet_gpus(signals, rank, gpus);
    mc::u32* const words = parts[2] + 4 * mc::thread();
    const mc::u32 last = 4 * gpus;
    if (rank == 0 && mc::block() == 0) {
        mc::store_to_gpu(words, make_uint4(mc::thread(), 1, 2, 3));
        mc::block_sync();
        if (mc::thread() == 5) mc::put_signal(signals[1] + last);
    }
    if (rank == 1) {
        if (mc::block() == 0 && mc::thread() == 7) mc::wait_signal(signals[1] + last);
        mc::grid_sync(counter, 2);
        if (mc::block() == 1 && mc::thread() == 9) mc::put_signal(signals[2] + last);
    }
    if (rank == 2 && mc::block() == 1) {
        if (in_order && mc::thread() == 3) mc::wait_signal(signals[2] + last);
        mc::block_sync();
        uint4 found = mc::load_from_gpu(words);
        found.y += 10;
        mc::store_to_gpu(parts[2] + 4 * (64 + mc::thread()), found);
        if (!in_order && mc::thread() == 3) mc::wait_signal(signals[2] + last);
    }
    mc::meet_gpus(signals, rank, gpus);
}
MC_EXPORT(handed_on)

// Accesses that are none of symmetric memory's.
extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(64, 1)
    misused(const mc::bf16* values, mc::u32* const* parts, mc::u32* const* signals, int how) {
    mc::wait_for_previous_grid();
    if (mc::thread()) return;
    if (how == 0) mc::load_sum_of_gpus((const mc::bf16*)parts[0]);
    if (how == 1) mc::store_to_gpus((void*)(values + 4), make_uint4(0, 0, 0, 0));
    if (how == 2) mc::load_from_gpu(values);
    if (how == 3) mc::store_to_gpu(signals[0], make_uint4(0, 0, 0, 0));
    if (how == 4) mc::put_signal(parts[0]);
    if (how == 5) mc::init((mc::Barrier*)mc::arena(), 1);
    if (how == 6) mc::load_sum_of_gpus(values + (1 << 20));
}
MC_EXPORT(misused)

// Reads what the other GPU stores to this one's memory, but not behind the meeting that shows it.
extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(64, 1)
    peeks(float* all, float* const* parts, float* y, mc::u32* const* signals, int rank, int gpus) {
    mc::wait_for_previous_grid();
    mc::meet_gpus(signals, rank, gpus);
    if (mc::block() == 0) {
        mc::store_to_gpus(all + 4 * (rank * mc::threads() + mc::thread()), make_uint4(1, 2, 3, 4));
        y[mc::thread()] = parts[rank][4 * ((1 - rank) * mc::threads() + mc::thread())];
    }
    mc::meet_gpus(signals, rank, gpus);
}
MC_EXPORT(peeks)
