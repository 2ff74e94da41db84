// What the tasks of a step are made of: runs of tasks that a block has, products of a few vectors with row groups
// that come through a ring, vectors as columns, records of attention that are merged, what GPUs give each other.
#pragma once

namespace mc {

// The tasks of a phase that a block runs, in order. Runs differ by one task at the most. Tasks times blocks have 32 bits:
// a division of 64 would be a call.
struct Run {
    int begin, end;

    MC_INLINE explicit Run(int tasks) {
        begin = (int)((u32)tasks * block() / blocks());
        end = (int)((u32)tasks * (block() + 1) / blocks());
    }

    // Those of a family, whose tasks are numbers ``from`` .. ``to`` of the phase.
    MC_INLINE int first(int from) const { return max(begin, from); }
    MC_INLINE int last(int to) const { return min(end, to); }
};

// The tasks of a phase that is dealt to clusters of N blocks, group by group, which a block runs: of each group
// ``group`` .. ``last_group`` the same run.
template <int N>
struct ClusterRun {
    int group, last_group, begin, end;

    MC_INLINE ClusterRun(int groups, int tasks) {
        group = groups * (int)cluster_index() / (int)clusters();
        last_group = groups * ((int)cluster_index() + 1) / (int)clusters();
        begin = tasks * (int)cluster_rank() / N;
        end = tasks * ((int)cluster_rank() + 1) / N;
    }

    MC_INLINE int first(int from) const { return max(begin, from); }
    MC_INLINE int last(int to) const { return min(end, to); }
};

// Rows of a batch whose tokens stand one behind the other in their request, up to MOST of them, which tasks attend for
// at once: their first rows, in shared memory, and how many such runs there are.
template <int MOST>
struct Neighbours {
    int* const rows;  // the number of runs, the first row of each, and behind these the number of rows

    MC_INLINE explicit Neighbours(void* at) : rows((int*)at) {}

    // By a warp, of ``count`` rows, of each of which it is known how many rows of its request stand ``ahead``: those
    // behind a row that begins a run, up to the next one that does, are of its request. The block meets behind it.
    MC_INLINE void find(const int* ahead, int count) const {
        int runs = 0;
        for (int first = 0; first < count; first += 32) {
            const int row = first + (int)lane();
            const bool begins = row < count && ahead[row] % MOST == 0;
            int begun = begins;  // of the rows up to the lane's
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const int before = shuffle(begun, max((int)lane() - step, 0));
                if ((int)lane() >= step) begun += before;
            }
            if (begins) rows[runs + begun] = row;
            runs += shuffle(begun, 31);
        }
        if (lane() == 0) rows[0] = runs, rows[1 + runs] = count;
    }

    MC_INLINE int count() const { return rows[0]; }
    MC_INLINE int first(int run) const { return rows[1 + run]; }
    MC_INLINE int last(int run) const { return rows[2 + run] - 1; }
};

// ---- The warp that brings ---------------------------------------------------------------------------
// Its loops are not unrolled: what a layer takes of all warps should find room in the cache of instructions.

// By one thread: ``count`` blocks of a row group, ``tile_blocks`` to an item, of which as many as ``flying``, a number
// or a pace, are on their way at once: more would delay meetings.
template <class T, int STAGES, class Flying>
MC_INLINE void bring_row_group(const Ring<STAGES>& ring, int& item, const T* from, int count, int tile_blocks,
                               const Flying& flying) {
#pragma unroll 1
    for (int at = 0; at < count; at += tile_blocks, item++) {
        const u32 bytes = min(tile_blocks, count - at) * 256 * (u32)sizeof(T);
        ring.limit(item, flying);
        ring.acquire(item, bytes);
        ring.fill(item, 0, from + (size_t)at * 256, bytes);
    }
}

// How the lanes of a warp copy tokens of tiles of TOKENS: OF caches side by side, 16 tokens together or those of a page
// where these are fewer. Lanes look up the pages of as many tiles as they have runs for at once, while those of the
// tiles before are copied: a look-up waits where tiles wait, and takes longer than memory does for one.
template <int PAGE, int OF, int TOKENS>
struct Pages {
    static constexpr int TOGETHER = PAGE < 16 ? PAGE : 16;
    static constexpr int STEP = 32 / OF * TOGETHER;  // tokens that lanes copy at once
    static constexpr int RUNS = (TOKENS + TOGETHER - 1) / TOGETHER;  // of a tile, each in one page
    static constexpr bool AHEAD = RUNS <= 32;
    static constexpr int AT_ONCE = AHEAD ? 32 / RUNS : 1;  // tiles
    const int* pages;
    int apart, end;  // from tile to tile, and behind the last token
    int tile, coming;  // of those whose pages are known, and the first token of those behind them
    int known, next;  // the page of the lane's run of a tile

    MC_INLINE Pages(const int* pages, int begin, int apart, int end)
        : pages(pages), apart(apart), end(end), tile(0), coming(begin), known(0), next(0) {
        look_up();
        known = next;
        look_up();
    }

    // The first of the lane's tokens in a tile, and of which cache they are.
    static MC_INLINE int first() { return (int)lane() / OF * TOGETHER; }
    static MC_INLINE int of() { return (int)lane() % OF; }

    // By all lanes: the page of token ``t`` of the tile, which begins with token ``begin``.
    MC_INLINE int page(int begin, int t) const {
        if (!AHEAD) return begin + t < end ? pages[(begin + t) / PAGE] : 0;
        return shuffle(known, tile * RUNS + min(t / TOGETHER, RUNS - 1));
    }

    // The next tile comes.
    MC_INLINE void turn() {
        if (++tile < AT_ONCE) return;
        tile = 0, known = next;
        look_up();
    }

    MC_INLINE void look_up() {
        if (!AHEAD) return;
        const int token = coming + (int)lane() / RUNS * apart + (int)lane() % RUNS * TOGETHER;
        next = token < end ? pages[token / PAGE] : 0;
        coming += AT_ONCE * apart;
    }
};

#ifdef MC_NHD
// Where a cache, [pages, PAGE, HEADS, LANES] of each layer, has tokens of a request.
template <int HEADS, int PAGE, int LANES>
struct CacheRows {
    static MC_INLINE size_t row(int page, int token, int head) {
        return (((size_t)page * PAGE + token % PAGE) * HEADS + head) * LANES;
    }

    static MC_INLINE size_t lane(const int* pages, int token, int head, int lane) {
        return row(pages[token / PAGE], token, head) + lane;
    }

    // By a warp: ``count`` tokens from ``begin`` on of ``cache`` number OF of those that are copied side by side, to
    // ``at`` of the place of ``item``. A row is turned by its token's position (Swizzle), so it comes in two parts.
    template <int OF, int TOKENS, class T, int STAGES>
    static MC_INLINE void bring(const Ring<STAGES>& ring, int item, int at, const T* cache,
                                const Pages<PAGE, OF, TOKENS>& pages, int head, int begin, int count) {
        constexpr int CHUNK = 8 * (int)sizeof(T), ROW = LANES * (int)sizeof(T);
        for (int first = 0; first < count; first += 32 / OF) {
            const int t = first + (int)mc::lane() / OF, page = pages.page(begin, t);
            if (t >= count) continue;
            const T* from = cache + row(page, begin + t, head);
            const int turned = Swizzle<LANES>::turns(begin + t) * CHUNK;
            ring.fill(item, at + t * ROW + turned, from, (u32)(ROW - turned));
            if (turned > 0) ring.fill(item, at + t * ROW, from + (ROW - turned) / (int)sizeof(T), (u32)turned);
        }
    }
};
#else
// Where a cache, [pages, HEADS, PAGE, LANES] of each layer, has tokens of a request. The chunks of a row are exchanged
// by the token's position (Swizzle).
template <int HEADS, int PAGE, int LANES>
struct CacheRows {
    static MC_INLINE size_t row(int page, int token, int head) {
        return (((size_t)page * HEADS + head) * PAGE + token % PAGE) * LANES;
    }

    static MC_INLINE size_t lane(const int* pages, int token, int head, int lane) {
        return row(pages[token / PAGE], token, head) + Swizzle<LANES>::lane(lane, token);
    }

    // By a warp: ``count`` tokens from ``begin`` on, a multiple of 16, of ``cache`` number OF of those that are copied
    // side by side, to ``at`` of the place of ``item``. The lanes of other caches have their own.
    template <int OF, int TOKENS, class T, int STAGES>
    static MC_INLINE void bring(const Ring<STAGES>& ring, int item, int at, const T* cache,
                                const Pages<PAGE, OF, TOKENS>& pages, int head, int begin, int count) {
        typedef Pages<PAGE, OF, TOKENS> P;
        for (int first = 0; first < count; first += P::STEP) {
            const int t = first + P::first(), page = pages.page(begin, t);
            if (t >= count) continue;
            ring.fill(item, at + t * LANES * (int)sizeof(T), cache + row(page, begin + t, head),
                      min(P::TOGETHER, count - t) * LANES * (u32)sizeof(T));
        }
    }
};
#endif

#ifdef MC_SCALES_BEHIND
// Where a cache, [pages, HEADS, PAGE, ROW] bytes of each layer, or [pages, PAGE, HEADS, ROW] (MC_NHD), has tokens of a
// request.
template <int HEADS, int PAGE, int LANES>
struct CodedCacheRows {
    typedef CodedRows<LANES> Rows;

    static MC_INLINE size_t row(int page, int token, int head) {
#ifdef MC_NHD
        const size_t row = ((size_t)page * PAGE + token % PAGE) * HEADS + head;
#else
        const size_t row = ((size_t)page * HEADS + head) * PAGE + token % PAGE;
#endif
        return row * Rows::ROW;
    }

    // By a warp: the row of the token at ``position``, whose lanes have another ``order`` there.
    template <class Order = InOrder>
    static MC_INLINE void store(u8* cache, const int* pages, int position, int head, const CodedRow<LANES>& coded,
                                Order order = Order()) {
        coded.store(cache + row(pages[position / PAGE], position, head), 0, position, order);
    }

    // By a warp: ``count`` tokens from ``begin`` on of ``cache`` number OF of those that are copied side by side, to
    // ``at`` of the place of ``item``.
    template <int OF, int TOKENS, int STAGES>
    static MC_INLINE void bring(const Ring<STAGES>& ring, int item, int at, const u8* cache,
                                const Pages<PAGE, OF, TOKENS>& pages, int head, int begin, int count) {
        for (int first = 0; first < count; first += 32 / OF) {
            const int t = first + (int)mc::lane() / OF, page = pages.page(begin, t);
            if (t >= count) continue;
            ring.fill(item, at + Rows::row(t), cache + row(page, begin + t, head), Rows::bytes(1));
        }
    }
};
#else
// Where a cache, [pages, HEADS, PAGE, LANES + 1] bytes of each layer, has tokens of a request.
template <int HEADS, int PAGE, int LANES>
struct CodedCacheRows {
    static_assert(PAGE % 16 == 0, "scales of sixteen tokens lie in one page");
    typedef CodedRows<LANES> Rows;

    // The sixteen among which a token is.
    static MC_INLINE size_t sixteen(int page, int token, int head) {
        return ((size_t)page * HEADS + head) * (PAGE * (LANES + 1)) + token % PAGE / 16 * Rows::SIXTEEN;
    }

    // By a warp: the row of the token at ``position``.
    static MC_INLINE void store(u8* cache, const int* pages, int position, int head, const CodedRow<LANES>& row) {
        row.store(cache + sixteen(pages[position / PAGE], position, head), position % 16, position);
    }

    // By a warp: ``count`` tokens from ``begin`` on, a multiple of 16, of ``cache`` number OF of those that are copied
    // side by side, to ``at`` of the place of ``item``.
    template <int OF, int TOKENS, int STAGES>
    static MC_INLINE void bring(const Ring<STAGES>& ring, int item, int at, const u8* cache,
                                const Pages<PAGE, OF, TOKENS>& pages, int head, int begin, int count) {
        typedef Pages<PAGE, OF, TOKENS> P;
        for (int first = 0; first < count; first += P::STEP) {
            const int t = first + P::first(), page = pages.page(begin, t);
            if (t >= count) continue;
            ring.fill(item, at + t / 16 * Rows::SIXTEEN, cache + sixteen(page, begin + t, head),
                      Rows::bytes(min(16, count - t)));
        }
    }
};
#endif

// ---- Products ---------------------------------------------------------------------------------------

// Sums of a row group, of ``count`` blocks, with all vectors: that of row me % 16 and vector me / 16, for the first 16
// BATCH callers. Groups take turns in the two halves of ``parts``, 2 x WARPS x 16 BATCH floats.
template <int WARPS, int BATCH, class T, int STAGES, class Coming = There>
MC_INLINE float multiply_row_group(const Ring<STAGES>& ring, int& item, const T* columns, float* parts, int& turn,
                                   int count, int tile_blocks, int me, Coming&& coming = There()) {
    typedef JoinedSums<T, BATCH, WARPS> Joined;
    RowSums<T, BATCH> sum;
    add_row_group<WARPS>(sum, ring, item, columns, count, tile_blocks, coming);
    float* part = parts + turn++ % 2 * (WARPS * Joined::COUNT);
    Joined::put(part, sum);
    group_sync(1, 32 * WARPS);  // the next group's sums go to the other half
    return me < Joined::COUNT ? Joined::all(part, me) : 0.0f;
}

// ---- Vectors as columns, by WORKERS threads that meet before anybody reads -----------------------------

// BATCH vectors of WIDTH floats, ``stride`` apart, of which a thread asks for several before the first one is needed.
template <int BATCH, int WIDTH, int WORKERS, class Of = Columns<BATCH>, class T, class Words = Plain>
MC_INLINE void put_plain_columns(T* columns, const float* from, int stride, int me, Words words = Words()) {
    typedef Filled<WIDTH, WORKERS> F;
    constexpr int AT_A_TIME = F::OWN <= Words::MOST ? F::OWN : F::OWN < 8 ? (F::OWN + 1) / 2 : 4;
    for (int b = 0; b < BATCH; b++) {
#pragma unroll
        for (int first = 0; first < F::OWN; first += AT_A_TIME) {
            float v[AT_A_TIME][8];
            F::load_own(from + (size_t)b * stride, first, me, v, words);
#pragma unroll
            for (int n = 0; n < AT_A_TIME; n++) {
                const int k = me + (first + n) * WORKERS;
                if (Of::TOGETHER || k < F::CHUNKS) Of::put(columns, b, k * 8, v[n], k < F::CHUNKS);
            }
        }
    }
    group_sync(1, WORKERS);
}

// BATCH vectors that lie in memory as columns do, rounded, and are copied in pieces: products begin once the first one
// is there.
template <int BATCH>
struct Copied {
    static constexpr int BLOCK = 16 * BATCH, PIECE = 512 / BATCH;  // values of a block; blocks of some 16 KiB
    static constexpr int MOST = 16;  // pieces
    Barrier* came;  // of each piece
    u32 parities;  // of these, a bit each
    int there, piece;  // blocks that the warp knows to be there, and the piece behind them

    MC_INLINE explicit Copied(void* barriers) : came((Barrier*)barriers), parities(~0u), there(0), piece(0) {}

    // By one thread, before init_fence() and a barrier of all.
    MC_INLINE void set_up() {
        for (int i = 0; i < MOST; i++) init(came + i, 1);
    }

    // By all workers, behind a barrier of theirs: all have needed all of the vectors before, which nobody reads any more.
    // ``columns`` are to have COUNT blocks of those that begin at ``from``.
    template <int COUNT, class T>
    MC_INLINE void ask(T* columns, const T* from, int me) {
        constexpr int PIECES = (COUNT + PIECE - 1) / PIECE;
        static_assert(PIECES <= MOST, "each piece has a barrier");
        parities ^= (1u << PIECES) - 1, there = piece = 0;
        if (me != 0) return;
        copy_fence(), global_copy_fence();
#pragma unroll 1
        for (int at = 0; at < COUNT; at += PIECE) {
            const u32 bytes = min(PIECE, COUNT - at) * BLOCK * (u32)sizeof(T);
            expect(came + at / PIECE, bytes);
            copy_in(columns + at * BLOCK, from + (size_t)at * BLOCK, bytes, came + at / PIECE);
        }
    }

    // By all warps: wait until columns are there for the tile of ``tile`` blocks of weights that begins with block
    // ``at`` of ``count``, of which each is multiplied by ``columns`` of these. Where a tile begins whose columns may
    // not be there, or ``count``.
    MC_INLINE int until(int at, int count, int tile, int columns = 1) {
        const int needed = min(at + tile, count) * columns;
#pragma unroll 1
        for (; there < needed; there += PIECE, piece++) wait(came + piece, parities >> piece & 1);
        return there >= count * columns ? count : at + (there / columns - at) / tile * tile;
    }
};

// How many of so many eights of values threads go through who put them as columns: those of whole warps, if asked.
template <class Of>
MC_INLINE constexpr int of_warps(int eights) {
    return Of::TOGETHER ? (eights + 31) / 32 * 32 : eights;
}

// Whatever value(vector, place) says, of WIDTH places.
template <int BATCH, int WIDTH, int WORKERS, class Of = Columns<BATCH>, class T, class Value>
MC_INLINE void put_columns_of(T* columns, int me, Value value) {
    constexpr int CHUNKS = (WIDTH + 15) / 16 * 2, ALL = BATCH * CHUNKS;
    for (int at = me; at < of_warps<Of>(ALL); at += WORKERS) {
        const int i = Of::TOGETHER ? min(at, ALL - 1) : at, b = i / CHUNKS, k = i % CHUNKS * 8;
        float v[8];
#pragma unroll
        for (int n = 0; n < 8; n++) v[n] = WIDTH % 16 == 0 || k + n < WIDTH ? value(b, k + n) : 0.0f;
        Of::put(columns, b, k, v, at < ALL);
    }
    group_sync(1, WORKERS);
}

// Attention of eight lanes of a head, from SPLITS records that are ``APART`` floats apart: HEAD sums of values, their
// weight, the highest score (times log2(e)) of the tokens of each split.
template <int SPLITS, int HEAD, int APART, class Words = Plain>
MC_INLINE void merge_attention(const float* record, int lane, float (&v)[8], Words words = Words()) {
    constexpr int AT_A_TIME = SPLITS < 4 ? SPLITS : 4;
    float top = -1e30f, total = 0.0f;
#pragma unroll
    for (int n = 0; n < 8; n++) v[n] = 0.0f;
    for (int first = 0; first < SPLITS; first += AT_A_TIME) {
        float part[AT_A_TIME][8];
        float2 of[AT_A_TIME];
        const float* from[AT_A_TIME];
#pragma unroll
        for (int j = 0; j < AT_A_TIME; j++) {
            from[j] = record + (size_t)(SPLITS % AT_A_TIME ? min(first + j, SPLITS - 1) : first + j) * APART;
        }
        words.records(from, lane, HEAD, part, of);
#pragma unroll
        for (int j = 0; j < AT_A_TIME; j++) {
            if (first + j >= SPLITS) of[j].x = 0.0f, of[j].y = -1e30f;
        }
        float next = top;
#pragma unroll
        for (int j = 0; j < AT_A_TIME; j++) next = larger(next, of[j].y);
        const float kept = power_of_two(top - next);
        top = next;
        total *= kept;
#pragma unroll
        for (int n = 0; n < 8; n++) v[n] *= kept;
#pragma unroll
        for (int j = 0; j < AT_A_TIME; j++) {
            const float keep = first + j < SPLITS ? power_of_two(of[j].y - top) : 0.0f;
            total = fused(of[j].x, keep, total);
#pragma unroll
            for (int n = 0; n < 8; n++) v[n] = fused(part[j][n], keep, v[n]);
        }
    }
#pragma unroll
    for (int n = 0; n < 8; n++) v[n] /= total;
}

// The same by a warp, whose lanes merge some of the records each; all have the result.
template <int SPLITS, int HEAD, int APART, class Words = Plain>
MC_INLINE void merge_attention_by_warp(const float* record, int first, float (&v)[8], Words words = Words()) {
    constexpr int OWN = (SPLITS + 31) / 32, AT_A_TIME = OWN < 4 ? OWN : 4;
    float top = -1e30f, total = 0.0f;
#pragma unroll
    for (int n = 0; n < 8; n++) v[n] = 0.0f;
#pragma unroll 1
    for (int begin = 0; begin < OWN; begin += AT_A_TIME) {
        float part[AT_A_TIME][8];
        float2 of[AT_A_TIME];
        const float* from[AT_A_TIME];
#pragma unroll
        for (int j = 0; j < AT_A_TIME; j++) {
            from[j] = record + (size_t)min((begin + j) * 32 + (int)lane(), SPLITS - 1) * APART;
        }
        words.records(from, first, HEAD, part, of);
#pragma unroll
        for (int j = 0; j < AT_A_TIME; j++) {
            if ((begin + j) * 32 + (int)lane() >= SPLITS) continue;  // the last record again
            const float next = larger(top, of[j].y), kept = power_of_two(top - next), keep = power_of_two(of[j].y - next);
            top = next;
            total = fused(total, kept, of[j].x * keep);
#pragma unroll
            for (int n = 0; n < 8; n++) v[n] = fused(v[n], kept, part[j][n] * keep);
        }
    }
    const float most = warp_max<32>(top), keep = power_of_two(top - most);
    total = warp_sum<32>(total * keep);
#pragma unroll
    for (int n = 0; n < 8; n++) v[n] = warp_sum<32>(v[n] * keep) / total;
}

// The attention of HEADS key heads, from records [HEADS, SPLITS, GROUP, RECORD] of each vector, ``apart`` floats from
// those of the next.
template <int BATCH, int HEADS, int SPLITS, int GROUP, int HEAD, int RECORD, int WORKERS, class Of = Columns<BATCH>, class T,
          class Words = Plain>
MC_INLINE void put_merged_columns(T* columns, const float* records, int apart, int me, Words words = Words()) {
    constexpr int CHUNKS = HEADS * GROUP * HEAD / 8, ALL = BATCH * CHUNKS;
#pragma unroll 1
    for (int at = me; at < of_warps<Of>(ALL); at += WORKERS) {
        const int i = Of::TOGETHER ? min(at, ALL - 1) : at, b = i / CHUNKS, head = i % CHUNKS / (HEAD / 8);
        const float* record = records + (size_t)b * apart + (head / GROUP * SPLITS * GROUP + head % GROUP) * RECORD;
        float v[8];
        merge_attention<SPLITS, HEAD, GROUP * RECORD>(record, i % (HEAD / 8) * 8, v, words);
        Of::put(columns, b, i % CHUNKS * 8, v, at < ALL);
    }
    group_sync(1, WORKERS);
}

// ---- Values of a task in shared memory, by WORKERS threads --------------------------------------------

// COUNT words of scratch, of which at(place) says where they are and tag(place) with which tag; all that a thread has
// are asked for before one is waited for. Nothing of them is read before the workers have met.
template <int BITS, int COUNT, int WORKERS, bool GPUS = false, class At, class Tag>
MC_INLINE void fetch(float* to, int me, At at, Tag tag) {
    constexpr int OWN = (COUNT + WORKERS - 1) / WORKERS;
    const float* from[OWN];
    u32 tags[OWN], wanted = 0;
    float came[OWN];
#pragma unroll
    for (int n = 0; n < OWN; n++) {
        const int place = me + n * WORKERS, own = min(place, COUNT - 1);
        from[n] = at(own), tags[n] = tag(own);
        wanted |= (u32)(place < COUNT) << n;
    }
    need<BITS, GPUS>(from, tags, wanted, came);
#pragma unroll
    for (int n = 0; n < OWN; n++) {
        if (wanted >> n & 1) to[me + n * WORKERS] = came[n];
    }
}

// to[row] = the combination of value(row, place) over ``count`` places, of ``rows`` rows. ``parts`` holds rows x WORKERS
// / 32 floats.
template <class Operator, int WORKERS, class Value>
MC_INLINE void combine_rows(float* to, float* parts, int rows, int count, int me, Value value) {
    constexpr int WARPS = WORKERS / 32;
#pragma unroll 1
    for (int row = 0; row < rows; row++) {
        float v = Operator::start();
#pragma unroll 1
        for (int i = me; i < count; i += WORKERS) v = Operator::combine(v, value(row, i));
#pragma unroll
        for (int mask = 16; mask; mask >>= 1) v = Operator::combine(v, shuffle_xor(v, mask));
        if (lane() == 0) parts[row * WARPS + me / 32] = v;
    }
    group_sync(1, WORKERS);
    for (int row = me; row < rows; row += WORKERS) {
        float v = parts[row * WARPS];
        for (int w = 1; w < WARPS; w++) v = Operator::combine(v, parts[row * WARPS + w]);
        to[row] = v;
    }
    group_sync(1, WORKERS);
}

// a = both softmaxes, of ``rows`` rows of records [LANES + 2]: weighted values, their weight, the largest score, with
// DOUBLING times log2(e). other(row, lane) is the second one's.
template <int LANES, bool DOUBLING, int WORKERS, class Other>
MC_INLINE void merge_records(float* a, int stride, int rows, int me, Other other) {
    for (int first = 0; first < rows; first += WORKERS / 32) {
        const int row = first + me / 32;
        if (row < rows) {
            float* own = a + row * stride;
            const float mine = own[LANES + 1], theirs = other(row, LANES + 1), top = larger(mine, theirs);
            constexpr float FACTOR = DOUBLING ? 1.0f : LOG2E;
            const float keep = power_of_two((mine - top) * FACTOR), add = power_of_two((theirs - top) * FACTOR);
            warp_sync();
            for (int i = (int)lane(); i <= LANES; i += 32) own[i] = fused(own[i], keep, other(row, i) * add);
            if (lane() == 0) own[LANES + 1] = top;
        }
    }
    group_sync(1, WORKERS);
}

// ---- Several GPUs, each of which runs the same tasks on memory of its own --------------------------------

// All blocks of all GPUs meet, in two halves, by one thread of each behind barriers of its block. The first half:
// ``met`` counts the blocks of this GPU, and the one with which there are ``target`` tells each of GPUS, whose counters
// of arrivals are at ``told``. The second half is gpu_wait(): a meeting adds GPUS to each counter.
template <int GPUS>
MC_INLINE void gpus_arrive(u32* met, u32 target, u32* const* told) {
    if (!grid_arrive_last(met, target)) return;
#pragma unroll
    for (int gpu = 0; gpu < GPUS; gpu++) gpu_arrive(told[gpu]);
}

// An element of what all GPUs have is given to each, which may read it once they have met: by the multicast address of
// their memory, or where it is on each.
template <int GPUS>
MC_INLINE void gpus_put(float* all, size_t at, float v) { store_to_gpus(all + at, v); }

template <int GPUS>
MC_INLINE void gpus_put(float* const* each, size_t at, float v) {
#pragma unroll
    for (int gpu = 0; gpu < GPUS; gpu++) store_to_gpu(each[gpu] + at, v);
}

}  // namespace mc
