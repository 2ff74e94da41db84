// What a device can do, apart from any model: reading, and meeting.
#include "mc.cuh"

// Read ``tiles`` tiles of TILE bytes through a ring of STAGES. Blocks have runs of tiles, or every
// blocks()-th one. sums [blocks] get the sum of the first words of a block's tiles.
template <int STAGES, int TILE>
MC_INLINE void read(const unsigned char* from, mc::u32* sums, int tiles, int runs) {
    mc::Ring<STAGES> ring(mc::arena(), mc::arena() + 512, TILE);
    const int me = mc::thread(), block = mc::block(), blocks = mc::blocks();
    const int begin = (int)((long long)tiles * block / blocks);
    const int end = (int)((long long)tiles * (block + 1) / blocks);
    const int count = runs ? end - begin : (tiles - block + blocks - 1) / blocks;
    const int first = runs ? begin : block, step = runs ? 1 : blocks;
    if (me == 0) {
        ring.set_up(1);
        mc::init_fence();
    }
    mc::block_sync();
    if (mc::warp() == 1) {
        if (mc::lane() == 0) {
            for (int i = 0; i < count; i++) {
                ring.acquire(i, TILE);
                ring.fill(i, 0, from + (size_t)(first + i * step) * TILE, TILE);
            }
        }
        return;
    }
    mc::u32 sum = 0;
    for (int i = 0; i < count; i++) {
        sum += *(const mc::u32*)ring.ready(i);
        ring.release(i);
    }
    if (me == 0) sums[block] = sum;
}

#define READ(STAGES, KIB)                                                       \
    extern "C" __global__ void __launch_bounds__(64, 1) read_##STAGES##x##KIB( \
        const unsigned char* from, mc::u32* sums, int tiles, int runs) {        \
        read<STAGES, KIB * 1024>(from, sums, tiles, runs);                      \
    }                                                                           \
    MC_EXPORT(read_##STAGES##x##KIB)

READ(2, 16)
READ(4, 16)
READ(6, 16)
READ(8, 16)
READ(10, 16)
READ(12, 16)
READ(2, 32)
READ(3, 32)
READ(4, 32)
READ(5, 32)
READ(6, 32)

// to [count] = values of 16 bits, uniform in [-spread, spread).
template <class T>
MC_INLINE void noise(T* to, mc::u64 count, float spread, mc::u32 seed) {
    const mc::u64 step = (mc::u64)mc::threads() * mc::blocks();
    for (mc::u64 i = (mc::u64)mc::block() * mc::threads() + mc::thread(); i < count; i += step) {
        mc::u32 x = (mc::u32)i * 0x9e3779b9u ^ (mc::u32)(i >> 32) ^ seed;
        x = (x ^ x >> 16) * 0x7feb352du;
        x = (x ^ x >> 15) * 0x846ca68bu;
        x ^= x >> 16;
        to[i] = mc::narrow<T>(spread * ((float)(x >> 8) * 0x1p-23f - 1.0f));
    }
}

extern "C" __global__ void __launch_bounds__(256, 1)
    noise_f16(mc::f16* to, mc::u64 count, float spread, mc::u32 seed) {
    noise(to, count, spread, seed);
}
MC_EXPORT(noise_f16)

extern "C" __global__ void __launch_bounds__(256, 1)
    noise_bf16(mc::bf16* to, mc::u64 count, float spread, mc::u32 seed) {
    noise(to, count, spread, seed);
}
MC_EXPORT(noise_bf16)

// to [count] = the ``many`` values of from, over and over.
extern "C" __global__ void __launch_bounds__(256, 1)
    repeated(mc::u16* to, mc::u64 count, const mc::u16* from, mc::u64 many) {
    const mc::u64 step = (mc::u64)mc::threads() * mc::blocks();
    for (mc::u64 i = (mc::u64)mc::block() * mc::threads() + mc::thread(); i < count; i += step) {
        to[i] = from[i % many];
    }
}
MC_EXPORT(repeated)

// ``rounds`` barriers of a cluster; met [blocks] counts them.
extern "C" __global__ void __launch_bounds__(288, 1) cluster_barrier(mc::u32* met, int rounds) {
    mc::u32 count = 0;
    for (int i = 0; i < rounds; i++) {
        mc::cluster_sync();
        count++;
    }
    if (mc::thread() == 0) met[mc::block()] = count;
}
MC_EXPORT(cluster_barrier)

// at [blocks] = the multiprocessor of each block, once all blocks of its cluster have one.
MC_INLINE mc::u32 multiprocessor() {
#ifdef MC_EXECUTOR
    return mc::block();
#else
    mc::u32 found;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(found));
    return found;
#endif
}

extern "C" __global__ void __launch_bounds__(288, 1) places(mc::u32* at, int rounds) {
    for (int i = 0; i < rounds; i++) mc::cluster_sync();
    if (mc::thread() == 0) at[mc::block()] = multiprocessor();
}
MC_EXPORT(places)

// ``rounds`` loads from the next block, each at the place that the one before says.
extern "C" __global__ void __launch_bounds__(32, 1) peer_load(mc::u32* met, int rounds) {
    float* steps = (float*)mc::arena();
    steps[mc::lane()] = 1.0f;
    mc::cluster_sync();
    const mc::u32 peer = (mc::cluster_rank() + 1) % mc::cluster_size();
    if (mc::lane() == 0) {
        mc::u32 at = 0;
        for (int i = 0; i < rounds; i++) at += (mc::u32)mc::load_peer(steps + at % 32, peer);
        met[mc::block()] = at;
    }
    mc::cluster_sync();  // peers may still read
}
MC_EXPORT(peer_load)

// ``rounds`` ClusterReduces of 130 floats, a head's sums, highest score and weight.
template <int N>
MC_INLINE void reduce(mc::u32* met, int rounds) {
    mc::Barrier* published = (mc::Barrier*)mc::arena();
    float* mine = (float*)(mc::arena() + 16);
    float* all = mine + 2 * 132;
    const int me = mc::thread();
    if (me == 0) {
        mc::init(published, N);
        mc::init_fence();
    }
    for (int i = me; i < 2 * 132; i += mc::threads()) mine[i] = 1.0f;
    mc::cluster_sync();
    mc::u32 sum = 0;
    for (int i = 0; i < rounds; i++) {
        // Two places in turn: peers may still read the last one.
        mc::cluster_reduce<mc::Sum, N>(all, mine + i % 2 * 132, 130, published, i & 1, me, 256, 1);
        sum += (mc::u32)all[129];
    }
    if (me == 0) met[mc::block()] = sum;
    mc::cluster_sync();
}

#define REDUCE(N)                                                             \
    extern "C" __global__ void __cluster_dims__(N, 1, 1)                      \
        __launch_bounds__(256, 1) reduce_##N(mc::u32* met, int rounds) {      \
        reduce<N>(met, rounds);                                               \
    }                                                                         \
    MC_EXPORT(reduce_##N)

REDUCE(2)
REDUCE(4)
REDUCE(8)
REDUCE(16)

// ``rounds`` barriers of the grid; counter holds zero.
extern "C" __global__ void __launch_bounds__(288, 1)
    grid_barrier(mc::u32* met, int rounds, mc::u32* counter) {
    for (int i = 1; i <= rounds; i++) mc::grid_sync(counter, i * mc::blocks());
    if (mc::thread() == 0) met[mc::block()] = rounds;
}
MC_EXPORT(grid_barrier)
