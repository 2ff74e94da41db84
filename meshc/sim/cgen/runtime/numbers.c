/* Scalar numbers: f16 and bf16, conversions, mathematics. The same bits as meshc/sim/exact_numbers.py
 * and machine/mathematics.py. */
#include "machine.h"

static double canonical_nan(int negative) { return negative ? -(double)NAN : (double)NAN; }

double csl_half(uint16_t bits)
{
    uint64_t sign = (uint64_t)(bits & 0x8000) << 48, mantissa = bits & 0x3ff, wide;
    int exponent = bits >> 10 & 31;
    double v;
    if (exponent == 0) {
        v = (double)mantissa * 0x1p-24;
        return sign ? -v : v;
    }
    if (exponent == 31)
        return mantissa ? canonical_nan(sign != 0) : sign ? -(double)INFINITY : (double)INFINITY;
    wide = sign | (uint64_t)(exponent + 1008) << 52 | mantissa << 42;
    memcpy(&v, &wide, 8);
    return v;
}

/* wide >> shift, to nearest, ties to even */
static uint64_t shift_even(uint64_t wide, int shift)
{
    uint64_t kept = wide >> shift, rest = wide & ((1ull << shift) - 1), middle = 1ull << (shift - 1);
    return kept + (rest > middle || (rest == middle && (kept & 1)));
}

uint16_t csl_h16(double v)
{
    uint64_t bits;
    memcpy(&bits, &v, 8);
    uint16_t sign = bits >> 48 & 0x8000;
    int exponent = (int)(bits >> 52 & 0x7ff) - 1023;
    uint64_t mantissa = bits & 0xfffffffffffffull;
    if (exponent == 1024)
        return sign | (mantissa ? 0x7e00 : 0x7c00);
    if (exponent >= 16)
        return sign | 0x7c00;
    if (exponent >= -14)
        return sign | (uint16_t)shift_even((uint64_t)(exponent + 15) << 52 | mantissa, 42);
    if (exponent < -25)
        return sign;
    return sign | (uint16_t)shift_even(mantissa | 1ull << 52, 42 - 14 - exponent);
}

double csl_brain(uint16_t bits) { return csl_f32_of((int64_t)bits << 16); }

/* Rounding to odd in between avoids rounding twice. */
uint16_t csl_hb16(double v)
{
    float single = (float)v;
    uint32_t bits;
    memcpy(&bits, &single, 4);
    if (v != v)
        return (uint16_t)(bits >> 16 | 0x40);
    if (isinf(v) || isinf(single))
        return bits >> 16;
    if ((double)single != v) {
        if (fabs((double)single) > fabs(v))
            bits -= 1;
        bits |= 1;
    }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

int64_t csl_f2i(double v, int bits, int is_signed)
{
    uint64_t low;
    if (v != v)
        return 0;
    if (isinf(v)) {
        uint64_t high = is_signed ? (1ull << (bits - 1)) - 1 : ~0ull >> (64 - bits);
        return v > 0 ? (int64_t)high : is_signed ? -(int64_t)high - 1 : 0;
    }
    v = trunc(v);
    if (fabs(v) < 0x1p63)
        low = (uint64_t)(int64_t)v;
    else {
        low = (uint64_t)fmod(fabs(v), 0x1p64);
        low = v < 0 ? 0 - low : low;
    }
    return is_signed ? csl_wrap_s(low, bits) : csl_wrap_u(low, bits);
}

double csl_fdiv(double a, double b)
{
    if (b == 0) {
        if (a == 0 || a != a)
            return NAN;
        return copysign(INFINITY, a) * copysign(1.0, b);
    }
    return a / b;
}

static double power(double x, double y)
{
    double r = pow(x, y);
    if (!isnan(r))
        return r;
    return isnan(x) ? x : isnan(y) ? y : (double)NAN;
}

static double root(double x) { return x < 0 ? (double)NAN : sqrt(x); }

static double whole(double x) { return x == 0 ? 0.0 : x; }

/* Domain errors give NaN, overflow gives infinity, as in the Python back end. */
static double evaluate(int function, double x, double y)
{
    switch (function) {
    case M_FLOOR: return isfinite(x) ? whole(floor(x)) : x;
    case M_CEIL: return isfinite(x) ? whole(ceil(x)) : x;
    case M_SQRT: return root(x);
    case M_COS: return isinf(x) ? (double)NAN : cos(x);
    case M_SIN: return isinf(x) ? (double)NAN : sin(x);
    case M_EXP: return exp(x);
    case M_LOG: return x == 0 ? -(double)INFINITY : x < 0 ? (double)NAN : log(x);
    case M_INV: return csl_fdiv(1.0, x);
    case M_INVSQRT: return x < 0 ? (double)NAN : csl_fdiv(1.0, sqrt(x));
    case M_TANH: return tanh(x);
    case M_POW: return power(x, y);
    default: return ldexp(x, (int)y);
    }
}

double csl_math(pe *p, int function, int type, double x, double y)
{
    p->t += p->m->costs.math[function];
    double r = evaluate(function, x, y);
    return type == T_F16 ? csl_r16(r) : csl_r32(r);
}
