// Kernels with one fault each, which the executor must find.
#include "mc.cuh"

// Threads read their neighbours' values without a barrier.
extern "C" __global__ void __launch_bounds__(128, 1) no_block_sync(const float* x, float* y) {
    float* s = (float*)mc::arena();
    s[mc::thread()] = x[mc::thread()];
    y[mc::thread()] = s[(mc::thread() + 33) % 128];
}
MC_EXPORT(no_block_sync)

extern "C" __global__ void __launch_bounds__(64, 1) half_a_barrier(float* y) {
    if (mc::warp() == 0) mc::group_sync(1, 64);
    y[mc::thread()] = 0.0f;
}
MC_EXPORT(half_a_barrier)

extern "C" __global__ void __launch_bounds__(32, 1) lanes_apart(float* y) {
    float v;
    if (mc::lane() < 16) {
        v = mc::warp_sum(1.0f);
    } else {
        v = mc::warp_sum(2.0f);
    }
    y[mc::lane()] = v;
}
MC_EXPORT(lanes_apart)

extern "C" __global__ void __launch_bounds__(32, 1) too_many_arrivals(float* y) {
    mc::Barrier* b = (mc::Barrier*)mc::arena();
    if (mc::thread() == 0) {
        mc::init(b, 1);
        mc::expect(b, 64);
        mc::arrive(b);
    }
    y[mc::lane()] = 0.0f;
}
MC_EXPORT(too_many_arrivals)

extern "C" __global__ void __launch_bounds__(32, 1) copy_nobody_awaits(const float* x, float* y) {
    mc::Barrier* b = (mc::Barrier*)mc::arena();
    if (mc::thread() == 0) {
        mc::init(b, 1);
        mc::expect(b, 64);
        mc::copy_in(mc::arena() + 64, x, 64, b);
    }
    y[mc::lane()] = 0.0f;
}
MC_EXPORT(copy_nobody_awaits)

extern "C" __global__ void __launch_bounds__(32, 1)
    odd_prefetch(const float* x, float* y, int bytes, int at) {
    if (mc::thread() == 0) mc::prefetch((const unsigned char*)x + at, bytes);
    y[mc::lane()] = 0.0f;
}
MC_EXPORT(odd_prefetch)

extern "C" __global__ void __launch_bounds__(32, 1)
    odd_copy(const float* x, float* y, int bytes, int at) {
    mc::Barrier* b = (mc::Barrier*)mc::arena();
    if (mc::thread() == 0) {
        mc::init(b, 1);
        mc::expect(b, bytes);
        mc::copy_in(mc::arena() + at, x, bytes, b);
        mc::wait(b, 0);
    }
    y[mc::lane()] = 0.0f;
}
MC_EXPORT(odd_copy)

// Waits for more bytes than come.
extern "C" __global__ void __launch_bounds__(32, 1) short_copy(const float* x, float* y) {
    mc::Barrier* b = (mc::Barrier*)mc::arena();
    if (mc::thread() == 0) {
        mc::init(b, 1);
        mc::expect(b, 128);
        mc::copy_in(mc::arena() + 64, x, 64, b);
        mc::wait(b, 0);
    }
    y[mc::lane()] = 0.0f;
}
MC_EXPORT(short_copy)

// Waits for either of two mbarriers, at one of which the other warp arrives: the first, the second or, for 2, none; for
// 3 the second one was not initialised.
extern "C" __global__ void __launch_bounds__(64, 1) either(float* y, int which) {
    mc::Barrier* b = (mc::Barrier*)mc::arena();
    if (mc::thread() == 0) {
        mc::init(b, 1);
        if (which < 3) mc::init(b + 1, 1);
    }
    mc::block_sync();
    if (mc::thread() == 0) mc::wait_for_either(b, 0, b + 1, 0);
    if (mc::thread() == 32 && which < 2) mc::arrive(b + which);
    y[mc::thread()] = 1.0f;
}
MC_EXPORT(either)

// The reduction of the published kernels: the next sum is added to a buffer that a copy still reads.
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(64, 1)
    reduce_in_place(const float* x, float* y) {
    mc::Barrier* arrived = (mc::Barrier*)mc::arena();
    float* sum = (float*)(mc::arena() + 64);
    float* inbox = sum + 64;
    sum[mc::thread()] = x[64 * mc::block() + mc::thread()];
    if (mc::thread() == 0) mc::init(arrived, 1);
    mc::cluster_sync();
    mc::u32 parity = 0;
    for (mc::u32 hop = 1; hop < 4; hop *= 2, parity ^= 1) {
        if (mc::thread() == 0) {
            mc::expect(arrived, 256);
            mc::push(inbox, (mc::cluster_rank() + hop) % 4, sum, 256, arrived);
        }
        mc::wait_for_peers(arrived, parity);
        sum[mc::thread()] += inbox[mc::thread()];
        mc::cluster_sync();
    }
    y[64 * mc::block() + mc::thread()] = sum[mc::thread()];
}
MC_EXPORT(reduce_in_place)

// Leaves while a peer may still read its shared memory.
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(32, 1)
    leaves_early(const float* x, float* y) {
    float* mine = (float*)mc::arena();
    mine[mc::lane()] = x[mc::lane()];
    mc::cluster_sync();
    if (mc::cluster_rank() == 0) y[mc::lane()] = mc::load_peer(mine + mc::lane(), 1);
}
MC_EXPORT(leaves_early)

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(32, 1) no_such_rank(float* y) {
    y[mc::lane()] = mc::load_peer((float*)mc::arena(), 2);
}
MC_EXPORT(no_such_rank)

extern "C" __global__ void __launch_bounds__(32, 1) deep_stack(float* y) {
    volatile float large[10000];
    for (int i = 0; i < 10000; i++) large[i] = 1.0f;
    y[mc::lane()] = large[mc::lane()];
}
MC_EXPORT(deep_stack)

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(32, 1) waits_without_arrival(float* y) {
    mc::cluster_wait();
    y[mc::lane()] = 0.0f;
}
MC_EXPORT(waits_without_arrival)

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(32, 1) arrives_twice(float* y) {
    mc::cluster_arrive_relaxed();
    mc::cluster_arrive_relaxed();
    y[mc::lane()] = 0.0f;
}
MC_EXPORT(arrives_twice)

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(32, 1) ends_before_waiting(float* y) {
    mc::cluster_arrive_relaxed();
    y[mc::lane()] = 0.0f;
}
MC_EXPORT(ends_before_waiting)

extern "C" __global__ void __launch_bounds__(32, 1) writes_behind_shared_memory(float* y) {
    float* const shared = (float*)mc::arena();
    shared[64 + mc::lane()] = 1.0f;
    y[mc::lane()] = shared[64 + mc::lane()];
}
MC_EXPORT(writes_behind_shared_memory)
