/* The arithmetic of vector operations. IEEE, round to nearest even, wraparound; multiply and add
 * rounds twice. Mirrors machine/compute.py. */
#include "machine.h"

enum { MOV, ADD, SUB, AND, OR, XOR, SLL, SLR, SAR, POPCNT, CLZ, CTZ, FADD, FSUB, FMUL, FMAX, FNEG,
       FABS, FMAC, FNORM, FSCALE, FCONVERT, TO_INT, OF_INT };

static const struct {
    const char *name;
    int code;
} codes[] = {
    {"mov16", MOV}, {"mov32", MOV}, {"fmovh", MOV}, {"fmovs", MOV},
    {"add16", ADD}, {"addc16", ADD}, {"sub16", SUB},
    {"and16", AND}, {"or16", OR}, {"xor16", XOR},
    {"sll16", SLL}, {"slr16", SLR}, {"sar16", SAR},
    {"popcnt", POPCNT}, {"clz", CLZ}, {"ctz", CTZ},
    {"faddh", FADD}, {"fadds", FADD}, {"faddhs", FADD},
    {"fsubh", FSUB}, {"fsubs", FSUB}, {"fmulh", FMUL}, {"fmuls", FMUL},
    {"fmaxh", FMAX}, {"fmaxs", FMAX}, {"fnegh", FNEG}, {"fnegs", FNEG},
    {"fabsh", FABS}, {"fabss", FABS},
    {"fmach", FMAC}, {"fmacs", FMAC}, {"fmachs", FMAC},
    {"fnormh", FNORM}, {"fnorms", FNORM}, {"fscaleh", FSCALE}, {"fscales", FSCALE},
    {"fh2s", FCONVERT}, {"fs2h", FCONVERT},
    {"fh2xp16", TO_INT}, {"fs2xp16", TO_INT}, {"xp162fh", OF_INT}, {"xp162fs", OF_INT},
};

operation_kind operation_kinds[OPERATIONS];

/* Python states operation number op; 0 when this back end has no code for it. */
__attribute__((visibility("default"))) int
csl_define_operation(int op, const char *name, int kind, int count, const int32_t *types)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (op < OPERATIONS && strcmp(codes[i].name, name) == 0) {
            operation_kind *o = &operation_kinds[op];
            o->code = codes[i].code;
            o->kind = kind;
            o->count = count;
            memcpy(o->types, types, (size_t)count * sizeof *types);
            return 1;
        }
    return 0;
}

/* --- elements between memory, wavelets and cells --- */

static int is_half(int type) { return type == E_F16 || type == E_BF16; }

/* The numbers of csl_half and csl_h16 (numbers.c) without a branch, for loops over many of them. */
static inline float of_f16(uint32_t bits)
{
    uint32_t sign = (bits & 0x8000) << 16, rest = bits & 0x7fff, wide = (rest << 13) + (112 << 23);
    cell small = {.f = (float)(int32_t)rest * 0x1p-24f};
    wide = rest < 0x400 ? small.w : wide;
    wide = rest >= 0x7c00 ? 0x7f800000 : wide;
    wide = rest > 0x7c00 ? 0x7fc00000 : wide;
    return (cell){.w = sign | wide}.f;
}

static inline uint32_t to_f16(float v)
{
    uint32_t bits = (cell){.f = v}.w, sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    uint32_t half = (rest - (112 << 23) + 0xfff + (rest >> 13 & 1)) >> 13;
    cell small = {.f = (cell){.w = rest}.f + 0.5f}; /* whose last bit is that of a subnormal */
    half = rest < 0x38800000 ? small.w - 0x3f000000 : half;
    half = rest >= 0x477ff000 ? 0x7c00 : half;
    half = rest > 0x7f800000 ? 0x7e00 : half;
    return sign | half;
}

/* The numbers of 16 bits in one format or the other, in place. */
static void numbers_of_halves(int type, int64_t n, cell *at)
{
    if (type == E_BF16)
        for (int64_t i = 0; i < n; i++)
            at[i].w <<= 16;
    else
        for (int64_t i = 0; i < n; i++)
            at[i].f = of_f16(at[i].w);
}

/* The nearest 16 bits to a number. */
static inline uint32_t to_half(int type, float v)
{
    return type == E_BF16 ? csl_hb16((double)v) : to_f16(v);
}

static int raw(int op, int operand)
{
    int type = operation_kinds[op].types[operand];
    return operation_kinds[op].code == MOV || !is_half(type);
}

cell cell_of_scalar(int op, int operand, double v)
{
    cell c = {0};
    int type = operation_kinds[op].types[operand];
    if (type == E_F32)
        c.f = (float)v;
    else if (is_half(type))
        c.w = type == E_BF16 ? csl_hb16(v) : csl_h16(v);
    else
        c.w = (uint32_t)(int64_t)v & (type == E_U32 ? 0xffffffffu : 0xffffu);
    if (!raw(op, operand))
        numbers_of_halves(type, 1, &c);
    return c;
}

void gather(const uint8_t *from, int64_t stride, int64_t n, int op, int operand, cell *out)
{
    uint16_t half;
    if (size_of_type(operation_kinds[op].types[operand]) == 4) {
        if (stride == 4)
            memcpy(out, from, (size_t)n * 4);
        else
            for (int64_t i = 0; i < n; i++)
                memcpy(&out[i], from + i * stride, 4);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        memcpy(&half, from + i * stride, 2);
        out[i].w = half;
    }
    if (!raw(op, operand))
        numbers_of_halves(operation_kinds[op].types[operand], n, out);
}

void scatter(uint8_t *to, int64_t stride, int64_t n, int op, const cell *in)
{
    uint16_t half;
    if (result_size(op) == 4) {
        if (stride == 4)
            memcpy(to, in, (size_t)n * 4);
        else
            for (int64_t i = 0; i < n; i++)
                memcpy(to + i * stride, &in[i], 4);
    } else if (raw(op, 0)) {
        for (int64_t i = 0; i < n; i++) {
            half = (uint16_t)in[i].w;
            memcpy(to + i * stride, &half, 2);
        }
    } else {
        int type = operation_kinds[op].types[0];
        for (int64_t i = 0; i < n; i++) {
            half = (uint16_t)to_half(type, in[i].f);
            memcpy(to + i * stride, &half, 2);
        }
    }
}

void cells_of_words(const uint32_t *from, int64_t n, int op, int operand, int simd, cell *out)
{
    if (size_of_type(operation_kinds[op].types[operand]) == 4) {
        memcpy(out, from, (size_t)n * 4);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        out[i].w = (simd ? from[i / 2] >> 16 * (i & 1) : from[i]) & 0xffff;
    if (!raw(op, operand))
        numbers_of_halves(operation_kinds[op].types[operand], n, out);
}

/* Elements as wavelets: 16-bit ones in the low half, two per wavelet with SIMD; their number. */
int64_t words_of_cells(const cell *from, int64_t n, int op, int simd, int high, uint32_t *out)
{
    if (result_size(op) == 4) {
        memcpy(out, from, (size_t)n * 4);
        return n;
    }
    int64_t count = simd ? (n + 1) / 2 : n;
    int is_raw = raw(op, 0), type = operation_kinds[op].types[0];
    for (int64_t i = 0; i < n; i++) {
        uint32_t half = is_raw ? from[i].w & 0xffff : to_half(type, from[i].f);
        if (!simd)
            out[i] = half | (uint32_t)high << 16;
        else if (i & 1)
            out[i / 2] |= half << 16;
        else
            out[i / 2] = half;
    }
    return count;
}

/* --- the operations --- */

static float fmax_first(float a, float b) { return a >= b || b != b ? a : b; }

static uint32_t to_int16(float v)
{
    double wide = rint((double)v);
    if (v != v)
        return 0;
    return (uint16_t)(int16_t)(wide < -32768 ? -32768 : wide > 32767 ? 32767 : wide);
}

static float normed(float v)
{
    int exponent;
    return (float)(frexp((double)v, &exponent) * 2);
}

static uint32_t shift(int code, uint32_t v, uint32_t amount)
{
    uint32_t by = amount > 31 ? 31 : amount;
    if (code == SLL)
        return (uint32_t)((uint64_t)v << by & 0xffff);
    if (code == SLR)
        return v >> by;
    return (uint32_t)((int32_t)(int16_t)v >> by) & 0xffff;
}

static uint32_t counted(int code, uint32_t v)
{
    if (code == POPCNT)
        return (uint32_t)__builtin_popcount(v);
    if (v == 0)
        return 16;
    return (uint32_t)(code == CLZ ? __builtin_clz(v) - 16 : __builtin_ctz(v));
}

static float round_half(int type, float v)
{
    uint32_t half = to_half(type, v);
    return type == E_BF16 ? (cell){.w = half << 16}.f : of_f16(half);
}

/* Both forms of a loop: all operands arrays, or some scalars. */
#define EACH(STATEMENT)                                                                            \
    do {                                                                                           \
        if (sa == 1 && sb == 1 && sc == 1)                                                         \
            for (int64_t i = 0; i < n; i++) {                                                      \
                const cell *x = a + i, *y = b + i, *z = c + i;                                     \
                (void)x, (void)y, (void)z;                                                         \
                STATEMENT;                                                                         \
            }                                                                                      \
        else                                                                                       \
            for (int64_t i = 0; i < n; i++) {                                                      \
                const cell *x = a + i * sa, *y = b + i * sb, *z = c + i * sc;                      \
                (void)x, (void)y, (void)z;                                                         \
                STATEMENT;                                                                         \
            }                                                                                      \
    } while (0)

void compute(int op, int64_t n, cell *restrict out, const column *in)
{
    const operation_kind *o = &operation_kinds[op];
    const cell *a = in[0].v, *b = o->count > 2 ? in[1].v : a, *c = o->count > 3 ? in[2].v : a;
    int64_t sa = in[0].step, sb = o->count > 2 ? in[1].step : sa, sc = o->count > 3 ? in[2].step : sa;
    int code = o->code, type = o->types[0];
    switch (code) {
    case MOV: EACH(out[i] = *x); break;
    case ADD: EACH(out[i].w = (x->w + y->w) & 0xffff); break;
    case SUB: EACH(out[i].w = (x->w - y->w) & 0xffff); break;
    case AND: EACH(out[i].w = x->w & y->w); break;
    case OR: EACH(out[i].w = x->w | y->w); break;
    case XOR: EACH(out[i].w = x->w ^ y->w); break;
    case SLL:
    case SLR:
    case SAR: EACH(out[i].w = shift(code, x->w, y->w)); break;
    case POPCNT:
    case CLZ:
    case CTZ: EACH(out[i].w = counted(code, x->w)); break;
    case FADD: EACH(out[i].f = x->f + y->f); break;
    case FSUB: EACH(out[i].f = x->f - y->f); break;
    case FMUL: EACH(out[i].f = x->f * y->f); break;
    case FMAX: EACH(out[i].f = fmax_first(x->f, y->f)); break;
    case FNEG: EACH(out[i].f = -x->f); break;
    case FABS: EACH(out[i].f = fabsf(x->f)); break;
    case FMAC:
        if (is_half(type))
            EACH(out[i].f = x->f + round_half(type, y->f * z->f));
        else
            EACH(out[i].f = x->f + y->f * z->f);
        break;
    case FNORM: EACH(out[i].f = normed(x->f)); break;
    case FSCALE: EACH(out[i].f = (float)ldexp((double)x->f, (int16_t)y->w)); break;
    case FCONVERT: EACH(out[i].f = x->f); break;
    case TO_INT: EACH(out[i].w = to_int16(x->f)); break;
    case OF_INT: EACH(out[i].f = (float)(int16_t)x->w); break;
    default: break;
    }
}
