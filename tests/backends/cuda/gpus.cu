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
    if (how == 5) mc::gpu_arrive(signals[0]);
    if (how == 6) mc::load_sum_of_gpus(values + (1 << 20));
    // Plain accesses, which are watched for.
    mc::u32 seen = 0;
    if (how == 7) seen = signals[0][1];
    if (how == 8) seen = *(const mc::u64*)(parts[0] + 63);
    if (how == 9) seen = ((const mc::u32*)values)[1];
    if (seen == 1) parts[0][0] = 0;
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

// What the end of a grid must know of its memory, which is that of GPU 1 here.
enum Ending {
    OWN_STORE,     // GPU 1 alone uses it, without any meeting
    STORE_KNOWN,   // a thread that waits for the signal of who stored, and ends
    STORE_UNKNOWN,
    LOAD_UNKNOWN,
    FIRST_KNOWN,   // of two GPUs that load the same
    SECOND_KNOWN,
    STORE_LATE,    // behind the signal
    SAME_BLOCK,    // two threads of GPU 1 store at one place
    SECOND_LATE    // a store in front of the signal, and another one behind it
};

extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(64, 1)
    ends(mc::u32* const* parts, mc::u32* const* signals, int rank, int how) {
    if (how != OWN_STORE || rank == 1) mc::wait_for_previous_grid();
    if (how == SAME_BLOCK && rank == 1 && mc::block() == 0 && mc::thread() % 40 == 0) {
        mc::store_to_gpu(parts[1], make_uint4(7, 7, 7, 7));
    }
    if (mc::block() || mc::thread() || how == SAME_BLOCK) return;
    if (how == OWN_STORE) {
        if (rank == 1) {
            uint4 own = mc::load_from_gpu(parts[1]);
            own.x++;
            mc::store_to_gpu(parts[1], own);
            own = mc::load_from_gpu(parts[1]);
            mc::store_to_gpu(parts[1] + 4, own);
        }
        return;
    }
    // Others learn what the grid in front of GPU 1 did.
    if (rank == 1) {
        mc::put_signal(signals[0]);
        mc::put_signal(signals[2]);
    } else {
        mc::wait_signal(signals[rank]);
    }
    const bool stores = how == STORE_KNOWN || how == STORE_UNKNOWN || how == STORE_LATE ||
                        how == SECOND_LATE;
    if (how == SECOND_LATE && rank == 0) mc::store_to_gpu(parts[1] + 4, make_uint4(7, 7, 7, 7));
    if ((how == STORE_LATE || how == SECOND_LATE) && rank == 0) mc::put_signal(signals[1] + 1);
    if (stores && rank == 0) mc::store_to_gpu(parts[1], make_uint4(7, 7, 7, 7));
    if (!stores && rank != 1) mc::load_from_gpu(parts[1]);
    const bool tells = rank == (how == SECOND_KNOWN ? 2 : 0);
    if (how == STORE_UNKNOWN || how == LOAD_UNKNOWN) return;
    if (how != STORE_LATE && how != SECOND_LATE && rank != 1 && tells) mc::put_signal(signals[1] + 1);
    if (rank == 1) mc::wait_signal(signals[1] + 1);
}
MC_EXPORT(ends)

// What a thread waited for is known to the threads of its group, and behind a barrier to those of its block.
enum Group {
    SAME_THREADS,
    OTHER_THREADS,  // meet at the barrier of the group as well
    FEWER_THREADS   // than met there first
};

extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(64, 1)
    grouped(mc::u32* const* parts, mc::u32* const* signals, int rank, int how) {
    mc::wait_for_previous_grid();
    mc::meet_gpus(signals, rank, 3);
    if (rank == 0 && mc::block() == 0 && mc::thread() == 0) {
        mc::store_to_gpu(parts[1], make_uint4(7, 7, 7, 7));
        mc::put_signal(signals[1] + 6);
    }
    if (rank == 1 && mc::block() == 0) {
        if (how == FEWER_THREADS) mc::group_sync(1, 64);
        if (mc::thread() == 0) mc::wait_signal(signals[1] + 6);
        if (mc::thread() < 32) mc::group_sync(1, 32);
        if (how == OTHER_THREADS && mc::thread() >= 32) mc::group_sync(1, 32);
        mc::block_sync();
        if (mc::thread() == 40) mc::store_to_gpu(parts[1] + 4, mc::load_from_gpu(parts[1]));
    }
    mc::meet_gpus(signals, rank, 3);
}
MC_EXPORT(grouped)

// One thread puts signals faster than another one takes them.
extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(64, 1)
    in_turn(mc::u32* const* parts, mc::u32* const* signals, int rank, int count) {
    mc::wait_for_previous_grid();
    mc::meet_gpus(signals, rank, 3);
    mc::u32* const slot = signals[1] + 6;
    if (mc::block() || mc::thread()) return;
    for (int i = 0; i < count; i++) {
        if (rank == 0) mc::put_signal(slot);
        if (rank == 1) mc::wait_signal(slot);
    }
}
MC_EXPORT(in_turn)

// GPU 1 overwrites what two others have loaded, of which ``known`` told it; then all meet.
extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(64, 1)
    overwrites(mc::u32* const* parts, mc::u32* const* signals, int rank, int known) {
    mc::wait_for_previous_grid();
    mc::meet_gpus(signals, rank, 3);
    mc::u32* const slot = signals[1] + 6;
    if (mc::block() == 0 && mc::thread() == 0) {
        if (rank != 1) mc::load_from_gpu(parts[1]);
        if (rank == known || (rank != 1 && known == 3)) mc::put_signal(slot + rank / 2);
        if (rank == 1 && known != 2) mc::wait_signal(slot);
        if (rank == 1 && known != 0) mc::wait_signal(slot + 1);
        if (rank == 1) mc::store_to_gpu(parts[1], make_uint4(7, 7, 7, 7));
    }
    mc::meet_gpus(signals, rank, 3);
}
MC_EXPORT(overwrites)

// A plain load behind a store that a barrier of threads, or a signal from another GPU, shows; or in front of
// the wait for the grid that stored.
enum Shown { BY_BLOCK, BY_SIGNAL, BY_GROUP, BY_WARP, TOO_EARLY, BY_OTHER_GROUP };

extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(64, 1)
    loads_plainly(mc::u32* const* parts, mc::u32* const* signals, int rank, int shown) {
    mc::u32 seen = shown == TOO_EARLY ? parts[rank][0] : 0;
    mc::wait_for_previous_grid();
    const uint4 sevens = make_uint4(7, 7, 7, 7);
    if (mc::block()) return;
    if (shown == BY_SIGNAL && rank == 0 && mc::thread() == 0) {
        mc::wait_signal(signals[0]);
        mc::store_to_gpu(parts[1], sevens);
        mc::put_signal(signals[1]);
    }
    if (shown != BY_SIGNAL && shown != TOO_EARLY && rank == 1) {
        if (mc::thread() == 3) mc::store_to_gpu(parts[1], sevens);
        if (shown == BY_BLOCK) mc::block_sync();
        if (shown == BY_GROUP) mc::group_sync(1, 64);
        if (shown == BY_OTHER_GROUP) mc::group_sync(2, 64);
        if (shown == BY_WARP) mc::warp_sync();
    }
    if (rank == 1 && mc::thread() == 0) {
        if (shown == BY_SIGNAL) {
            mc::put_signal(signals[0]);
            mc::wait_signal(signals[1]);
        }
        if (shown != TOO_EARLY) seen = parts[1][0];
        mc::store_to_gpu(parts[1] + 4, make_uint4(seen, seen, seen, seen));
    }
}
MC_EXPORT(loads_plainly)

// A plain load behind a store that an mbarrier shows: in the phase in which who stored arrives, not in the one before.
extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(64, 1)
    arrives(mc::u32* const* parts, mc::u32* const* signals, int rank, int in_time) {
    mc::Barrier* const b = (mc::Barrier*)mc::arena();
    mc::wait_for_previous_grid();
    if (mc::thread() == 0) mc::init(b, 2);
    mc::block_sync();
    if (mc::block() || rank != 1) return;
    if (mc::thread() == 3) {
        if (!in_time) mc::wait(b, 0);
        mc::store_to_gpu((float*)parts[1], 7.0f);
        mc::arrive(b);
    }
    if (mc::thread() == 4 || (mc::thread() == 5 && !in_time)) mc::arrive(b);
    if (mc::thread() == 0) {
        mc::wait(b, 0);
        const mc::u32 seen = parts[1][0];
        mc::store_to_gpu(parts[1] + 4, make_uint4(seen, seen, seen, seen));
    }
}
MC_EXPORT(arrives)

// All blocks of all GPUs meet by counters, of which GPU 2 is not told with ``told`` 2; then GPU 1 has what GPU 0 gave.
extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(64, 1)
    told_by_counters(mc::u32* const* parts, mc::u32* const* counters, mc::u32* met, int rank, int told) {
    mc::wait_for_previous_grid();
    for (mc::u32 meeting = 1; meeting <= 2; meeting++) {
        mc::group_sync(1, 64);
        if (mc::thread() == 5) {
            if (mc::grid_arrive_last(met, meeting * mc::blocks())) {
                for (int gpu = 0; gpu < told; gpu++) mc::gpu_arrive(counters[gpu]);
            }
            mc::gpu_wait(counters[rank], 3 * meeting);
        }
        mc::group_sync(1, 64);
        if (meeting == 1 && rank == 0 && mc::block() == 0 && mc::thread() == 9) {
            mc::store_to_gpu((float*)parts[1], 7.0f);
        }
    }
    if (rank == 1 && mc::block() == 1 && mc::thread() == 40) {
        const mc::u32 seen = parts[1][0];
        mc::store_to_gpu(parts[1] + 4, make_uint4(seen, seen, seen, seen));
    }
}
MC_EXPORT(told_by_counters)
