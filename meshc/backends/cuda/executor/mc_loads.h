// mc_loads.h: wide loads with the lint of their banks, and fragments, for the executor.
#pragma once

#include <cstring>

#include "mc_barriers.h"

namespace mc {

// Keeps where this lane loads 16 bytes of shared memory, for the lint.
void keep_load(const void* p);

inline void log_load(const void* p) {
    if (machine.launch.lint) keep_load(p);
}

template <class T>
inline void load8(const T* p, float* to) {
    if ((uintptr_t)p % 16) fail("load8 of an address that is no multiple of 16");
    log_load(p);
    for (int i = 0; i < 8; i++) to[i] = widen(p[i]);
}

template <class T>
inline void widen8(const u32 (&words)[4], float* to, T) {
    for (int i = 0; i < 8; i++) to[i] = widen(T{(u16)(words[i / 2] >> i % 2 * 16)});
}

// ---- Fragments of tensor cores --------------------------------------------------------------------

template <class T>
inline uint4 pack8(const float* from) {
    uint4 all;
    for (int i = 0; i < 8; i++) ((T*)&all)[i] = narrow<T>(from[i]);
    return all;
}

template <class T>
inline void store8(T* p, const float* from) {
    if ((uintptr_t)p % 16) fail("store8 to an address that is no multiple of 16");
    for (int i = 0; i < 8; i++) p[i] = narrow<T>(from[i]);
}

template <class T, int N>
inline void load_fragment(const T* p, u32 (&words)[N]) {
    if ((uintptr_t)p % sizeof words) fail("load_fragment of an address that is no multiple of its size");
    if (N == 4) log_load(p);
    if (N == 4) here().warps[warp()].fenced[lane()] = false;
    for (int i = 0; i < N; i++) words[i] = p[2 * i].bits | (u32)p[2 * i + 1].bits << 16;
}

template <class T>
inline void load_constant(const T* p, u32 (&words)[4]) {
    load_fragment(p, words);
}

inline float load_constant(const float* p) { return *p; }
inline void prefetch(const void*, int, int) {}

// Every lane deposits its row; then each picks two values of each matrix.
void load_rows(u32 (&words)[4], const void* row, bool transposed, Site site);

inline void load_matrices(u32 (&words)[4], const void* row, Site site = Site::current()) {
    load_rows(words, row, false, site);
}

inline void load_matrices_transposed(u32 (&words)[4], const void* row, Site site = Site::current()) {
    load_rows(words, row, true, site);
}

template <class T>
inline void multiply_16x8x16(float* c, const u32* a, const u32* b, T, Site site = Site::current()) {
    const auto half = [](u32 word, int upper) {
        return widen(T{(u16)(upper ? word >> 16 : word)});
    };
    gather_warp(
        site,
        [&](Warp& w, u32 h) {
            for (int i = 0; i < 4; i++) w.words[h][lane()][i] = a[i];
            for (int i = 0; i < 2; i++) w.words[h][lane()][4 + i] = b[i];
            for (int i = 0; i < 4; i++) w.sums[lane()][i] = c[i];
        },
        [&](Warp& w, u32 h) {
            float left[16][16], right[16][8], sums[16][8];
            for (int l = 0; l < WARP; l++) {
                const int group = l / 4, place = l % 4;
                for (int i = 0; i < 4; i++) {
                    for (int upper = 0; upper < 2; upper++) {
                        left[group + 8 * (i & 1)][2 * place + upper + 8 * (i >> 1)] =
                            half(w.words[h][l][i], upper);
                    }
                    sums[group + 8 * (i >> 1)][2 * place + (i & 1)] = w.sums[l][i];
                }
                for (int i = 0; i < 2; i++) {
                    for (int upper = 0; upper < 2; upper++) {
                        right[2 * place + upper + 8 * i][group] = half(w.words[h][l][4 + i], upper);
                    }
                }
            }
            for (int i = 0; i < 16; i++) {
                for (int k = 0; k < 16; k++) {
                    const float factor = left[i][k];
                    for (int j = 0; j < 8; j++) sums[i][j] += factor * right[k][j];
                }
            }
            for (int l = 0; l < WARP; l++) {
                for (int i = 0; i < 4; i++) {
                    w.sums[l][i] = sums[l / 4 + 8 * (i >> 1)][2 * (l % 4) + (i & 1)];
                }
            }
        });
    memcpy(c, here().warps[warp()].sums[lane()], 4 * sizeof(float));
}

// Of whole numbers: four bytes of a row or column to a word, without a sign on the left and with one on the right.
inline void multiply_16x8x32(int* c, const u32* a, const u32* b, Site site = Site::current()) {
    const u32 half = gather_warp(
        site,
        [&](Warp& w, u32 h) {
            for (int i = 0; i < 4; i++) w.words[h][lane()][i] = a[i];
            for (int i = 0; i < 2; i++) w.words[h][lane()][4 + i] = b[i];
        },
        [](Warp&, u32) {});
    const auto& words = here().warps[warp()].words[half];
    for (int i = 0; i < 4; i++) {
        const u32 row = lane() / 4 * 4, column = (lane() % 4 * 2 + (i & 1)) * 4;
        for (int k = 0; k < 32; k++) {
            const u32 left = words[row + k % 16 / 4][(i >> 1) + k / 16 * 2] >> k % 4 * 8 & 0xff;
            const u32 right = words[column + k % 16 / 4][4 + k / 16] >> k % 4 * 8 & 0xff;
            c[i] += (int)left * (int)(int8_t)right;
        }
    }
}

}  // namespace mc
