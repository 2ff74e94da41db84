// Blocks of a grid that copy what others of it wrote to global memory, with fences and without.
#include "mc.cuh"

enum Fence { BEHIND_WRITES = 1, BEFORE_WRITES = 2, BEHIND_WAIT = 4, BEFORE_WAIT = 8, OF_SHARED = 16, OF_ANOTHER = 32 };

// Each of two blocks copies what the other one has left in ``between``. met: 0.
template <int FENCES>
MC_INLINE void hand_over(const float* x, float* y, float* between, mc::u32* met) {
    mc::Barrier* const came = (mc::Barrier*)mc::arena();
    float* const mine = (float*)(mc::arena() + 128);
    const mc::u32 me = mc::thread(), from = 1 - mc::block();
    if (me == 0) mc::init(came, 1), mc::init_fence();
    if (FENCES & BEFORE_WRITES) mc::global_copy_fence();
    between[64 * mc::block() + me] = x[64 * mc::block() + me];
    if (FENCES & BEHIND_WRITES) mc::global_copy_fence();
    mc::block_sync();
    if (me == 0) {
        if (FENCES & BEFORE_WAIT) mc::global_copy_fence();
        mc::grid_arrive(met), mc::grid_wait(met, mc::blocks());
        if (FENCES & BEHIND_WAIT) mc::global_copy_fence();
        if (FENCES & OF_SHARED) mc::copy_fence();
    }
    mc::block_sync();
    if (me == 32 && FENCES & OF_ANOTHER) mc::global_copy_fence();
    if (FENCES & OF_ANOTHER) mc::block_sync();
    if (me == 0) {
        mc::expect(came, 256);
        mc::copy_in(mine, between + 64 * from, 256, came);
    }
    mc::wait(came, 0);
    y[64 * mc::block() + me] = mine[me];
}

#define HAND_OVER(name, FENCES)                                                               \
    extern "C" __global__ void __launch_bounds__(64, 1)                                       \
        name(const float* x, float* y, float* between, mc::u32* met) {                        \
        hand_over<FENCES>(x, y, between, met);                                                \
    }                                                                                         \
    MC_EXPORT(name)

HAND_OVER(both_fence, BEHIND_WRITES | BEHIND_WAIT)
HAND_OVER(one_fences_for_writers, BEFORE_WAIT | BEHIND_WAIT)
HAND_OVER(another_fences, BEHIND_WRITES | OF_ANOTHER)
HAND_OVER(nobody_fences, 0)
HAND_OVER(writers_fence_alone, BEHIND_WRITES)
HAND_OVER(copiers_fence_alone, BEHIND_WAIT)
HAND_OVER(fenced_too_early, BEFORE_WRITES | BEHIND_WAIT)
HAND_OVER(copiers_fence_too_early, BEHIND_WRITES | BEFORE_WAIT)
HAND_OVER(fence_of_shared_memory, BEHIND_WRITES | OF_SHARED)
