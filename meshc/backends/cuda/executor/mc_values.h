// mc_values.h: words of CUDA, types and arithmetic of kernels, for the executor.
#pragma once

#include <bit>
#include <cstdint>
// Bessel functions and their like, which nothing here needs, take half of the time of a small file.
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <cmath>

#define __global__
#define __device__
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define MC_INLINE inline

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;

    // By members, so that what a function returns is not put into memory unseen by mc_races.h.
    float4& operator=(const float4& from) {
        x = from.x, y = from.y, z = from.z, w = from.w;
        return *this;
    }
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
template <class T>
inline T min(T a, T b) {
    return b < a ? b : a;
}
template <class T>
inline T max(T a, T b) {
    return a < b ? b : a;
}

namespace mc {

typedef uint16_t u16;
typedef uint32_t u32;
typedef unsigned long long u64;
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

// ---- Arithmetic -----------------------------------------------------------------------------------

inline u64 mul_high(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }
inline float power_of_two(float x) { return exp2f(x); }
inline float inverse_root(float x) { return 1.0f / sqrtf(x); }
inline float fused(float a, float b, float c) { return fmaf(a, b, c); }

inline float widen(f16 v) { return (float)std::bit_cast<_Float16>(v.bits); }
inline float widen(bf16 v) { return std::bit_cast<float>((u32)v.bits << 16); }
inline u32 bits_of(float v) { return std::bit_cast<u32>(v); }
inline float float_of(u32 bits) { return std::bit_cast<float>(bits); }
template <class T>
inline T narrow(float v);
template <>
inline f16 narrow<f16>(float v) {
    return {std::bit_cast<u16>((_Float16)v)};
}
template <>
inline bf16 narrow<bf16>(float v) {
    const u32 bits = std::bit_cast<u32>(v);
    if (v != v) return {0x7fff};
    return {(u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

inline u32 masked_or(u32 a, u32 mask, u32 more) { return (a & mask) | more; }

inline u32 masked_xor(u32 a, u32 mask, u32 more) { return (a & mask) ^ more; }

inline u32 permuted(u32 a, u32 b, u32 wanted) {
    const u64 both = (u64)b << 32 | a;
    u32 found = 0;
    for (int i = 0; i < 4; i++) found |= (u32)(both >> 8 * (wanted >> 4 * i & 7) & 0xff) << 8 * i;
    return found;
}

// The even one of two that are as near; what int32 does not have is its largest or least number, NaN is 0.
inline int nearest(float v) {
    if (v != v) return 0;
    if (v >= 2147483648.0f) return INT32_MAX;
    return v < -2147483648.0f ? INT32_MIN : (int)nearbyintf(v);
}

template <class T>
inline u32 add_two(u32 a, u32 b, T) {
    u32 found = 0;
    for (int at = 0; at < 32; at += 16) {
        found |= (u32)narrow<T>(widen(T{(u16)(a >> at)}) + widen(T{(u16)(b >> at)})).bits << at;
    }
    return found;
}

template <class T>
inline u32 multiply_two(u32 a, u32 b, T) {
    u32 found = 0;
    for (int at = 0; at < 32; at += 16) {
        const float both = widen(T{(u16)(a >> at)}) * widen(T{(u16)(b >> at)});
        found |= (u32)narrow<T>(both).bits << at;
    }
    return found;
}

}  // namespace mc
