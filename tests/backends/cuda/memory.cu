// Kernels that read or write wherever they are told to.
#include "mc.cuh"

extern "C" __global__ void __launch_bounds__(32, 1) reads(const float* x, float* y, int at) {
    y[mc::lane()] = x[(int)mc::lane() + at];
}
MC_EXPORT(reads)

extern "C" __global__ void __launch_bounds__(32, 1) writes(const float* x, float* y, int at) {
    y[(int)mc::lane() + at] = x[mc::lane()];
}
MC_EXPORT(writes)

extern "C" __global__ void __launch_bounds__(32, 1) copies(const float* x, float* y, int at) {
    mc::Barrier* b = (mc::Barrier*)mc::arena();
    if (mc::thread() == 0) {
        mc::init(b, 1);
        mc::init_fence();
        mc::expect(b, 128);
        mc::copy_in(mc::arena() + 64, x + at, 128, b);
    }
    mc::warp_sync();
    mc::wait(b, 0);
    y[mc::lane()] = ((const float*)(mc::arena() + 64))[mc::lane()];
}
MC_EXPORT(copies)
