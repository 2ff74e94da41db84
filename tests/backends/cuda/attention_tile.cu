// Attention of many queries over cached tokens that come through a ring of tiles, then over new ones.
#include "mc.cuh"

// The shape is defined in front.
typedef mc::THE_TYPE T;
constexpr int QUERIES = THE_QUERIES, KEY_LANES = THE_KEY_LANES, VALUE_LANES = THE_VALUE_LANES;
constexpr int TOKENS = THE_TOKENS, VALUE_ROW = THE_VALUE_ROW;
typedef mc::TileAttention<T, QUERIES, KEY_LANES, VALUE_LANES, TOKENS, 8, VALUE_ROW, THE_TWICE> Tiles;

constexpr int STAGES = 2, THREADS = Tiles::WORKERS + 32;
constexpr bool LATENT = VALUE_ROW != VALUE_LANES;  // values are lanes of the keys
constexpr int ROW = LATENT ? KEY_LANES : KEY_LANES + VALUE_LANES;
constexpr int TILE_BYTES = TOKENS * ROW * (int)sizeof(T);
constexpr int BARRIERS = 0, RING = 128;
constexpr int ASKED = RING + STAGES * TILE_BYTES, WORK = ASKED + Tiles::QUERY_BYTES;
constexpr int NEW = WORK + Tiles::WORK_BYTES + 128;  // behind memory that is never written
constexpr int ATTENDED = NEW + 16 * ROW * (int)sizeof(T);
constexpr int MOST = ATTENDED + 4 * QUERIES * VALUE_LANES, SUMS = MOST + 4 * QUERIES;

// queries [QUERIES, KEY_LANES]; keys and values as a cache holds them, swizzled; fresh [new, ROW] in
// order of lanes. Query i belongs to new token i / per_token, and sees the tokens up to that one, of
// ``window`` if it is not 0. Writes attended [QUERIES, VALUE_LANES], most and weights [QUERIES].
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_tile(const float* queries, const T* keys, const T* values, const T* fresh, int cached,
                   int added, int per_token, int window, float scale, float* attended, float* most,
                   float* weights) {
    unsigned char* arena = mc::arena();
    mc::Ring<STAGES> ring(arena + BARRIERS, arena + RING, TILE_BYTES);
    const int me = mc::thread();
    if (me == 0) {
        ring.set_up(8);
        mc::init_fence();
    }
    mc::cluster_sync();
    if (me >= Tiles::WORKERS) {
        if (mc::lane() != 0) return;
        for (int begin = 0, item = 0; begin < cached; begin += TOKENS, item++) {
            const int count = min(TOKENS, cached - begin);
            const mc::u32 bytes = count * KEY_LANES * (int)sizeof(T);
            const mc::u32 more = LATENT ? 0 : count * VALUE_LANES * (int)sizeof(T);
            ring.acquire(item, bytes + more);
            ring.fill(item, 0, keys + (size_t)begin * KEY_LANES, bytes);
            if (LATENT) continue;
            ring.fill(item, TOKENS * KEY_LANES * (int)sizeof(T), values + (size_t)begin * VALUE_LANES, more);
        }
        return;
    }
    T* asked = (T*)(arena + ASKED);
#if THE_TWICE
    Tiles::put_lanes<0, VALUE_LANES>(asked, queries, KEY_LANES, me);
    if (KEY_LANES > VALUE_LANES) {
        Tiles::put_lanes<VALUE_LANES, KEY_LANES - VALUE_LANES>(asked, queries + VALUE_LANES, KEY_LANES, me);
    }
    Tiles::put_zeros(asked, me);
#else
    Tiles::put_queries(asked, queries, me);
#endif
    T* own = (T*)(arena + NEW);
    for (int i = me; i < added * ROW; i += Tiles::WORKERS) {
        const int token = i / ROW, lane = i % ROW;
        if (lane < KEY_LANES) {
            own[token * KEY_LANES + mc::Swizzle<KEY_LANES>::lane(lane, cached + token)] = fresh[i];
        } else {
            const int at = mc::Swizzle<VALUE_ROW>::lane(lane - KEY_LANES, cached + token);
            own[16 * KEY_LANES + token * VALUE_ROW + at] = fresh[i];
        }
    }
    mc::group_sync(1, Tiles::WORKERS);
    const auto seen = [=](int query, int token) {
        const int position = cached + query / per_token;
        return token <= position && (!window || token > position - window);
    };
    Tiles tiles(asked, arena + WORK, me, 1);
    for (int begin = 0, item = 0; begin < cached; begin += TOKENS, item++) {
        const T* tile = (const T*)ring.ready(item);
        tiles.add(tile, LATENT ? tile : tile + TOKENS * KEY_LANES, begin, min(TOKENS, cached - begin),
                  scale, seen);
        ring.release(item);
    }
    if (added) tiles.add(own, LATENT ? own : own + 16 * KEY_LANES, cached, added, scale, seen);
    float* found = (float*)(arena + ATTENDED);
    tiles.finish(found, (float*)(arena + MOST), (float*)(arena + SUMS));
    for (int i = me; i < QUERIES * VALUE_LANES; i += Tiles::WORKERS) attended[i] = found[i];
    for (int i = me; i < QUERIES; i += Tiles::WORKERS) {
        most[i] = ((const float*)(arena + MOST))[i];
        weights[i] = ((const float*)(arena + SUMS))[i];
    }
}
MC_EXPORT(attention_tile)
