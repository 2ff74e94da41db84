// What depends on how many tokens requests have: pages of the cached ones and angles of the new one, looked
// up by the lanes of a warp together, before they are needed.
#pragma once

namespace mc {

// The lengths of BATCH requests, one of which each lane of a warp reads.
template <int BATCH>
struct Lengths {
    int own;

    MC_INLINE explicit Lengths(const int* cached) : own(lane() < BATCH ? cached[lane()] : 0) {}

    // Of request ``b``, 0 behind the last one. All lanes ask, for any.
    MC_INLINE int operator[](int b) const { return shuffle(own, b); }
};

// The pages of a request's tokens, in the order of the tokens. One copy brings a *run* of them, RUNS of
// which are a page. The lanes of a warp read entries of 32 runs at once, and those of the next 32 while
// these are used: only the first ones are waited for.
template <int RUNS>
struct PageLookup {
    const int* pages;
    int first, end;  // runs of the request
    int held, next;  // a lane's entries of 32 runs and of the next 32

    MC_INLINE PageLookup(const int* pages, int first, int end)
        : pages(pages), first(first), end(end), held(0), next(load(0)) {}

    // The page of run ``first + n``. All lanes ask for 0, 1, 2 .. in turn.
    MC_INLINE int page(int n) {
        if (n % 32 == 0) {
            held = next;
            next = load(n + 32);
        }
        return shuffle(held, n % 32);
    }

private:
    MC_INLINE int load(int n) const {
        const int run = first + n + lane();
        return run < end ? pages[run / RUNS] : 0;
    }
};

// By the producer's warp: tokens of a request through a ring, TILE_TOKENS to an item, from tile ``tile``
// on, up to token ``end``. Its first lane calls fill(token, page, token of the tile, tokens) for each
// run, which starts copies of ``token_bytes`` for each token. TILE_TOKENS and PAGE are powers of two.
template <int TILE_TOKENS, int PAGE, int STAGES, class Fill>
MC_INLINE void bring_tokens(const Ring<STAGES>& ring, int& item, const int* pages, int tile, int tiles,
                            int end, int token_bytes, Fill fill) {
    constexpr int RUN = TILE_TOKENS < PAGE ? TILE_TOKENS : PAGE;
    PageLookup<PAGE / RUN> lookup(pages, tile * (TILE_TOKENS / RUN), (end + RUN - 1) / RUN);
    int run = 0;
    for (int i = 0; i < tiles; i++, item++) {
        const int begin = (tile + i) * TILE_TOKENS, count = min(TILE_TOKENS, end - begin);
        if (lane() == 0) ring.acquire(item, count * token_bytes);
        for (int t = 0; t < count; t += RUN, run++) {
            const int page = lookup.page(run);
            if (lane() == 0) fill(begin + t, page, t, min(RUN, count - t));
        }
    }
}

// Cosines and sines of the angles by which WORKERS threads rotate pairs of lanes, PAIRS for each request:
// thread ``me`` has number me, me + WORKERS .. of all. Tables have HALF angles for each position, of which
// a head, or a block's part of one, has SPAN. Read ahead where a thread has few.
template <int BATCH, int PAIRS, int SPAN, int HALF, int WORKERS>
struct Angles {
    static constexpr int OWN = (BATCH * PAIRS + WORKERS - 1) / WORKERS;
    static constexpr bool HELD = OWN <= 4;  // in registers
    const float *cosines, *sines;
    float held[HELD ? OWN : 1][2];

    MC_INLINE Angles(const float* cosines, const float* sines, const Lengths<BATCH>& lengths, int me)
        : cosines(cosines), sines(sines) {
#pragma unroll
        for (int n = 0; HELD && n < OWN; n++) {
            const int i = me + n * WORKERS;
            load(i, lengths[request(i)], held[n]);
        }
    }

    // Whose pair ``i`` is; behind the last pair those of requests without tokens.
    static MC_INLINE int request(int i) { return i / PAIRS; }

    // Cosine and sine of the thread's ``n``th pair, number ``i`` of all, at position ``length``.
    MC_INLINE void get(int n, int i, int length, float (&angle)[2]) const {
        if (!HELD) return load(i, length, angle);
        const int own = HELD && OWN > 1 ? n : 0;
        angle[0] = held[own][0];
        angle[1] = held[own][1];
    }

private:
    MC_INLINE void load(int i, int length, float (&angle)[2]) const {
        const size_t at = (size_t)length * HALF + i % SPAN;
        angle[0] = load_constant(cosines + at);
        angle[1] = load_constant(sines + at);
    }
};

}  // namespace mc
