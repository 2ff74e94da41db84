// chunk_head: RMSNorm and the product with a matrix.
//
// Written by meshc. Every block has a run of the matrix's row groups, which one warp brings through a
// ring of tiles; eight others multiply, on tensor cores.
#include "mc.cuh"

namespace chunk_head_ {

typedef mc::f16 T;

constexpr int BATCH = 1;
constexpr int WIDTH = 128;  // values of a row
constexpr int ROWS = 200;
constexpr int GROUPS = (ROWS + 15) / 16;
constexpr int BLOCKS = (WIDTH + 15) / 16;  // of 16 x 16 values in a row group

constexpr int CLUSTER = 1;
constexpr int WARPS = 8;
constexpr int WORKERS = 32 * WARPS;
constexpr int THREADS = WORKERS + 32;
constexpr int TILE_BLOCKS = 8;

// ---- Shared memory, 26240 bytes ---------------------------------------------------------------
constexpr int TILE_BYTES = TILE_BLOCKS * 256 * (int)sizeof(T);
constexpr int STAGES = 6;
constexpr int RING = 0;
constexpr int BARRIERS = 24576;
constexpr int PARTS = 24704;  // sums of the warps
constexpr int COLUMNS = 25728;  // inputs

typedef mc::JoinedSums<T, BATCH, WARPS> Joined;

}  // namespace chunk_head_

// input [count, WIDTH], of which the last row is taken, normed with gain [WIDTH]. count [1]. matrix [GROUPS, BLOCKS, 32, 8].
// output [BATCH, ROWS].
extern "C" __global__ void __cluster_dims__(chunk_head_::CLUSTER, 1, 1)
    __launch_bounds__(chunk_head_::THREADS, 1)
    chunk_head(const float* input, const int* count,
        const chunk_head_::T* __restrict__ gain,
        const chunk_head_::T* __restrict__ matrix,
        float* output) {
    using namespace chunk_head_;
    unsigned char* arena = mc::arena();
    mc::Ring<STAGES> ring(arena + BARRIERS, arena + RING, TILE_BYTES);
    const int me = mc::thread(), warp = mc::warp();
    const int begin = (int)((long long)GROUPS * mc::cluster_index() / mc::clusters());
    const int end = (int)((long long)GROUPS * (mc::cluster_index() + 1) / mc::clusters());
    constexpr int first = 0, own = BLOCKS;

    if (me == 0) {
        ring.set_up(WARPS);
        mc::init_fence();
    }
    mc::block_sync();  // this block's mbarriers are ready

    if (warp == WARPS) {
        // The matrix does not change, so its tiles need not wait for the grid before.
        if (mc::lane() == 0) {
            int item = 0;
            for (int group = begin; group < end; group++) {
                mc::bring_blocks(ring, item, matrix + ((size_t)group * BLOCKS + first) * 256, own, TILE_BLOCKS);
            }
        }
    } else {
        const mc::Gains<T, WIDTH, WORKERS> gains(gain, me);  // do not change in a step
        mc::wait_for_previous_grid();
        mc::let_next_grid_start();
        input += (size_t)(count[0] - 1) * WIDTH;
        float* parts = (float*)(arena + PARTS);
        T* columns = (T*)(arena + COLUMNS);
        mc::put_normed_columns<T, BATCH, WIDTH, WORKERS>(columns, input, gains, 1e-05f, parts, me, 1,
                                                         16 * first, 16 * (first + own));

        // What becomes of the complete sums of a row group: ``sum(16 vector + row)``.
        const auto finish = [&](int group, auto sum) {
            for (int n = me; n < Joined::COUNT; n += WORKERS) {
                const int row = group * 16 + n % 16, at = n / 16 * ROWS + row;
                if (row >= ROWS) continue;
                const float all = sum(n);
                output[at] = all;
            }
        };

        int item = 0;
        for (int group = begin; group < end; group++) {
            mc::RowSums<T, BATCH> sum;
            mc::add_row_group<WARPS>(sum, ring, item, columns, own, TILE_BLOCKS);
            float* part = parts + (group - begin) % 2 * (WARPS * Joined::COUNT);
            Joined::put(part, sum);
            mc::group_sync(1, WORKERS);  // the next group's sums go to the other half
            finish(group, [&](int n) { return Joined::all(part, n); });
        }
    }
}
MC_EXPORT(chunk_head)
