// Memory of several GPUs on the device; part of mc.cuh.
//
// *Symmetric memory* has the same offsets on every GPU. A multicast address stands for all of them (NVLS):
// the switch adds what they have, or stores to each. Accesses are relaxed; what orders them are signals.
#pragma once

namespace mc {

#define MC_LOAD_SUM(pair)                                                                \
    uint4 v;                                                                             \
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4." pair           \
                 " {%0, %1, %2, %3}, [%4];"                                              \
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)                            \
                 : "l"(p)                                                                \
                 : "memory");                                                            \
    return v;

// Sum over all GPUs of eight values at a multicast address, in f32 and rounded once.
MC_INLINE uint4 load_sum_of_gpus(const f16* p) { MC_LOAD_SUM("f16x2") }
MC_INLINE uint4 load_sum_of_gpus(const bf16* p) { MC_LOAD_SUM("bf16x2") }

#undef MC_LOAD_SUM

// The same of four values of f32.
MC_INLINE uint4 load_sum_of_gpus(const float* p) {
    float4 v;
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p)
                 : "memory");
    return *(const uint4*)&v;
}

// 16 bytes to a multicast address, so to all GPUs.
MC_INLINE void store_to_gpus(void* p, uint4 v) {
    asm volatile("multimem.st.relaxed.sys.global.v4.bf16x2 [%0], {%1, %2, %3, %4};" ::"l"(p),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

MC_INLINE void store_to_gpus(float* p, float v) {
    asm volatile("multimem.st.relaxed.sys.global.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory");
}

// 16 bytes of the symmetric memory of one GPU.
MC_INLINE uint4 load_from_gpu(const void* p) {
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

MC_INLINE void store_to_gpu(void* p, uint4 v) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

MC_INLINE void store_to_gpu(float* p, float v) {
    asm volatile("st.relaxed.sys.global.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory");
}

// A counter of arrivals is a word of symmetric memory that only grows, launch after launch. What a thread knows of when
// it arrives, of this GPU and of others, another one does that waits for it.
MC_INLINE void gpu_arrive(u32* counter) {
    asm volatile("red.release.sys.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

MC_INLINE void gpu_wait(const u32* counter, u32 target) {
    u32 seen, left = 1u << 26;  // a minute or so while the grids run
    do {
        if (!left--) __trap();  // a GPU is missing
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    } while ((int)(seen - target) < 0);
}

// A signal is a word of symmetric memory that is 0, or 1 from when one thread puts it until another one, which
// waits for it, takes it. What the first one knows of by then, of this GPU and of others, the second one does
// behind. A word serves any number of signals in turn, so a launch may be repeated as it is.
MC_INLINE void put_signal(u32* slot) {
    u32 seen;
    do {
        asm volatile("atom.cas.release.sys.global.b32 %0, [%1], 0, 1;"
                     : "=r"(seen)
                     : "l"(slot)
                     : "memory");
    } while (seen != 0);
}

MC_INLINE void wait_signal(u32* slot) {
    u32 seen;
    do {
        asm volatile("atom.cas.acquire.sys.global.b32 %0, [%1], 1, 0;"
                     : "=r"(seen)
                     : "l"(slot)
                     : "memory");
    } while (seen != 1);
}

}  // namespace mc
