// mc.cuh: the primitives that emitted kernels are written with.
//
// Two implementations of one set of functions: for the device (nvcc or NVRTC, sm_90a), where all inline PTX of the
// project lives, here, in mc_symmetric.cuh, mc_warpgroups.cuh and mc_words.cuh, and for the executor on a CPU (mc_executor.h), one fiber
// per thread. Kernels include this header and name nothing else of CUDA but __global__, __cluster_dims__, __launch_bounds__ and plain C++.
//
// Terms follow the PTX ISA: a *cluster* is a set of blocks that can reach each other's shared memory (DSMEM), *rank* is a
// block's place in it, an *mbarrier* counts arrivals and bytes of copies in phases, whose parity a waiter names.
#pragma once

#ifdef MC_EXECUTOR
#include "mc_executor.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define MC_INLINE __device__ __forceinline__
#define MC_EXPORT(kernel)

namespace mc {

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef __half f16;
typedef __nv_bfloat16 bf16;

// An mbarrier object in shared memory.
struct Barrier {
    u64 word;
};

// ---- Places ---------------------------------------------------------------------------------

MC_INLINE u32 thread() { return threadIdx.x; }
MC_INLINE u32 lane() { return threadIdx.x & 31; }
MC_INLINE u32 warp() { return threadIdx.x >> 5; }
MC_INLINE u32 threads() { return blockDim.x; }
MC_INLINE u32 block() { return blockIdx.x; }
MC_INLINE u32 blocks() { return gridDim.x; }

// The number ``v`` of a thread as one of which nothing is known: what was computed of it stays in no register for what
// follows, through a loop that needs them all.
MC_INLINE int renewed(int v) {
    asm volatile("" : "+r"(v));
    return v;
}

MC_INLINE u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

MC_INLINE u32 cluster_size() {
    u32 size;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}

MC_INLINE u32 cluster_index() {
    u32 index;
    asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(index));
    return index;
}

MC_INLINE u32 clusters() {
    u32 count;
    asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
    return count;
}

// The block's dynamic shared memory; offsets into it are the compiler's.
MC_INLINE unsigned char* arena() {
    extern __shared__ __align__(1024) unsigned char mc_arena[];
    return mc_arena;
}

MC_INLINE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

MC_INLINE u32 shared_address(const void* p, u32 rank) {
    u32 address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address)
                 : "r"(shared_address(p)), "r"(rank));
    return address;
}

// ---- Barriers of threads --------------------------------------------------------------------

MC_INLINE void block_sync() { __syncthreads(); }

// ``count`` threads (a multiple of 32) that name the same id, 1 to 15.
MC_INLINE void group_sync(u32 id, u32 count) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
}

MC_INLINE void warp_sync() { __syncwarp(); }

// The barrier of all threads of all blocks of a cluster, in two halves: each thread arrives, and later
// waits until all have. What comes before a relaxed arrival is made visible to nobody, but for what
// init_fence() covers; what a thread has read, it has read.
MC_INLINE void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

MC_INLINE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Both halves at once; orders shared memory of the cluster.
MC_INLINE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    cluster_wait();
}

// The resident blocks of a grid meet, in two halves, by one thread of each behind barriers of its block; ``counter``
// grows by blocks() a meeting, so ``target`` is blocks() times the number of the meeting.
MC_INLINE void grid_arrive(u32* counter) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

MC_INLINE void grid_wait(u32* counter, u32 target) {
    u32 seen, left = 1u << 26;  // a minute or so while it runs, not while another process does
    do {
        if (!left--) __trap();  // blocks of the grid are missing
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    } while ((int)(seen - target) < 0);
}

// Arrive, and whether all have, so that what each knew by then this thread knows too.
MC_INLINE bool grid_arrive_last(u32* counter, u32 target) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before + 1 == target;
}

// Arrive for the last time, which nobody waits for: the one with which ``total`` have arrived, which is told so, leaves a 0.
MC_INLINE bool grid_leave(u32* counter, u32 total) {
    u32 before;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    if (before + 1 != total) return false;
    asm volatile("st.relaxed.gpu.global.u32 [%0], 0;" ::"l"(counter) : "memory");
    return true;
}

// By all threads of a block, both halves at once.
MC_INLINE void grid_sync(u32* counter, u32 target) {
    block_sync();
    if (thread() == 0) grid_arrive(counter), grid_wait(counter, target);
    block_sync();
}

// ---- Warps ----------------------------------------------------------------------------------

MC_INLINE float shuffle(float v, u32 from) { return __shfl_sync(0xffffffffu, v, from); }
MC_INLINE int shuffle(int v, u32 from) { return __shfl_sync(0xffffffffu, v, from); }
MC_INLINE float shuffle_xor(float v, u32 mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }

// Sum over groups of W neighbouring lanes, W a power of two; every lane gets it.
template <int W = 32>
MC_INLINE float warp_sum(float v) {
#pragma unroll
    for (int mask = W / 2; mask; mask >>= 1) v += __shfl_xor_sync(0xffffffffu, v, mask);
    return v;
}

template <int W = 32>
MC_INLINE float warp_max(float v) {
#pragma unroll
    for (int mask = W / 2; mask; mask >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, mask));
    return v;
}

// ---- mbarriers ------------------------------------------------------------------------------

MC_INLINE void init(Barrier* b, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals)
                 : "memory");
}

// Makes initialised mbarriers visible to copies, and to peers behind an arrival at the cluster's barrier.
MC_INLINE void init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

MC_INLINE void arrive(Barrier* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}

// Arrive at the same mbarrier of block ``rank``.
MC_INLINE void arrive_at(Barrier* b, u32 rank) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                     shared_address(b, rank))
                 : "memory");
}

// The same of a thread that has only read what the block, or copies for it, may overwrite behind: no write is shown.
MC_INLINE void arrive_read(Barrier* b, u32 rank) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(shared_address(b, rank)) : "memory");
}

// Arrive, and let the phase also wait for ``bytes`` of copies.
MC_INLINE void expect(Barrier* b, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                 "r"(bytes)
                 : "memory");
}

#define MC_WAIT(scope)                                                              \
    "{\n"                                                                           \
    ".reg .pred done;\n"                                                            \
    "again: mbarrier.try_wait.parity.acquire." scope ".shared::cta.b64 done, [%0], %1;\n" \
    "@done bra ended;\n"                                                            \
    "bra again;\n"                                                                  \
    "ended:\n"                                                                      \
    "}"

// Until the phase of this parity has ended; shows what threads of this block, and copies that they
// started, did before.
MC_INLINE void wait(Barrier* b, u32 parity) {
    asm volatile(MC_WAIT("cta")::"r"(shared_address(b)), "r"(parity) : "memory");
}

// The same, and what peers did. Costs what the block has in L1, so not for each tile.
MC_INLINE void wait_for_peers(Barrier* b, u32 parity) {
    asm volatile(MC_WAIT("cluster")::"r"(shared_address(b)), "r"(parity) : "memory");
}

#undef MC_WAIT

// Until a phase of one of both has ended, those of these parities; shows nothing.
MC_INLINE void wait_for_either(Barrier* b, u32 parity, Barrier* other, u32 other_parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again: mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ended;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%2], %3;\n"
        "@!done bra again;\n"
        "ended:\n"
        "}" ::"r"(shared_address(b)),
        "r"(parity), "r"(shared_address(other)), "r"(other_parity)
        : "memory");
}

// ---- Copies that an mbarrier counts; addresses and sizes are multiples of 16 ------------------

// Global to shared memory.
MC_INLINE void copy_in(void* to, const void* from, u32 bytes, Barrier* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(b))
                 : "memory");
}

// Shared memory to the same-named place of block ``rank``, counted by its mbarrier.
MC_INLINE void push(void* to, u32 rank, const void* from, u32 bytes, Barrier* b) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];" ::"r"(shared_address(to, rank)), "r"(shared_address(from)), "r"(bytes),
                 "r"(shared_address(b, rank)) : "memory");
}

// Global memory to the same-named place of the blocks 0 .. count - 1 of the cluster, counted by the mbarrier of each, whose
// threads wait for it as for a copy of their own.
MC_INLINE void copy_to_all(void* to, u32 count, const void* from, u32 bytes, Barrier* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(b)),
                 "h"((u16)((1u << count) - 1))
                 : "memory");
}

// Between plain writes of shared memory and a copy that reads or overwrites it.
MC_INLINE void copy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The same between plain writes of global memory and a copy that reads it, by who writes and by who copies.
MC_INLINE void global_copy_fence() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Bring ``bytes`` at ``from`` towards L2.
MC_INLINE void prefetch(const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// The grid that was launched before this one with programmatic dependence has finished.
MC_INLINE void wait_for_previous_grid() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// The next grid may start its part before wait_for_previous_grid().
MC_INLINE void let_next_grid_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// ---- Shared memory of a peer ------------------------------------------------------------------

MC_INLINE float load_peer(const float* p, u32 rank) {
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];"
                 : "=f"(v)
                 : "r"(shared_address(p, rank))
                 : "memory");
    return v;
}

MC_INLINE void store_peer(float* p, u32 rank, float v) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(shared_address(p, rank)), "f"(v)
                 : "memory");
}

// ---- Global memory ------------------------------------------------------------------------------

MC_INLINE void add(float* p, float v) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory");
}

// ---- Arithmetic ---------------------------------------------------------------------------------

// The upper half of a product.
MC_INLINE u64 mul_high(u64 a, u64 b) { return __umul64hi(a, b); }

MC_INLINE float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

MC_INLINE float inverse_root(float x) { return rsqrtf(x); }
MC_INLINE float fused(float a, float b, float c) { return fmaf(a, b, c); }
MC_INLINE float larger(float a, float b) { return fmaxf(a, b); }

MC_INLINE float widen(f16 v) { return __half2float(v); }
MC_INLINE float widen(bf16 v) { return __bfloat162float(v); }
template <class T>
MC_INLINE T narrow(float v);
template <>
MC_INLINE f16 narrow<f16>(float v) {
    return __float2half_rn(v);
}
template <>
MC_INLINE bf16 narrow<bf16>(float v) {
    return __float2bfloat16_rn(v);
}

// The bits of ``a`` that ``mask`` has, and ``more``: in one instruction.
MC_INLINE u32 masked_or(u32 a, u32 mask, u32 more) {
    u32 b;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(b) : "r"(a), "r"(mask), "r"(more));
    return b;
}

// The bits of ``a`` that ``mask`` has, and ``more``, without those that both have.
MC_INLINE u32 masked_xor(u32 a, u32 mask, u32 more) {
    u32 b;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(b) : "r"(a), "r"(mask), "r"(more));
    return b;
}

// Four of the bytes of ``a``, 0 to 3, and of ``b``, 4 to 7: which ones, ``wanted`` says from its last digit on.
MC_INLINE u32 permuted(u32 a, u32 b, u32 wanted) { return __byte_perm(a, b, wanted); }

MC_INLINE int nearest(float v) { return __float2int_rn(v); }

// Two values of 16 bits that a word holds times those of another one.
MC_INLINE u32 multiply_two(u32 a, u32 b, f16) {
    u32 c;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}
MC_INLINE u32 multiply_two(u32 a, u32 b, bf16) {
    u32 c;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

// The sums of two values of 16 bits that a word holds and those of another one.
MC_INLINE u32 add_two(u32 a, u32 b, bf16) {
    u32 c;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

// Eight values of 16 bits, as words hold them, widened.
MC_INLINE void widen8(const u32 (&words)[4], float* to, f16) {
    const __half2* pairs = (const __half2*)words;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 two = __half22float2(pairs[i]);
        to[2 * i] = two.x;
        to[2 * i + 1] = two.y;
    }
}

MC_INLINE void widen8(const u32 (&words)[4], float* to, bf16) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[2 * i] = __uint_as_float(words[i] << 16);
        to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

// The same from a 16-byte address.
template <class T>
MC_INLINE void load8(const T* p, float* to) {
    const uint4 all = *(const uint4*)p;
    const u32 words[4] = {all.x, all.y, all.z, all.w};
    widen8(words, to, T());
}

// Eight values rounded to 16 bits.
template <class T>
MC_INLINE uint4 pack8(const float* from) {
    uint4 all;
    T* values = (T*)&all;
#pragma unroll
    for (int i = 0; i < 8; i++) values[i] = narrow<T>(from[i]);
    return all;
}

// The same to a 16-byte address.
template <class T>
MC_INLINE void store8(T* p, const float* from) {
    *(uint4*)p = pack8<T>(from);
}

// ---- Fragments of tensor cores --------------------------------------------------------------------

// Eight neighbours of 16 bits, or a float, that never change, from global memory, now and not where they are needed.
template <class T>
MC_INLINE void load_constant(const T* p, u32 (&words)[4]) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(p)
                 : "memory");
}

// A hint that ``bytes`` from ``p`` on, which nobody writes while the kernel runs, will soon be read.
MC_INLINE void prefetch(const void* p, int bytes, int me) {
    if (me * 128 < bytes) asm volatile("prefetch.global.L1 [%0];" ::"l"((const char*)p + me * 128));
}

MC_INLINE float load_constant(const float* p) {
    float v;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}

// Eight, four or two neighbours of 16 bits as a lane's words, from shared memory.
template <class T>
MC_INLINE void load_fragment(const T* p, u32 (&words)[4]) {
    const uint4 all = *(const uint4*)p;
    words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
}

template <class T>
MC_INLINE void load_fragment(const T* p, u32 (&words)[2]) {
    const uint2 all = *(const uint2*)p;
    words[0] = all.x, words[1] = all.y;
}

template <class T>
MC_INLINE void load_fragment(const T* p, u32 (&words)[1]) {
    words[0] = *(const u32*)p;
}

// Four 8 x 8 matrices of 16-bit values from shared memory. Lane l names row l % 8 of matrix l / 8, of
// 16 bytes; it gets values 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of each matrix.
MC_INLINE void load_matrices(u32 (&words)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same of the transposed matrices: values of rows 2 (l % 4) and 2 (l % 4) + 1 in column l / 4.
MC_INLINE void load_matrices_transposed(u32 (&words)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// c[16, 8] += a[16, 16] b[16, 8] of a warp, fragments as in the PTX ISA.
MC_INLINE void multiply_16x8x16(float* c, const u32* a, const u32* b, f16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

MC_INLINE void multiply_16x8x16(float* c, const u32* a, const u32* b, bf16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c[16, 8] += a[16, 32] b[32, 8] of whole numbers, bytes of ``a`` without and of ``b`` with a sign.
MC_INLINE void multiply_16x8x32(int* c, const u32* a, const u32* b) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32"
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace mc

#include "mc_symmetric.cuh"
#include "mc_warpgroups.cuh"

#endif

#include "mc_attention.cuh"
#include "mc_coded_rows.cuh"
#include "mc_codes.cuh"
#include "mc_collectives.cuh"
#include "mc_columns.cuh"
#include "mc_digits.cuh"
#include "mc_experts.cuh"
#include "mc_fragments.cuh"
#include "mc_functions.cuh"
#include "mc_choice.cuh"
#include "mc_gpus.cuh"
#include "mc_group_attention.cuh"
#include "mc_streamed.cuh"
#include "mc_tasks.cuh"
#include "mc_tokens.cuh"
