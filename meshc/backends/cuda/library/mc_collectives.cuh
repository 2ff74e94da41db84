// Collectives of a cluster and the ring of tiles, over the primitives of mc.cuh.
#pragma once

namespace mc {

struct Sum {
    static MC_INLINE float start() { return 0.0f; }
    static MC_INLINE float combine(float a, float b) { return a + b; }
};

struct Max {
    static MC_INLINE float start() { return -1e30f; }
    static MC_INLINE float combine(float a, float b) { return larger(a, b); }
};

// Blocks of a cluster meet: what each has written before, all may read behind. ``published`` is an
// mbarrier with one arrival per block. Two meetings in turn use two mbarriers: a fast peer's next
// arrival may overtake a slow one's here, which another of its threads sends.
//
// Called by ``members`` threads, numbered ``me`` from 0, that share group barrier ``group``, as are all
// collectives.
template <int N>
MC_INLINE void cluster_publish(Barrier* published, u32 parity, u32 me, u32 members, u32 group) {
    group_sync(group, members);  // all of this block's is written
    if (me < N) arrive_at(published, me);
    wait_for_peers(published, parity);
}

// ClusterGather of a value: every block of a cluster of N gets it at the same place. Peers may read it once blocks have
// met.
template <int N>
MC_INLINE void cluster_put(float* place, float v) {
    if (N == 1) *place = v;
#pragma unroll
    for (u32 rank = 0; N > 1 && rank < N; rank++) store_peer(place, rank, v);
}

// The part of a ClusterReduce that one block wants: each block has published floats at ``mine`` and
// this one gets the combination of ``count`` of them, from ``first`` on, in ``part``. Peers are read
// in the order of their ranks, so blocks that want the same get the same bits. ``count`` floats of DSMEM
// are read from every peer, which may still read ``mine`` when it returns. ``published``: see
// cluster_publish().
template <class Operator, int N>
MC_INLINE void cluster_reduce_part(float* part, const float* mine, int first, int count,
                                   Barrier* published, u32 parity, u32 me, u32 members, u32 group) {
    cluster_publish<N>(published, parity, me, members, group);
    const u32 rank = cluster_rank();
    for (int i = me; i < count; i += members) {
        float sum = Operator::start();
        for (u32 peer = 0; peer < N; peer++) {
            const float* from = mine + first + i;
            sum = Operator::combine(sum, peer == rank ? *from : load_peer(from, peer));
        }
        part[i] = sum;
    }
    group_sync(group, members);  // the part is complete
}

// ClusterReduce (ClusterFusion, Algorithm 1) for any operator and any cluster size: every block gets
// the combination of all ``count`` floats in ``all``.
template <class Operator, int N>
MC_INLINE void cluster_reduce(float* all, const float* mine, int count, Barrier* published,
                              u32 parity, u32 me, u32 members, u32 group) {
    cluster_reduce_part<Operator, N>(all, mine, 0, count, published, parity, me, members, group);
}

// ClusterGather (Algorithm 2): every block gets all of ``all``, which is ``rows`` rows of ``stride``
// floats, of each of which it has written ``count`` from ``first`` on. The shares of the blocks may
// differ, or be empty; together they are a row. They are pushed to the same place of everybody's ``all``.
// ``arrived`` is an mbarrier with one arrival; it counts the bytes. All numbers are multiples of four.
// Copies may still read a block's share when it returns: nobody writes there before a cluster barrier.
template <int N>
MC_INLINE void cluster_gather(float* all, int rows, int stride, int first, int count,
                              Barrier* arrived, u32 parity, u32 me, u32 members, u32 group) {
    const u32 rank = cluster_rank();
    copy_fence();
    group_sync(group, members);  // all of the share is written, seen by copies
    if (me == 0) expect(arrived, rows * (stride - count) * (u32)sizeof(float));
    for (u32 i = me; i < (count ? rows * N : 0u); i += members) {
        float* share = all + i / N * stride + first;
        if (i % N != rank) push(share, i % N, share, count * (u32)sizeof(float), arrived);
    }
    wait_for_peers(arrived, parity);
}

// How many tiles of a ring are on their way at once: FLYING, but EARLY of those that are needed behind a meeting that
// is not over, since what blocks tell each other waits behind tiles. Warps of workers say by an mbarrier, of COUNT in
// turn, that they have what they need of other blocks; how soon that is known changes nothing but when tiles come.
// Each thread counts the meetings in front of phases that bring tiles.
template <int FLYING, int EARLY>
struct Pace {
    static constexpr int COUNT = 4;

    Barrier* barriers;
    int met = -1;  // the last one
    bool told = true;

    MC_INLINE Pace(unsigned char* barriers) : barriers((Barrier*)barriers) {}

    // By one thread, before init_fence() and a barrier of all.
    MC_INLINE void set_up(u32 workers) {
        for (int i = 0; i < COUNT; i++) init(barriers + i, workers);
    }

    // What follows is needed behind a meeting.
    MC_INLINE void meet() { met++, told = false; }

    // Workers: this warp has what it needs of other blocks, or needs nothing.
    MC_INLINE void over() {
        if (told) return;
        told = true;
        if (lane() == 0) arrive(barriers + met % COUNT);
    }

    // Producer: until a tile is there, by an mbarrier, or the meeting is over.
    MC_INLINE void wait_for_tile(Barrier* tile, u32 parity) const {
        wait_for_either(tile, parity, barriers + met % COUNT, met / COUNT & 1);
    }
};

// A ring of STAGES tiles that one producer thread fills with copies and ``consumers`` warps read.
// Items are numbered from 0 on both sides; an item's place and the parities of its barriers follow
// from its number, so the ring runs through phases of a kernel without being drained.
template <int STAGES>
struct Ring {
    Barrier* full;
    Barrier* empty;
    unsigned char* tiles;
    int tile_bytes;

    static constexpr int BARRIER_BYTES = 2 * STAGES * (int)sizeof(Barrier);

    MC_INLINE Ring(unsigned char* barriers, unsigned char* tiles, int tile_bytes)
        : full((Barrier*)barriers),
          empty((Barrier*)barriers + STAGES),
          tiles(tiles),
          tile_bytes(tile_bytes) {}

    // By one thread, before init_fence() and a barrier of all.
    MC_INLINE void set_up(u32 consumers) {
        for (int i = 0; i < STAGES; i++) {
            init(full + i, 1);
            init(empty + i, consumers);
        }
    }

    MC_INLINE unsigned char* place(int item) const { return tiles + item % STAGES * tile_bytes; }

    // Producer: wait until the place of ``item`` is free, and announce the bytes that come into it.
    MC_INLINE unsigned char* acquire(int item, u32 bytes) const {
        if (item >= STAGES) wait(empty + item % STAGES, (item / STAGES - 1) & 1);
        expect(full + item % STAGES, bytes);
        return place(item);
    }

    // Producer: wait until no more than ``most`` tiles, fewer than the ring has, are on their way with ``item``.
    MC_INLINE void limit(int item, int most) const {
        if (item >= most) wait(full + (item - most) % STAGES, ((item - most) / STAGES) & 1);
    }

    template <int FLYING, int EARLY>
    MC_INLINE void limit(int item, const Pace<FLYING, EARLY>& pace) const {
        limit(item, FLYING);
        if (pace.met < 0 || item < EARLY) return;
        pace.wait_for_tile(full + (item - EARLY) % STAGES, ((item - EARLY) / STAGES) & 1);
    }

    // Producer: one of the copies of ``item``.
    MC_INLINE void fill(int item, int at, const void* from, u32 bytes) const {
        copy_in(place(item) + at, from, bytes, full + item % STAGES);
    }

    // Consumer: wait until all bytes of ``item`` have come.
    MC_INLINE const unsigned char* ready(int item) const {
        wait(full + item % STAGES, (item / STAGES) & 1);
        return place(item);
    }

    // Consumer: this warp is done with ``item``.
    MC_INLINE void release(int item) const {
        warp_sync();
        if (lane() == 0) arrive(empty + item % STAGES);
    }
};

// Rings of the N blocks of a cluster that bring parts of a tile to all of them: a place is free once it is in every
// block. A block ends behind a meeting of the cluster, at which its warps have released all items.
template <int STAGES, int N>
struct ClusterRing : Ring<STAGES> {
    using Ring<STAGES>::Ring;

    // By one thread, before init_fence() and a meeting of the cluster.
    MC_INLINE void set_up(u32 consumers) { Ring<STAGES>::set_up(N * consumers); }

    // Producer: a copy of ``item`` of every block.
    MC_INLINE void fill_all(int item, int at, const void* from, u32 bytes) const {
        if (N == 1) return this->fill(item, at, from, bytes);
        copy_to_all(this->place(item) + at, N, from, bytes, this->full + item % STAGES);
    }

    // Consumer: this warp is done with ``item``.
    MC_INLINE void release(int item) const {
        if (N == 1) return Ring<STAGES>::release(item);
        warp_sync();
        if (lane() < N) arrive_read(this->empty + item % STAGES, lane());
    }
};

}  // namespace mc
