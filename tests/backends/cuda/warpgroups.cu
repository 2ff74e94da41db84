// Products of a warpgroup with columns of 16 values of TOKENS tokens, and their twins with one fault each.
#include "mc.cuh"

enum Fault {
    NONE, NO_FENCE, NO_COMMIT, NO_WAIT, NOT_AWAITED, LET_GO_EARLY, NO_COPY_FENCE, NOT_BY_ALL, OTHER_COLUMNS, UNALIGNED,
    NOT_EXCHANGED, NO_MEETING, NOT_LET_GO, WITHOUT_PEERS, SUMS_NOT_FENCED, SUMS_TOO_EARLY, LEFT_TOO_EARLY
};

// left [2, 4, 32, 8]: fragments of 64 rows for two products. right [2, TOKENS * 16]. y [128, TOKENS / 2]: the sums of
// each thread. Plain: the threads write the columns, in place of a copy.
template <class T, int TOKENS, bool PLAIN, Fault FAULT>
MC_INLINE void multiply(const T* left, const T* right, float* y) {
    mc::Barrier* full = (mc::Barrier*)mc::arena();
    mc::Barrier* empty = full + 1;
    T* columns = (T*)(mc::arena() + 256);
    const int me = mc::thread(), warp = mc::warp();
    constexpr mc::u32 BYTES = TOKENS * 16 * (mc::u32)sizeof(T);
    if (me == 0) {
        mc::init(full, 1);
        mc::init(empty, 4);
        mc::init_fence();
    }
    mc::block_sync();
    float sums[TOKENS / 2];
    for (int i = 0; i < TOKENS / 2; i++) sums[i] = 0.0f;
    for (int n = 0; n < 2; n++) {
        if (PLAIN) {
            mc::block_sync();
            for (int i = me; i < TOKENS * 16; i += 128) columns[i] = right[n * TOKENS * 16 + i];
            if (FAULT != NO_COPY_FENCE) mc::copy_fence();
            mc::block_sync();
        } else {
            if (me == 0) {
                if (n) mc::wait(empty, n - 1);
                mc::expect(full, BYTES);
                mc::copy_in(columns, right + n * TOKENS * 16, BYTES, full);
            }
            if (FAULT != NOT_AWAITED) mc::wait(full, n);
        }
        mc::u32 a[4];
        mc::load_fragment(left + (n * 4 + warp) * 256 + mc::lane() * 8, a);
        if (FAULT != NO_FENCE) mc::fence_products(sums);
        if (FAULT == SUMS_NOT_FENCED) sums[3] = 1.0f;
        mc::u32 at = mc::shared_address(columns);
        if (FAULT == OTHER_COLUMNS) at += 256 * (mc::lane() == 31);
        if (FAULT == UNALIGNED) at += 128;
        const mc::u64 described = mc::columns_at(at);
        if (FAULT != NOT_BY_ALL || warp) {
            mc::multiply_64x16(sums, a, FAULT == NOT_EXCHANGED ? described << 2 >> 2 : described, T());
        }
        if (FAULT != NO_COMMIT) mc::commit_products();
        if (FAULT == LET_GO_EARLY) {
            mc::warp_sync();
            if (mc::lane() == 0) mc::arrive(empty);
        }
        if (FAULT == SUMS_TOO_EARLY) sums[3] = 1.0f;
        if (FAULT == LEFT_TOO_EARLY) a[3] ^= 1;
        if (FAULT != NO_WAIT) mc::wait_for_products(sums);
        mc::warp_sync();
        if (FAULT != LET_GO_EARLY && mc::lane() == 0) mc::arrive(empty);
        if (FAULT == NOT_AWAITED) mc::wait(full, n);
    }
    for (int i = 0; i < TOKENS / 2; i++) y[me * (TOKENS / 2) + i] = sums[i];
}

#define MULTIPLY(name, ...)                                                                \
    extern "C" __global__ void __launch_bounds__(128, 1)                                   \
        name(const mc::f16* left, const mc::f16* right, float* y) {                        \
        multiply<mc::f16, __VA_ARGS__>(left, right, y);                                    \
    }                                                                                      \
    MC_EXPORT(name)

MULTIPLY(by_64, 64, false, NONE)
MULTIPLY(by_128, 128, false, NONE)
MULTIPLY(by_256, 256, false, NONE)
MULTIPLY(written, 64, true, NONE)
MULTIPLY(no_fence, 64, false, NO_FENCE)
MULTIPLY(no_commit, 64, false, NO_COMMIT)
MULTIPLY(no_wait, 64, false, NO_WAIT)
MULTIPLY(not_awaited, 64, false, NOT_AWAITED)
MULTIPLY(let_go_early, 64, false, LET_GO_EARLY)
MULTIPLY(no_copy_fence, 64, true, NO_COPY_FENCE)
MULTIPLY(sums_not_fenced, 64, false, SUMS_NOT_FENCED)
MULTIPLY(sums_too_early, 64, false, SUMS_TOO_EARLY)
MULTIPLY(left_too_early, 64, false, LEFT_TOO_EARLY)
MULTIPLY(not_by_all, 64, false, NOT_BY_ALL)
MULTIPLY(other_columns, 64, false, OTHER_COLUMNS)
MULTIPLY(unaligned, 64, false, UNALIGNED)
MULTIPLY(not_exchanged, 64, false, NOT_EXCHANGED)

extern "C" __global__ void __launch_bounds__(128, 1)
    of_bf16(const mc::bf16* left, const mc::bf16* right, float* y) {
    multiply<mc::bf16, 64, false, NONE>(left, right, y);
}
MC_EXPORT(of_bf16)

// Two blocks, each of which brings half of every tile of 512 bytes to both. y [2, 64] are what a block adds up.
template <Fault FAULT>
MC_INLINE void share(const float* x, int tiles, float* y) {
    mc::ClusterRing<2, 2> ring(mc::arena(), mc::arena() + 128, 512);
    const int me = mc::thread(), rank = mc::cluster_rank();
    if (me == 0) {
        ring.set_up(2);
        mc::init_fence();
    }
    if (FAULT != NO_MEETING) {
        mc::cluster_arrive_relaxed();
        mc::cluster_wait();
    }
    mc::block_sync();
    if (mc::warp() == 2) {
        for (int item = 0; mc::lane() == 0 && item < tiles; item++) {
            ring.acquire(item, 512);
            ring.fill_all(item, rank * 256, x + item * 128 + rank * 64, 256);
        }
    } else {
        float sum = 0.0f;
        for (int item = 0; item < tiles; item++) {
            const float* tile = (const float*)ring.ready(item);
            sum += tile[me] + tile[64 + me];
            if (FAULT == WITHOUT_PEERS) {
                mc::warp_sync();
                if (mc::lane() == 0) mc::arrive_read(ring.empty + item % 2, rank), mc::arrive_read(ring.empty + item % 2, rank);
            } else {
                ring.release(item);
            }
        }
        y[rank * 64 + me] = sum;
    }
    mc::warp_sync();
    if (FAULT == NOT_LET_GO) return;
    mc::cluster_arrive_relaxed();
    mc::cluster_wait();
}

#define SHARE(name, FAULT)                                                                 \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(96, 1)          \
        name(const float* x, int tiles, float* y) {                                        \
        share<FAULT>(x, tiles, y);                                                         \
    }                                                                                      \
    MC_EXPORT(name)

SHARE(shared, NONE)
SHARE(no_meeting, NO_MEETING)
SHARE(not_let_go, NOT_LET_GO)
SHARE(without_peers, WITHOUT_PEERS)
