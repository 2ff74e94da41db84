// Kernels with one fault each that schedules may hide, and their twins without it.
#include "mc.cuh"

// A warp hands values from lane to lane; a shuffle between does not order memory.
template <bool SYNC>
MC_INLINE void hand_on(const float* x, float* y) {
    float* s = (float*)mc::arena();
    s[mc::lane()] = x[mc::lane()];
    const float most = mc::warp_max(x[mc::lane()]);
    if (SYNC) mc::warp_sync();
    y[mc::lane()] = s[mc::lane() ^ 1] + most;
}

extern "C" __global__ void __launch_bounds__(32, 1) handed_on(const float* x, float* y) {
    hand_on<true>(x, y);
}
MC_EXPORT(handed_on)
extern "C" __global__ void __launch_bounds__(32, 1) no_warp_sync(const float* x, float* y) {
    hand_on<false>(x, y);
}
MC_EXPORT(no_warp_sync)

// Each block of two pushes what it wrote to the other.
template <bool WRITER_FENCES, bool PUSHER_FENCES, bool INIT_FENCE, bool FOR_PEERS = true>
MC_INLINE void exchange(const float* x, float* y) {
    mc::Barrier* arrived = (mc::Barrier*)mc::arena();
    float* mine = (float*)(mc::arena() + 128);
    float* theirs = mine + 64;
    if (mc::thread() == 0) {
        mc::init(arrived, 1);
        if (INIT_FENCE) mc::init_fence();
    }
    mine[mc::thread()] = x[64 * mc::block() + mc::thread()];
    if (WRITER_FENCES) mc::copy_fence();
    mc::cluster_sync();
    if (mc::thread() == 0) {
        if (PUSHER_FENCES) mc::copy_fence();
        mc::expect(arrived, 256);
        mc::push(theirs, 1 - mc::cluster_rank(), mine, 256, arrived);
    }
    if (FOR_PEERS) {
        mc::wait_for_peers(arrived, 0);
    } else {
        mc::wait(arrived, 0);
    }
    y[64 * mc::block() + mc::thread()] = theirs[mc::thread()];
    mc::cluster_sync();
}

#define EXCHANGE(name, ...)                                                             \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(64, 1)       \
        name(const float* x, float* y) {                                                \
        exchange<__VA_ARGS__>(x, y);                                                    \
    }                                                                                   \
    MC_EXPORT(name)

EXCHANGE(writers_fence, true, false, true)
EXCHANGE(pusher_fences, false, true, true)
EXCHANGE(no_copy_fence, false, false, true)
EXCHANGE(no_init_fence, true, false, false)
EXCHANGE(awaits_push_near, true, false, true, false)

// A tile is overwritten by a copy while nobody has said that it was read.
template <bool SYNC>
MC_INLINE void overwrite(const float* x, float* y) {
    mc::Barrier* full = (mc::Barrier*)mc::arena();
    float* tile = (float*)(mc::arena() + 128);
    if (mc::thread() == 0) {
        mc::init(full, 1);
        mc::init_fence();
    }
    mc::block_sync();
    float sum = 0.0f;
    for (mc::u32 n = 0; n < 2; n++) {
        if (mc::thread() == 0) {
            mc::expect(full, 256);
            mc::copy_in(tile, x + 64 * n, 256, full);
        }
        mc::wait(full, n);
        sum += tile[mc::thread()];
        if (SYNC) mc::block_sync();
    }
    y[mc::thread()] = sum;
}

extern "C" __global__ void __launch_bounds__(64, 1) overwritten(const float* x, float* y) {
    overwrite<true>(x, y);
}
MC_EXPORT(overwritten)
extern "C" __global__ void __launch_bounds__(64, 1) overwritten_early(const float* x, float* y) {
    overwrite<false>(x, y);
}
MC_EXPORT(overwritten_early)

// Two threads initialise the same mbarrier.
extern "C" __global__ void __launch_bounds__(32, 1) initialised_twice(const float* x, float* y) {
    if (mc::thread() < 2) mc::init((mc::Barrier*)mc::arena(), 1);
    mc::block_sync();
    y[mc::thread()] = x[mc::thread()];
}
MC_EXPORT(initialised_twice)

// Reads where nothing was written.
extern "C" __global__ void __launch_bounds__(32, 1) not_written(const float* x, float* y) {
    const float* s = (const float*)mc::arena();
    y[mc::thread()] = mc::thread() ? x[mc::thread()] : s[4];
}
MC_EXPORT(not_written)

extern "C" __global__ void __launch_bounds__(32, 1) past_the_end(const float* x, float* y) {
    float* s = (float*)mc::arena();
    s[96 + mc::thread() + 1] = x[mc::thread()];
    y[mc::thread()] = x[mc::thread()];
}
MC_EXPORT(past_the_end)

enum Weak { NOTHING, NEAR_WAIT, RELAXED, NOT_AWAITED, NOT_FENCED };

// Each block of two publishes what the other reads behind an mbarrier.
template <Weak WEAK>
MC_INLINE void publish(const float* x, float* y) {
    mc::Barrier* published = (mc::Barrier*)mc::arena();
    float* mine = (float*)(mc::arena() + 128);
    if (mc::thread() == 0) {
        mc::init(published, 2);
        if (WEAK != NOT_FENCED) mc::init_fence();
    }
    mc::block_sync();
    mc::cluster_arrive_relaxed();
    mine[mc::thread()] = x[64 * mc::block() + mc::thread()];
    if (WEAK != NOT_AWAITED) mc::cluster_wait();
    mc::block_sync();
    if (mc::thread() < 2) mc::arrive_at(published, mc::thread());
    if (WEAK == NEAR_WAIT) {
        mc::wait(published, 0);
    } else {
        mc::wait_for_peers(published, 0);
    }
    y[64 * mc::block() + mc::thread()] = mc::load_peer(mine + mc::thread(), 1 - mc::cluster_rank());
    if (WEAK == NOT_AWAITED) mc::cluster_wait();
    mc::cluster_arrive_relaxed();  // what was read has been read
    mc::cluster_wait();
}

// The same over the cluster's barrier.
template <Weak WEAK>
MC_INLINE void meet(const float* x, float* y) {
    float* mine = (float*)mc::arena();
    mine[mc::thread()] = x[64 * mc::block() + mc::thread()];
    if (WEAK == RELAXED) {
        mc::cluster_arrive_relaxed();
        mc::cluster_wait();
    } else {
        mc::cluster_sync();
    }
    y[64 * mc::block() + mc::thread()] = mc::load_peer(mine + mc::thread(), 1 - mc::cluster_rank());
    mc::cluster_sync();
}

// A peer's memory is overwritten behind a barrier at which its owner said relaxed that it was read.
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(64, 1)
    overwritten_by_peer(const float* x, float* y) {
    float* mine = (float*)mc::arena();
    mine[mc::thread()] = x[64 * mc::block() + mc::thread()];
    y[64 * mc::block() + mc::thread()] = mine[mc::thread()];
    mc::cluster_arrive_relaxed();
    mc::cluster_wait();
    mc::store_peer(mine + mc::thread(), 1 - mc::cluster_rank(), 0.0f);
    mc::cluster_sync();
}
MC_EXPORT(overwritten_by_peer)

#define BETWEEN_PEERS(name, how)                                                        \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(64, 1)       \
        name(const float* x, float* y) {                                                \
        how(x, y);                                                                      \
    }                                                                                   \
    MC_EXPORT(name)

BETWEEN_PEERS(published, publish<NOTHING>)
BETWEEN_PEERS(waits_near, publish<NEAR_WAIT>)
BETWEEN_PEERS(not_awaited, publish<NOT_AWAITED>)
BETWEEN_PEERS(not_fenced, publish<NOT_FENCED>)
BETWEEN_PEERS(met, meet<NOTHING>)
BETWEEN_PEERS(met_relaxed, meet<RELAXED>)
