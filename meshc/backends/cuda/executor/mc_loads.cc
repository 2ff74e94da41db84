// mc_loads.cc: the lint of banks, and loads of matrices.
#include "mc_loads.h"

#include "mc_races.h"

#include <algorithm>
#include <vector>

namespace mc {

void keep_load(const void* p) {
    if (!in_arena(p, 16)) return;
    Warp& w = here().warps[warp()];
    w.loads.resize(WARP);
    w.loads[lane()].push_back((u32)((const unsigned char*)p - arena()));
}

// Cycles of 16-byte loads of a warp from 32 banks of four bytes: eight lanes at a time, one cycle for
// each further word that a bank must give.
void count_conflicts(Warp& w) {
    if (w.loads.empty()) return;
    size_t count = w.loads[0].size();
    for (const auto& lane : w.loads) count = std::min(count, lane.size());
    for (size_t n = 0; n < count; n++) {
        for (int quarter = 0; quarter < 4; quarter++) {
            u32 words[32][32], held[32] = {}, most = 0;
            for (int lane = 8 * quarter; lane < 8 * quarter + 8; lane++) {
                for (u32 part = 0; part < 4; part++) {
                    const u32 word = w.loads[lane][n] / 4 + part;
                    const u32* bank = words[word % 32];
                    u32& count = held[word % 32];
                    u32 known = 0;
                    while (known < count && bank[known] != word) known++;
                    if (known == count) words[word % 32][count++] = word;
                    most = std::max(most, count);
                }
            }
            machine.counts.shared_loads++;
            machine.counts.shared_load_cycles += most;
        }
    }
    for (auto& lane : w.loads) lane.clear();
}

void load_rows(u32 (&words)[4], const void* row, bool transposed, Site site) {
    if ((uintptr_t)row % 16) fail("load_matrices of a row that is no multiple of 16");
    if (!in_arena(row, 16)) fail("load_matrices of a row outside of shared memory");
    log_load(row);
    MC_RACE(watch(row, 16, false));
    const u32 half = gather_warp(
        site,
        [&](Warp& w, u32 h) {
            const u16* values = (const u16*)row;
            for (int i = 0; i < 8; i++) w.rows[h][lane()][i] = values[i];
        },
        [](Warp&, u32) {});
    const auto& rows = here().warps[warp()].rows[half];
    const u32 major = lane() / 4, minor = lane() % 4 * 2;
    for (u32 m = 0; m < 4; m++) {
        const u16 low = transposed ? rows[8 * m + minor][major] : rows[8 * m + major][minor];
        const u16 high = transposed ? rows[8 * m + minor + 1][major] : rows[8 * m + major][minor + 1];
        words[m] = low | (u32)high << 16;
    }
}

}  // namespace mc
