// Functions of single elements, called like the ops whose meaning they have, and the words of their options.
#pragma once

namespace mc {

constexpr float LOG2E = 1.4426950408889634f;

MC_INLINE float infinity() { return power_of_two(1000.0f); }
MC_INLINE float exp(float v) { return power_of_two(v * LOG2E); }
MC_INLINE float sigmoid(float v) { return 1.0f / (1.0f + power_of_two(v * -LOG2E)); }
MC_INLINE float silu(float v) { return v / (1.0f + power_of_two(v * -LOG2E)); }
MC_INLINE float quick_gelu(float v) { return v / (1.0f + power_of_two(v * (-1.702f * LOG2E))); }
MC_INLINE float clamp(float v, float least, float most) { return min(max(v, least), most); }
MC_INLINE float relu2(float v) { return v > 0.0f ? v * v : 0.0f; }

// tanh: below 1/2, where 1 - e would have few bits, an odd polynomial, whose error is at most 1.6e-8 of it.
MC_INLINE float tanh(float v) {
    const float size = v < 0.0f ? -v : v, square = v * v;
    float sum = fused(0.017241487f, square, -0.053045493f);
    sum = fused(sum, square, 0.13325878f);
    sum = fused(sum, square, -0.33333144f);
    if (size < 0.5f) return fused(sum * square, v, v);
    const float e = power_of_two(size * (-2.0f * LOG2E)), t = (1.0f - e) / (1.0f + e);
    return v < 0.0f ? -t : t;
}

// gelu, by its approximation with tanh.
MC_INLINE float gelu_tanh(float v) {
    const float inner = 0.7978845608028654f * fused(0.044715f * v * v, v, v);
    return v / (1.0f + power_of_two(inner * -2.8853900817779268f));
}

// gelu: v times the part of a normal distribution below v. That beyond |v| is half of erfc(|v| /
// sqrt(2)), by formula 7.1.26 of Abramowitz and Stegun, whose error is at most 1.5e-7.
MC_INLINE float gelu_erf(float v) {
    const float size = v < 0.0f ? -v : v;
    const float t = 1.0f / fused(0.23164189f, size, 1.0f);
    float sum = fused(0.5307027145f, t, -0.726576013f);
    sum = fused(sum, t, 0.7107068705f);
    sum = fused(sum, t, -0.142248368f);
    sum = fused(sum, t, 0.127414796f);
    const float beyond = sum * t * power_of_two(v * v * -0.7213475204444817f);
    return v * (v < 0.0f ? beyond : 1.0f - beyond);
}

}  // namespace mc
