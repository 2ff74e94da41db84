// Products of a few vectors with rows of a matrix that come through shared memory.
//
// A row is read by all workers of a block in order, eight values per thread and step, so that loads
// have no bank conflicts whatever the length of the row; each thread keeps its part of the vectors.
#pragma once

namespace mc {

constexpr int least_power_of_two(int n) { return n <= 1 ? 1 : 2 * least_power_of_two((n + 1) / 2); }

// The parts of BATCH vectors that one of WORKERS threads multiplies: chunks of eight values, worker i
// having chunks i, i + WORKERS, ... of CHUNKS. Up to 64 values stay in registers; beyond that the
// vectors are read from shared memory each time.
template <int BATCH, int CHUNKS, int WORKERS>
struct Slice {
    static constexpr int OWN = (CHUNKS + WORKERS - 1) / WORKERS;
    static constexpr bool HELD = BATCH * OWN * 8 <= 64;
    float held[HELD ? BATCH * OWN * 8 : 1];
    const float* vectors;
    u32 me;

    // ``vectors`` is [BATCH, 8 CHUNKS] in shared memory, on a 16-byte address.
    MC_INLINE Slice(const float* vectors, u32 me) : vectors(vectors), me(me) {
        if (HELD) {
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
#pragma unroll
                for (int n = 0; n < OWN; n++) {
#pragma unroll
                    for (int i = 0; i < 8; i++) held[(b * OWN + n) * 8 + i] = value(b, n, i);
                }
            }
        }
    }

    MC_INLINE bool has(int n) const { return CHUNKS % WORKERS == 0 || me + n * WORKERS < CHUNKS; }

    MC_INLINE float value(int b, int n, int i) const {
        return has(n) ? vectors[(b * CHUNKS + me + n * WORKERS) * 8 + i] : 0.0f;
    }

    // Adds this thread's products with a row to ``sums[b * STRIDE]``.
    template <class T, int STRIDE = 1>
    MC_INLINE void add_products(const T* row, float* sums) const {
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            if (!has(n)) break;
            float w[8];
            load8(row + (me + n * WORKERS) * 8, w);
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                if (HELD) {
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        sums[b * STRIDE] =
                            fused(w[i], held[HELD ? (b * OWN + n) * 8 + i : 0], sums[b * STRIDE]);
                    }
                } else {
                    const float4* v = (const float4*)(vectors + (b * CHUNKS + me + n * WORKERS) * 8);
                    const float4 low = v[0], high = v[1];
                    float s = sums[b * STRIDE];
                    s = fused(w[0], low.x, s);
                    s = fused(w[1], low.y, s);
                    s = fused(w[2], low.z, s);
                    s = fused(w[3], low.w, s);
                    s = fused(w[4], high.x, s);
                    s = fused(w[5], high.y, s);
                    s = fused(w[6], high.z, s);
                    sums[b * STRIDE] = fused(w[7], high.w, s);
                }
            }
        }
    }
};

// RMSNorm of BATCH vectors of 8 CHUNKS floats from global memory, times a gain, into shared memory.
// ``squares`` holds BATCH x WORKERS / 32 floats of shared memory. Called by WORKERS threads that share
// group barrier ``group``; ``to`` is complete when it returns.
template <class T, int BATCH, int CHUNKS, int WORKERS>
MC_INLINE void rms_norm(float* to, const float* from, const T* gain, float epsilon, float* squares,
                        u32 me, u32 group) {
    constexpr int WARPS = WORKERS / 32;
    for (int b = 0; b < BATCH; b++) {
        float sum = 0.0f;
        for (int chunk = me; chunk < CHUNKS; chunk += WORKERS) {
            for (int half = 0; half < 2; half++) {
                const int at = (b * CHUNKS + chunk) * 8 + 4 * half;
                const float4 v = *(const float4*)(from + at);
                sum = fused(v.x, v.x, sum);
                sum = fused(v.y, v.y, sum);
                sum = fused(v.z, v.z, sum);
                sum = fused(v.w, v.w, sum);
                *(float4*)(to + at) = v;
            }
        }
        sum = warp_sum(sum);
        if (lane() == 0) squares[b * WARPS + me / 32] = sum;
    }
    group_sync(group, WORKERS);
    for (int b = 0; b < BATCH; b++) {
        float sum = 0.0f;
        for (int w = 0; w < WARPS; w++) sum += squares[b * WARPS + w];
        const float scale = inverse_root(sum / (float)(8 * CHUNKS) + epsilon);
        for (int chunk = me; chunk < CHUNKS; chunk += WORKERS) {
            float g[8];
            load8(gain + chunk * 8, g);
            float* v = to + (b * CHUNKS + chunk) * 8;
            for (int i = 0; i < 8; i++) v[i] = v[i] * scale * g[i];
        }
    }
    group_sync(group, WORKERS);
}

}  // namespace mc
