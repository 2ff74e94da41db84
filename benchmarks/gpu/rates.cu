// What the event model of a step asks of a device (meshc/cost/tasks): reads of the same bytes by all blocks, meetings, and
// the stream of weights that goes on meanwhile. docs/step-times.md says what comes of it.
//
// Every kernel but the last two has 256 workers and one warp that streams weights beside them.
#include "mc.cuh"

namespace rates_ {

using mc::u32;
using mc::u64;

constexpr int WORKERS = 256, THREADS = WORKERS + 32;
constexpr int MOST = 16;  // tiles on their way
// Shared memory: mbarriers of weights and of what is read, whether to stop, then tiles of both.
constexpr int FULL = 0, READ = 128, FREE = 256, STOP = 384, SQUARES = 512, TILES = 1024;
constexpr int FACTS = 8;  // that a block leaves, see leave()

// ---- Clocks, and words as L2 has them -------------------------------------------------------------------
//
// A word of 8 or 16 bytes is read and written as one (PTX ISA, memory consistency model: scalar types up to .b128).

#ifdef MC_EXECUTOR

inline u64 ticks = 0;
MC_INLINE u64 cycles() { return ++ticks; }
MC_INLINE u64 nanoseconds() { return ++ticks; }
// A stream that ends where workers say so would leave them no turn.
constexpr int MOST_STREAMED = 8;
inline char written;  // what those wait on that miss a word
MC_INLINE void wait_for_words() { mc::sleep(&written, "words of a meeting"); }
MC_INLINE void give_up() { mc::fail("a word that nobody writes"); }
MC_INLINE void wake_all() { mc::wake(&written, mc::machine.fibers.data(), (u32)mc::machine.fibers.size()); }
MC_INLINE uint4 load(const uint4* p) { return *p; }
MC_INLINE void load(const u64* p, u64 (&two)[2]) { two[0] = p[0], two[1] = p[1]; }
MC_INLINE void load_whole(const u64* p, u64 (&two)[2]) { two[0] = p[0], two[1] = p[1]; }
MC_INLINE void store(u64* p, u64 word) { *p = word, wake_all(); }
MC_INLINE void store_whole(u64* p, const u64 (&two)[2]) { p[0] = two[0], p[1] = two[1], wake_all(); }
MC_INLINE void give_back(mc::Barrier* b, u32 rank) { mc::arrive_at(b, rank); }
MC_INLINE void copy_to_all(unsigned char* to, const unsigned char* from, u32 bytes, mc::Barrier* b) {
    for (u32 r = 0; r < mc::cluster_size(); r++) mc::finish({mc::at_peer(to, r), from, bytes, mc::at_peer(b, r)});
}

#else

MC_INLINE u64 cycles() { return clock64(); }
MC_INLINE u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}
constexpr int MOST_STREAMED = 1 << 30;
MC_INLINE void wait_for_words() {}
MC_INLINE void give_up() { __trap(); }
MC_INLINE uint4 load(const uint4* p) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
// Two words of 8 bytes.
MC_INLINE void load(const u64* p, u64 (&two)[2]) {
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(two[0]), "=l"(two[1]) : "l"(p) : "memory");
}
// One of 16.
MC_INLINE void load_whole(const u64* p, u64 (&two)[2]) {
    asm volatile("{ .reg .b128 q; ld.relaxed.gpu.global.b128 q, [%2]; mov.b128 {%0, %1}, q; }"
                 : "=l"(two[0]), "=l"(two[1])
                 : "l"(p)
                 : "memory");
}
MC_INLINE void store(u64* p, u64 word) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(word) : "memory");
}
MC_INLINE void store_whole(u64* p, const u64 (&two)[2]) {
    asm volatile("{ .reg .b128 q; mov.b128 q, {%1, %2}; st.relaxed.gpu.global.b128 [%0], q; }" ::"l"(p), "l"(two[0]),
                 "l"(two[1])
                 : "memory");
}
// What this thread has read of a tile it has read, so nothing else is made visible to block ``rank``.
MC_INLINE void give_back(mc::Barrier* b, u32 rank) {
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(mc::shared_address(b, rank))
                 : "memory");
}
// Global memory to the same place of every block of the cluster, counted by the mbarrier of each.
MC_INLINE void copy_to_all(unsigned char* to, const unsigned char* from, u32 bytes, mc::Barrier* b) {
    const unsigned short all = (unsigned short)((1u << mc::cluster_size()) - 1);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1], %2, [%3], %4;" ::"r"(mc::shared_address(to)),
                 "l"(from), "r"(bytes), "r"(mc::shared_address(b)), "h"(all)
                 : "memory");
}

#endif

// ---- Tiles on their way -----------------------------------------------------------------------------------

// What weights are streamed from: ``bytes`` for each block, over and over, in tiles of ``tile``, ``flying`` at once.
struct Weights {
    const unsigned char* from;
    u64 bytes;
    u32 tile;
    int flying;
};

// By one thread: tiles of up to ``tile`` bytes through ``flying`` places. With SHARED each block of a cluster brings its
// part of every tile to all of them.
template <bool SHARED>
struct Bringer {
    mc::Barrier *full, *free;
    unsigned char* tiles;
    u32 tile;
    int flying, asked, came;
    u32 sum;  // of the first words of all that came, of the part of each block

    MC_INLINE Bringer(int full, int free, int tiles, u32 tile, int flying)
        : full((mc::Barrier*)(mc::arena() + full)),
          free((mc::Barrier*)(mc::arena() + free)),
          tiles(mc::arena() + tiles),
          tile(tile),
          flying(flying),
          asked(0),
          came(0),
          sum(0) {}

    MC_INLINE void bring(const unsigned char* from, u32 bytes) {
        if (asked - came == flying) take();
        const int place = asked % flying;
        if (SHARED && asked >= flying) mc::wait(free + place, (asked / flying - 1) & 1);
        mc::expect(full + place, bytes);
        if (SHARED) {
            const u32 part = bytes / mc::cluster_size(), at = part * mc::cluster_rank();
            copy_to_all(tiles + place * tile + at, from + at, part, full + place);
        } else {
            mc::copy_in(tiles + place * tile, from, bytes, full + place);
        }
        asked++;
    }

    MC_INLINE void take() {
        const int place = came % flying;
        mc::wait(full + place, came / flying & 1);
        const u32 parts = SHARED ? mc::cluster_size() : 1;
        for (u32 r = 0; r < parts; r++) {
            sum += *(const volatile u32*)(tiles + place * tile + r * (tile / parts));
            if (SHARED) give_back(free + place, r);
        }
        came++;
    }

    MC_INLINE void end() {
        while (came < asked) take();
    }
};

// By one thread: up to ``most`` tiles of weights, until the workers stop it.
MC_INLINE u32 stream(const Weights& w, int tiles, int most) {
    Bringer<false> ring(FULL, FULL, tiles, w.tile, w.flying);
    const volatile int* stop = (const volatile int*)(mc::arena() + STOP);
    const u64 count = w.bytes / w.tile;
    const unsigned char* own = w.from + mc::block() * w.bytes;
    for (int n = 0; n < most && !*stop; n++) ring.bring(own + n % count * w.tile, w.tile);
    ring.end();
    return ring.asked;
}

MC_INLINE void set_up() {
    if (mc::thread() == 0) {
        for (int i = 0; i < MOST; i++) {
            mc::init((mc::Barrier*)(mc::arena() + FULL) + i, 1);
            mc::init((mc::Barrier*)(mc::arena() + READ) + i, 1);
            mc::init((mc::Barrier*)(mc::arena() + FREE) + i, mc::cluster_size());
        }
        *(int*)(mc::arena() + STOP) = 0;
        mc::init_fence();
    }
    mc::cluster_sync();
}

// ---- What is left -----------------------------------------------------------------------------------------

struct Times {
    u64 first_cycle, first_ns, told, read;

    MC_INLINE Times() : first_cycle(cycles()), first_ns(nanoseconds()), told(0), read(0) {}

    // Cycles and nanoseconds of all; cycles until told and until read, of all rounds; when it began; what was wrong.
    MC_INLINE void leave(u64* facts, u64 wrong) const {
        u64* to = facts + mc::block() * FACTS;
        to[0] = cycles() - first_cycle, to[1] = nanoseconds() - first_ns;
        to[2] = told, to[3] = read, to[4] = first_ns, to[5] = wrong;
    }
};

// All workers of all blocks meet, in two halves (as in a persistent step).
struct Meeting {
    u32 *counter, target;

    MC_INLINE explicit Meeting(u32* counter) : counter(counter), target(0) {}

    MC_INLINE void arrive() {
        target += mc::blocks();
        mc::group_sync(1, WORKERS);
        if (mc::thread() == 0) mc::grid_arrive(counter);
    }

    MC_INLINE void wait() {
        if (mc::thread() == 0) mc::grid_wait(counter, target);
        mc::group_sync(1, WORKERS);
    }
};

// The last tile of weights, and the end of all blocks of a cluster together.
template <class Work>
MC_INLINE void beside_weights(const Weights& weights, int tiles, u64* facts, Work work) {
    set_up();
    if (mc::thread() < WORKERS) {
        work();
        if (mc::thread() == 0) *(volatile int*)(mc::arena() + STOP) = 1;
    } else if (mc::lane() == 0) {
        facts[mc::block() * FACTS + 6] = weights.flying ? stream(weights, tiles, MOST_STREAMED) : 0;
    }
    mc::warp_sync();
    mc::cluster_sync();
}

// ---- All blocks read the same ------------------------------------------------------------------------------

enum How { LOADS, COPIES, SHARED_COPIES };

// ``bytes`` from ``same``, ``rounds`` times; with ``apart`` all meet before each. Copies are of ``piece`` bytes, four on
// their way. sums [blocks, WORKERS].
template <int HOW>
MC_INLINE void read_same(const unsigned char* same, u32 bytes, int rounds, int apart, u32 piece, u32* counter,
                         const Weights& weights, u64* facts, u32* sums) {
    constexpr int AT_A_TIME = 8, STEP = WORKERS * 16;
    beside_weights(weights, TILES + 4 * (int)piece, facts, [&] {
        const u32 me = mc::thread();
        Bringer<HOW == SHARED_COPIES> ring(READ, FREE, TILES, piece, 4);
        Meeting all(counter);
        u32 sum = 0;
        all.arrive();
        all.wait();
        Times times;
        for (int round = 0; round < rounds; round++) {
            if (apart) {
                all.arrive();
                all.wait();
            }
            const u64 begin = cycles();
            if (HOW == LOADS) {
                for (u32 at = me * 16; at < bytes; at += AT_A_TIME * STEP) {
                    uint4 v[AT_A_TIME];
#pragma unroll
                    for (int i = 0; i < AT_A_TIME; i++) {
                        v[i] = at + i * STEP < bytes ? load((const uint4*)(same + at + i * STEP)) : uint4{0, 0, 0, 0};
                    }
#pragma unroll
                    for (int i = 0; i < AT_A_TIME; i++) sum += v[i].x + v[i].y + v[i].z + v[i].w;
                }
            } else if (me == 0) {
                for (u32 at = 0; at < bytes; at += piece) ring.bring(same + at, piece);
                if (apart) ring.end();
            }
            if (apart) mc::group_sync(1, WORKERS);
            times.read += cycles() - begin;
        }
        if (me == 0) ring.end();
        mc::group_sync(1, WORKERS);
        if (me == 0) times.leave(facts, 0);
        sums[mc::block() * WORKERS + me] = sum + ring.sum;
    });
}

// ---- Meetings ---------------------------------------------------------------------------------------------

// How all blocks tell each other what each has: by a counter, words of 8 bytes whose half is a tag, words of 16 whose quarter
// is; or by a counter before the norm of a vector, made into columns.
enum Form { COUNTER, WORDS_8, WORDS_16, NORMED };
constexpr int WIDTH = 4096;  // of the vector
constexpr int STAMPS = 32;  // rounds, the last ones, that leave when each block had written, was told and had read

MC_INLINE u32 value_of(u32 i, u32 round) { return i * 7 + round * 13; }

// Words ``words`` on of ``count`` are there when their tag is that of the round. Each thread asks for several at once,
// and again for those that were not there.
template <int FORM>
MC_INLINE u32 read_words(const u64* words, u32 count, u32 round) {
    constexpr int AT_A_TIME = 8, EACH = FORM == WORDS_8 ? 2 : 1;  // words of a load
    u32 wrong = 0;
    for (u32 first = mc::thread() * EACH; first < count; first += AT_A_TIME * WORKERS * EACH) {
        u64 v[AT_A_TIME][2];
        u32 missing = 0, left = 1u << 22;
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++) missing |= first + i * WORKERS * EACH < count ? 1u << i : 0;
        do {
#pragma unroll
            for (int i = 0; i < AT_A_TIME; i++) {
                if (!(missing >> i & 1)) continue;
                const u64* at = words + (size_t)(first + i * WORKERS * EACH) * (2 / EACH);
                if (FORM == WORDS_8) load(at, v[i]);
                else load_whole(at, v[i]);
            }
#pragma unroll
            for (int i = 0; i < AT_A_TIME; i++) {
                const bool there = v[i][1] >> 32 == round && (FORM == WORDS_16 || v[i][0] >> 32 == round);
                if (missing >> i & 1 && there) missing &= ~(1u << i);
            }
            if (missing) wait_for_words();
            if (!left--) give_up();
        } while (missing);
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++) {
            const u32 at = first + i * WORKERS * EACH;
            if (at >= count) continue;
            wrong += (u32)v[i][0] != value_of(at, round);
            wrong += (u32)v[i][1] != value_of(at + 1, round);
            if (FORM == WORDS_16) wrong += v[i][0] >> 32 != value_of(at + 2, round);
        }
    }
    return wrong;
}

MC_INLINE u32 read_values(const uint4* values, u32 count, u32 round) {
    constexpr int AT_A_TIME = 8;
    u32 wrong = 0;
    for (u32 first = mc::thread(); first < count; first += AT_A_TIME * WORKERS) {
        u32 v[AT_A_TIME][4];
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++) {
            if (first + i * WORKERS < count) mc::load_constant((const mc::f16*)(values + first + i * WORKERS), v[i]);
        }
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++) {
            const u32 at = first + i * WORKERS;
            if (at >= count) continue;
#pragma unroll
            for (int n = 0; n < 4; n++) wrong += v[i][n] != value_of(at + n, round);
        }
    }
    return wrong;
}

// By all workers: the block's part of ``count`` words, of 16 bytes but for WORDS_8.
template <int FORM>
MC_INLINE void write_words(u64* words, u32 count, u32 round) {
    const u32 begin = (u64)count * mc::block() / mc::blocks(), end = (u64)count * (mc::block() + 1) / mc::blocks();
    const u64 tag = (u64)round << 32;
    for (u32 i = begin + mc::thread(); i < end; i += WORKERS) {
        const u64 first = value_of(i, round), second = value_of(i + 1, round), third = value_of(i + 2, round);
        if (FORM == WORDS_8) {
            store(words + i, tag | first);
        } else if (FORM == WORDS_16) {
            store_whole(words + 2 * i, {third << 32 | first, tag | second});
        } else if (FORM == COUNTER) {
            *(uint4*)(words + 2 * i) = {value_of(i, round), value_of(i + 1, round), value_of(i + 2, round),
                                        value_of(i + 3, round)};
        } else {
            *(float4*)(words + 2 * i) = {(float)(i % 13 + 1), (float)round, 1.0f, 2.0f};
        }
    }
}

// ``rounds`` meetings at which each block gives its part of ``count`` words and reads all. Words lie twice, for
// rounds in turn: who has read all of one knows that all have read the one before. stamps [STAMPS, 3, blocks].
template <int FORM>
MC_INLINE void meet(u64* words, u32 count, int rounds, const mc::f16* gain, u32* counter, const Weights& weights,
                    u64* facts, u64* stamps, float* columns_left) {
    const int columns_bytes = FORM == NORMED ? 4 * WIDTH : 0;
    beside_weights(weights, TILES + columns_bytes, facts, [&] {
        const u32 me = mc::thread();
        Meeting all(counter);
        u32 wrong = 0;
        all.arrive();
        all.wait();
        Times times;
        for (int round = 1; round <= rounds; round++) {
            u64* own = words + (size_t)(round % 2) * count * (FORM == WORDS_8 ? 1 : 2);
            write_words<FORM>(own, count, round);
            u64 told = 0, told_ns = 0, begin, begin_ns;
            if (FORM == WORDS_8 || FORM == WORDS_16) {
                begin = cycles(), begin_ns = nanoseconds();
                wrong += read_words<FORM>(own, count, round);
                mc::group_sync(1, WORKERS);
            } else {
                all.arrive();
                begin = cycles(), begin_ns = nanoseconds();
                if (FORM == NORMED) {
                    const mc::Gains<mc::f16, WIDTH, WORKERS> gains(gain, me);
                    all.wait();
                    told = cycles(), told_ns = nanoseconds();
                    mc::put_normed_columns<mc::f16, 1, WIDTH, WORKERS>(
                        (mc::f16*)(mc::arena() + TILES), (const float*)own, gains, 1e-5f,
                        (float*)(mc::arena() + SQUARES), me, 1);
                } else {
                    all.wait();
                    told = cycles(), told_ns = nanoseconds();
                    wrong += read_values((const uint4*)own, count, round);
                    mc::group_sync(1, WORKERS);
                }
            }
            const u64 end = cycles(), end_ns = nanoseconds();
            times.told += told ? told - begin : 0;
            times.read += end - begin;
            const int stamp = round - 1 - (rounds - STAMPS);
            if (me == 0 && stamp >= 0) {
                u64* to = stamps + (size_t)stamp * 3 * mc::blocks() + mc::block();
                to[0] = begin_ns, to[mc::blocks()] = told_ns, to[2 * mc::blocks()] = end_ns;
            }
        }
        if (FORM == NORMED && me == 0) {
            columns_left[mc::block()] = mc::widen(*(const mc::f16*)(mc::arena() + TILES));
        }
        // What any worker found wrong: counted by the first of each warp.
        const float all_wrong = mc::warp_sum((float)wrong);
        u32* found = (u32*)(mc::arena() + SQUARES);
        mc::group_sync(1, WORKERS);
        if (mc::lane() == 0) found[mc::warp()] = (u32)all_wrong;
        mc::group_sync(1, WORKERS);
        if (me == 0) {
            u64 sum = 0;
            for (int w = 0; w < WORKERS / 32; w++) sum += found[w];
            times.leave(facts, sum);
        }
    });
}

}  // namespace rates_

#define RATES_WEIGHTS const unsigned char *weights, mc::u64 weight_bytes, mc::u32 tile, int flying
#define RATES_STREAM {weights, weight_bytes, tile, flying}

#define RATES_READ(NAME, HOW)                                                                                     \
    extern "C" __global__ void __launch_bounds__(rates_::THREADS, 1)                                              \
        NAME(const unsigned char* same, mc::u32 bytes, int rounds, int apart, mc::u32 piece, mc::u32* counter,    \
             RATES_WEIGHTS, mc::u64* facts, mc::u32* sums) {                                                      \
        rates_::read_same<rates_::HOW>(same, bytes, rounds, apart, piece, counter, RATES_STREAM, facts, sums);    \
    }                                                                                                             \
    MC_EXPORT(NAME)

RATES_READ(read_loads, LOADS)
RATES_READ(read_copies, COPIES)
RATES_READ(read_shared, SHARED_COPIES)

#define RATES_MEET(NAME, FORM)                                                                                    \
    extern "C" __global__ void __launch_bounds__(rates_::THREADS, 1)                                              \
        NAME(mc::u64* words, mc::u32 count, int rounds, const mc::f16* gain, mc::u32* counter, RATES_WEIGHTS,     \
             mc::u64* facts, mc::u64* stamps, float* columns) {                                                   \
        rates_::meet<rates_::FORM>(words, count, rounds, gain, counter, RATES_STREAM, facts, stamps, columns);    \
    }                                                                                                             \
    MC_EXPORT(NAME)

RATES_MEET(meet_counter, COUNTER)
RATES_MEET(meet_words_8, WORDS_8)
RATES_MEET(meet_words_16, WORDS_16)
RATES_MEET(meet_normed, NORMED)

// ``count`` tiles of weights for each block, and nothing else.
extern "C" __global__ void __launch_bounds__(32, 1)
    stream_alone(RATES_WEIGHTS, int count, mc::u64* facts) {
    rates_::set_up();
    if (mc::lane() != 0) return;
    rates_::Times times;
    const mc::u32 brought = rates_::stream(RATES_STREAM, rates_::TILES, count);
    times.leave(facts, 0);
    facts[mc::block() * rates_::FACTS + 6] = brought;
}
MC_EXPORT(stream_alone)

// What a launch costs.
extern "C" __global__ void __launch_bounds__(rates_::THREADS, 1) nothing(mc::u32* ran) {
    if (mc::thread() == 0) ran[mc::block()] = 1;
}
MC_EXPORT(nothing)
