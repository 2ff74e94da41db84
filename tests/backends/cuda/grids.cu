// Kernels that may start before the grid in front of them has ended, which writes x.
#include "mc.cuh"

enum Fault { NONE, READS, WRITES, COPIES, NO_BARRIER, LETS_GO };

MC_INLINE void bring(const float* x, mc::Barrier* full) {
    mc::expect(full, 256);
    mc::copy_in(mc::arena() + 128, x, 256, full);
}

// One thread waits, which a barrier tells the others.
template <Fault FAULT>
MC_INLINE void follow(const float* x, const float* weights, float* y) {
    mc::Barrier* full = (mc::Barrier*)mc::arena();
    const int me = mc::thread();
    float v = weights[me];
    if (me == 0) {
        mc::init(full, 1);
        mc::init_fence();
        if (FAULT == COPIES) bring(x, full);
    }
    mc::block_sync();
    if (FAULT == READS) v += x[me];
    if (FAULT == WRITES) y[me] = v;
    if (FAULT == LETS_GO) mc::let_next_grid_start();
    if (me == 32) mc::wait_for_previous_grid();
    if (FAULT != NO_BARRIER) mc::block_sync();
    if (me == 32) {
        mc::let_next_grid_start();
        if (FAULT != COPIES) bring(x, full);
    }
    if (FAULT != READS) v += x[me];
    mc::wait(full, 0);
    y[me] = v + ((const float*)(mc::arena() + 128))[me];
}

#define FOLLOWS(name, fault)                                                            \
    extern "C" __global__ void __launch_bounds__(64, 1)                                 \
        name(const float* x, const float* weights, float* y) {                          \
        follow<fault>(x, weights, y);                                                   \
    }                                                                                   \
    MC_EXPORT(name)

FOLLOWS(in_order, NONE)
FOLLOWS(reads_early, READS)
FOLLOWS(writes_early, WRITES)
FOLLOWS(copies_early, COPIES)
FOLLOWS(no_barrier, NO_BARRIER)
FOLLOWS(lets_go_early, LETS_GO)
