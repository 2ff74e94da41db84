// Small kernels that use the primitives one by one.
#include "mc.cuh"

// Block b of a cluster of N holds x[b]; y[b] gets the combination over its cluster.
template <class Operator, int N>
MC_INLINE void reduce(const float* x, float* y, int count) {
    mc::Barrier* published = (mc::Barrier*)mc::arena();
    float* mine = (float*)(mc::arena() + 16);
    float* all = mine + count;
    if (mc::thread() == 0) {
        mc::init(published, N);
        mc::init_fence();
    }
    mc::cluster_sync();
    for (int i = mc::thread(); i < count; i += mc::threads()) mine[i] = x[mc::block() * count + i];
    mc::cluster_reduce<Operator, N>(all, mine, count, published, 0, mc::thread(), 64, 1);
    for (int i = mc::thread(); i < count; i += mc::threads()) y[mc::block() * count + i] = all[i];
    mc::cluster_sync();  // peers may still read
}

// Block b of a cluster of N holds x[b], ``count`` fours for each of two rows; y[b] gets the two rows of its
// cluster. A block of odd rank gives its last four to the next one.
template <int N>
MC_INLINE void gather(const float* x, float* y, int count) {
    mc::Barrier* arrived = (mc::Barrier*)mc::arena();
    float* all = (float*)(mc::arena() + 16);
    if (mc::thread() == 0) {
        mc::init(arrived, 1);
        mc::init_fence();
    }
    mc::cluster_sync();
    const int rank = mc::cluster_rank(), stride = 4 * N * count;
    const int first = 4 * (rank * count - (rank && rank % 2 == 0));
    const int end = 4 * ((rank + 1) * count - (rank < N - 1 && rank % 2));
    const float* own = x + mc::cluster_index() * 2 * stride;
    for (int row = 0; row < 2; row++) {
        for (int i = first + mc::thread(); i < end; i += mc::threads()) {
            all[row * stride + i] = own[row * stride + i];
        }
    }
    mc::cluster_gather<N>(all, 2, stride, first, end - first, arrived, 0, mc::thread(), 64, 1);
    for (int i = mc::thread(); i < 2 * stride; i += mc::threads()) {
        y[mc::block() * 2 * stride + i] = all[i];
    }
    mc::cluster_sync();  // peers may still copy from here
}

#define COLLECTIVES(N)                                                                        \
    extern "C" __global__ void __cluster_dims__(N, 1, 1) __launch_bounds__(64, 1)             \
        sum_##N(const float* x, float* y, int count) {                                        \
        reduce<mc::Sum, N>(x, y, count);                                                      \
    }                                                                                         \
    extern "C" __global__ void __cluster_dims__(N, 1, 1) __launch_bounds__(64, 1)             \
        max_##N(const float* x, float* y, int count) {                                        \
        reduce<mc::Max, N>(x, y, count);                                                      \
    }                                                                                         \
    extern "C" __global__ void __cluster_dims__(N, 1, 1) __launch_bounds__(64, 1)             \
        gather_##N(const float* x, float* y, int count) {                                     \
        gather<N>(x, y, count);                                                               \
    }                                                                                         \
    MC_EXPORT(sum_##N)                                                                        \
    MC_EXPORT(max_##N)                                                                        \
    MC_EXPORT(gather_##N)

COLLECTIVES(1)
COLLECTIVES(2)
COLLECTIVES(3)
COLLECTIVES(4)
COLLECTIVES(5)
COLLECTIVES(6)
COLLECTIVES(8)
COLLECTIVES(12)
COLLECTIVES(16)

// Three warps sum tiles that a fourth brings through a ring of two.
extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(128, 1)
    ring_sum(const float* x, float* y, int tiles) {
    const int tile_bytes = 96 * (int)sizeof(float);
    mc::Ring<2> ring(mc::arena(), mc::arena() + 128, tile_bytes);
    if (mc::thread() == 0) {
        ring.set_up(3);
        mc::init_fence();
    }
    mc::block_sync();
    if (mc::warp() == 3) {
        if (mc::lane() == 0) {
            for (int item = 0; item < tiles; item++) {
                ring.acquire(item, tile_bytes);
                ring.fill(item, 0, x + item * 96, tile_bytes / 2);
                ring.fill(item, tile_bytes / 2, x + item * 96 + 48, tile_bytes / 2);
            }
        }
        return;
    }
    float sum = 0.0f;
    for (int item = 0; item < tiles; item++) {
        sum += ((const float*)ring.ready(item))[mc::thread()];
        ring.release(item);
    }
    y[mc::thread()] = sum;
}
MC_EXPORT(ring_sum)

// The same through a ring of five, of which three are on their way at once, and one in front of a meeting: every
// ``apart`` tiles the three warps meet, the one that brings does not.
extern "C" __global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(128, 1)
    paced_sum(const float* x, float* y, int tiles, int apart) {
    const int tile_bytes = 96 * (int)sizeof(float);
    mc::Ring<5> ring(mc::arena(), mc::arena() + 128, tile_bytes);
    mc::Pace<3, 1> pace(mc::arena() + 96);
    if (mc::thread() == 0) {
        ring.set_up(3);
        pace.set_up(3);
        mc::init_fence();
    }
    mc::block_sync();
    if (mc::warp() == 3) {
        for (int item = 0; item < tiles; item++) {
            if (item && item % apart == 0) pace.meet();
            if (mc::lane() != 0) continue;
            ring.limit(item, pace);
            ring.acquire(item, tile_bytes);
            ring.fill(item, 0, x + item * 96, tile_bytes);
        }
        return;
    }
    float sum = 0.0f;
    for (int item = 0; item < tiles; item++) {
        if (item && item % apart == 0) {
            pace.meet();
            mc::group_sync(1, 96);
            pace.over();
        }
        sum += ((const float*)ring.ready(item))[mc::thread()];
        pace.over();  // again, which changes nothing
        ring.release(item);
    }
    y[mc::thread()] = sum;
}
MC_EXPORT(paced_sum)

// Pages of the runs from ``first`` to ``end``, two of which are a page; all entries of the table become -1 once
// the first page is known.
extern "C" __global__ void __launch_bounds__(32, 1) pages_ahead(int* pages, int* found, int first, int end) {
    mc::PageLookup<2> lookup(pages, first, end);
    for (int n = 0; first + n < end; n++) {
        found[32 * n + mc::lane()] = lookup.page(n);
        if (n > 0) continue;
        mc::warp_sync();
        for (int i = mc::lane(); 2 * i < end; i += 32) pages[i] = -1;
        mc::warp_sync();
    }
}
MC_EXPORT(pages_ahead)

// How many runs of neighbours there are, the first row of each, and the number of rows.
extern "C" __global__ void __launch_bounds__(32, 1) neighbours(const int* ahead, int* found, int count) {
    const mc::Neighbours<4> runs(mc::arena());
    runs.find(ahead, count);
    mc::warp_sync();
    if (mc::lane() != 0) return;
    found[0] = runs.count();
    for (int run = 0; run < runs.count(); run++) found[1 + run] = runs.first(run);
    found[1 + runs.count()] = runs.last(runs.count() - 1) + 1;
}
MC_EXPORT(neighbours)

// Tiles whose pages lanes look up at once.
extern "C" __global__ void __launch_bounds__(32, 1) pages_at_once(int* tiles) {
    tiles[0] = mc::Pages<16, 2, 32>::AT_ONCE, tiles[1] = mc::Pages<64, 1, 16>::AT_ONCE;
    tiles[2] = mc::Pages<1, 2, 32>::AT_ONCE, tiles[3] = mc::Pages<1, 1, 64>::AT_ONCE;
    tiles[4] = mc::Pages<1, 1, 2>::AT_ONCE, tiles[5] = mc::Pages<16, 2, 2>::AT_ONCE;
}
MC_EXPORT(pages_at_once)

extern "C" __global__ void __launch_bounds__(32, 1) warps(const float* x, float* y) {
    const float v = x[mc::lane()];
    y[mc::lane()] = mc::warp_sum(v);
    y[32 + mc::lane()] = mc::warp_max<16>(v);
    y[64 + mc::lane()] = mc::warp_sum<4>(v);
    y[96 + mc::lane()] = mc::shuffle(v, (mc::lane() + 5) % 32);
    y[128 + mc::lane()] = mc::shuffle_xor(v, 9);
}
MC_EXPORT(warps)

// All blocks add their number, meet, and read the total; twice.
extern "C" __global__ void __launch_bounds__(64, 1) grid_total(float* total, float* y, mc::u32* counter) {
    for (mc::u32 round = 1; round <= 2; round++) {
        if (mc::thread() == 0) mc::add(total, (float)mc::block());
        mc::grid_sync(counter, (2 * round - 1) * mc::blocks());
        if (mc::thread() == 0) y[(round - 1) * mc::blocks() + mc::block()] = *total;
        mc::grid_sync(counter, 2 * round * mc::blocks());
    }
}
MC_EXPORT(grid_total)

template <class T>
MC_INLINE void fragment(const mc::u32* a, const mc::u32* b, float* c) {
    mc::u32 left[4], right[2];
    float sums[4];
    for (int i = 0; i < 4; i++) left[i] = a[4 * mc::lane() + i];
    for (int i = 0; i < 2; i++) right[i] = b[2 * mc::lane() + i];
    for (int i = 0; i < 4; i++) sums[i] = c[4 * mc::lane() + i];
    mc::multiply_16x8x16(sums, left, right, T());
    for (int i = 0; i < 4; i++) c[4 * mc::lane() + i] = sums[i];
}

extern "C" __global__ void __launch_bounds__(32, 1)
    fragment_f16(const mc::u32* a, const mc::u32* b, float* c) {
    fragment<mc::f16>(a, b, c);
}
MC_EXPORT(fragment_f16)

extern "C" __global__ void __launch_bounds__(32, 1)
    fragment_bf16(const mc::u32* a, const mc::u32* b, float* c) {
    fragment<mc::bf16>(a, b, c);
}
MC_EXPORT(fragment_bf16)

template <class T>
MC_INLINE void round_trip(const T* x, const float* v, float* wide, T* narrow) {
    float eight[8];
    mc::load8(x + 8 * mc::thread(), eight);
    for (int i = 0; i < 8; i++) wide[8 * mc::thread() + i] = eight[i];
    for (int i = 0; i < 8; i++) narrow[8 * mc::thread() + i] = mc::narrow<T>(v[8 * mc::thread() + i]);
}

extern "C" __global__ void __launch_bounds__(64, 1)
    convert_f16(const mc::f16* x, const float* v, float* wide, mc::f16* narrow) {
    round_trip(x, v, wide, narrow);
}
MC_EXPORT(convert_f16)

extern "C" __global__ void __launch_bounds__(64, 1)
    convert_bf16(const mc::bf16* x, const float* v, float* wide, mc::bf16* narrow) {
    round_trip(x, v, wide, narrow);
}
MC_EXPORT(convert_bf16)

// Loads of a row per lane, ``pitch`` halves apart.
extern "C" __global__ void __launch_bounds__(32, 1) strided(float* y, int pitch) {
    mc::f16* rows = (mc::f16*)mc::arena();
    for (int i = mc::lane(); i < 32 * pitch; i += 32) rows[i] = mc::narrow<mc::f16>(1.0f);
    mc::warp_sync();
    float eight[8];
    mc::load8(rows + mc::lane() * pitch, eight);
    y[mc::lane()] = mc::warp_sum(eight[0]);
}
MC_EXPORT(strided)
