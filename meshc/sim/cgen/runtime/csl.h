/* What generated code sees of the machine: values, descriptors, memory, and calls of the runtime.
 *
 * Integers travel as int64_t, floats as double holding a value of their own type, descriptors as
 * struct dsd. Every access to memory is checked; a fault leaves generated code by longjmp.
 */
#ifndef CSL_H
#define CSL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct machine machine;
typedef struct pe pe;
typedef struct frame frame;
typedef struct operation operation;

/* Marks functions that are too long to be optimised in a bearable time. */
#ifdef __clang__
#define LONG __attribute__((noinline, optnone))
#else
#define LONG __attribute__((noinline, optimize("O0")))
#endif

enum { NO_OPERAND, MEM, FABIN, FABOUT, FIFO };

/* A data structure descriptor; the fields are those of meshc/sim/descriptors.py. Less than a cache
 * line, since operations are made of them. */
typedef struct {
    int8_t kind, ndims, indexed, scalar, simd, priority, control, advance, zero;
    int16_t esize;
    int32_t n, addr, stride;
    union {
        struct { int32_t extent[4], step[4]; };                              /* of memory */
        struct { int32_t color, queue; };                                    /* of the fabric */
        struct { int32_t number, capacity, activate_push, activate_pop; };   /* of a FIFO */
    };
} dsd;

/* An operand of a vector operation: a descriptor (perhaps from a register) or a scalar. */
typedef struct dsr dsr;
typedef struct {
    const dsd *d;
    dsr *reg;
    double value;
} operand;

typedef union {
    int64_t i;
    uint64_t u;
    double f;
    const dsd *d;
} value;

/* The constants in which PE classes that share code differ. */
typedef struct {
    const int64_t *n;
    const double *f;
    const dsd *d;
} constants;

/* Options of an operation or register load; -1 stands for none, gates are (kind, id). */
enum { GATE_NONE = -1, GATE_LOCAL, GATE_COLOR, GATE_QUEUE, GATE_CONTROL };
enum { ON_CONTROL_NONE, ON_CONTROL_TERMINATE, ON_CONTROL_ACTIVATE, ON_CONTROL_UNBLOCK };
typedef struct {
    int32_t activate, unblock_kind, unblock, thread, priority;
    int32_t on_control, on_activate, on_unblock_kind, on_unblock;
} options;

/* A function that may wait keeps its variables in a frame; step goes on with it. */
enum { STEP_DONE, STEP_CALL, STEP_WAIT };
typedef struct {
    value (*call)(pe *, const value *);   /* a function that runs to its end at once */
    frame *(*enter)(pe *, const value *); /* any other: makes its frame */
    int waits;                            /* whether it may have to wait */
} function;
struct frame {
    frame *below;
    int (*step)(pe *, frame *);
    int32_t at, size;
};

/* The head of a PE; the rest is private to the runtime (machine.h). Python reads it too. What nearly
 * all code needs comes first, in one cache line. */
struct pe {
    machine *m;
    int64_t t;
    int64_t limit;
    uint8_t *mem;
    int64_t size;
    const constants *k;
    frame *top;
    int32_t number, current;
    int64_t busy_until;
    int64_t drained;
    int64_t cycles_busy;
    int64_t unblocked;
    dsd *slots;
    int64_t slot_count;
    const function *functions; /* from number 1 */
    int32_t function_count, complete;
    int32_t x, y;
    value result;
    dsd result_dsd;
};

/* Only what is declared from here on can be seen from outside of a library. */
#pragma GCC visibility push(default)

/* --- faults --- */

_Noreturn void csl_fault(pe *p, int place, const char *form, ...);
_Noreturn void csl_index_fault(pe *p, int place);
_Noreturn void csl_overrun(pe *p);

/* The index of the element that an address of more than 16 bits means. */
int64_t csl_wrap_index(pe *p, int64_t index, int64_t size, int place);

/* --- frames --- */

frame *csl_push(pe *p, int32_t size, int (*step)(pe *, frame *));
void csl_pop(pe *p);
int csl_call_target(pe *p, int64_t target, const value *args);
value csl_call_plain(pe *p, int64_t target, const value *args);

/* --- numbers; see meshc/sim/exact_numbers.py --- */

double csl_half(uint16_t bits);
double csl_brain(uint16_t bits);
uint16_t csl_h16(double v);
uint16_t csl_hb16(double v);
int64_t csl_f2i(double v, int bits, int is_signed);
double csl_fdiv(double a, double b);

#define U(x) ((uint64_t)(x))

static inline double csl_r32(double v) { return (double)(float)v; }
static inline double csl_r16(double v) { return csl_half(csl_h16(v)); }
static inline double csl_rb16(double v) { return csl_brain(csl_hb16(v)); }

static inline int64_t csl_w32(double v)
{
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static inline double csl_f32_of(int64_t bits)
{
    uint32_t w = (uint32_t)bits;
    float f;
    memcpy(&f, &w, 4);
    return f;
}

/* v modulo 2^bits, as a number of the type. */
#define S8(v) ((int64_t)(int8_t)(v))
#define S16(v) ((int64_t)(int16_t)(v))
#define S32(v) ((int64_t)(int32_t)(v))
#define U8(v) ((int64_t)(uint8_t)(v))
#define U16(v) ((int64_t)(uint16_t)(v))
#define U32(v) ((int64_t)(uint32_t)(v))

static inline int64_t csl_wrap_u(uint64_t v, int bits)
{
    return (int64_t)(bits == 64 ? v : v & ((1ull << bits) - 1));
}

static inline int64_t csl_wrap_s(uint64_t v, int bits)
{
    return (int64_t)(v << (64 - bits)) >> (64 - bits);
}

static inline uint64_t csl_shl(uint64_t v, uint64_t amount) { return amount > 63 ? 0 : v << amount; }
static inline int64_t csl_sar(int64_t v, uint64_t n) { return v >> (n > 63 ? 63 : n); }
static inline uint64_t csl_shr(uint64_t v, uint64_t n) { return n > 63 ? 0 : v >> n; }

static inline int64_t csl_div(pe *p, int64_t a, int64_t b, int place)
{
    if (b == 0)
        csl_fault(p, place, "division by zero");
    return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}

static inline int64_t csl_rem(pe *p, int64_t a, int64_t b, int place)
{
    if (b == 0)
        csl_fault(p, place, "division by zero");
    return b == -1 ? 0 : a % b;
}

static inline uint64_t csl_udiv(pe *p, uint64_t a, uint64_t b, int place)
{
    if (b == 0)
        csl_fault(p, place, "division by zero");
    return a / b;
}

static inline uint64_t csl_urem(pe *p, uint64_t a, uint64_t b, int place)
{
    if (b == 0)
        csl_fault(p, place, "division by zero");
    return a % b;
}

/* --- memory: by index into an array of elements over all of it --- */

static inline uint8_t *csl_at(pe *p, int64_t index, int64_t size, int place)
{
    if (__builtin_expect((uint64_t)index >= (uint64_t)(p->size / size), 0))
        index = csl_wrap_index(p, index, size, place);
    return p->mem + index * size;
}

#define CSL_ACCESS(NAME, TYPE, VALUE)                                                              \
    static inline VALUE csl_get_##NAME(pe *p, int64_t index, int place)                            \
    {                                                                                              \
        TYPE v;                                                                                    \
        memcpy(&v, csl_at(p, index, sizeof v, place), sizeof v);                                   \
        return (VALUE)v;                                                                           \
    }                                                                                              \
    static inline void csl_put_##NAME(pe *p, int64_t index, VALUE given, int place)                \
    {                                                                                              \
        TYPE v = (TYPE)given;                                                                      \
        memcpy(csl_at(p, index, sizeof v, place), &v, sizeof v);                                   \
    }
CSL_ACCESS(u8, uint8_t, int64_t)
CSL_ACCESS(i8, int8_t, int64_t)
CSL_ACCESS(u16, uint16_t, int64_t)
CSL_ACCESS(i16, int16_t, int64_t)
CSL_ACCESS(u32, uint32_t, int64_t)
CSL_ACCESS(i32, int32_t, int64_t)
CSL_ACCESS(u64, uint64_t, uint64_t)
CSL_ACCESS(i64, int64_t, int64_t)
CSL_ACCESS(f32, float, double)

static inline double csl_get_f16(pe *p, int64_t index, int place)
{
    return csl_half((uint16_t)csl_get_u16(p, index, place));
}

static inline void csl_put_f16(pe *p, int64_t index, double v, int place)
{
    csl_put_u16(p, index, csl_h16(v), place);
}

static inline double csl_get_bf16(pe *p, int64_t index, int place)
{
    return csl_brain((uint16_t)csl_get_u16(p, index, place));
}

static inline void csl_put_bf16(pe *p, int64_t index, double v, int place)
{
    csl_put_u16(p, index, csl_hb16(v), place);
}

/* --- memory: by byte address, which may be that of a register --- */

enum { T_U8, T_I8, T_U16, T_I16, T_U32, T_I32, T_U64, T_I64, T_F16, T_F32, T_BF16 };
int64_t csl_load_int(pe *p, int64_t addr, int type);
double csl_load_float(pe *p, int64_t addr, int type);
void csl_store_int(pe *p, int64_t addr, int type, int64_t v);
void csl_store_float(pe *p, int64_t addr, int type, double v);
void csl_copy(pe *p, int64_t to, int64_t source, int64_t size);
dsd *csl_slot(pe *p, int64_t index, int place);
const dsd *csl_descriptor(pe *p, const dsd *d, int place);

/* --- descriptors --- */

dsd csl_mem1d(int64_t addr, int64_t n, int64_t stride, int64_t esize, int64_t indexed);
dsd csl_scalar_mem(int64_t addr, int64_t esize);
dsd csl_inc_offset(pe *p, const dsd *d, int64_t count, int64_t size);
dsd csl_set_base(pe *p, const dsd *d, int64_t addr, int64_t esize);
dsd csl_dsd_length(const dsd *d, int64_t n);
dsd csl_dsd_stride(pe *p, const dsd *d, int64_t stride);
dsd csl_fabin(int64_t color, int64_t n, int64_t queue, int64_t simd, int64_t priority);
dsd csl_fabout(int64_t color, int64_t n, int64_t queue, int64_t control, int64_t indexed,
               int64_t advance, int64_t simd, int64_t zero, int64_t priority);

/* --- vector operations; op is an index into the table of compute.c --- */

operand csl_dsr(pe *p, int bank, int64_t number);
void csl_vector(pe *p, int op, int count, const operand *operands, int64_t index, int has_index,
                int place);
int csl_launch_sync(pe *p, int op, int count, const operand *operands, int64_t index,
                    int has_index, int place, const options *o);
void csl_launch_async(pe *p, int op, int count, const operand *operands, int64_t index,
                      int has_index, int place, const options *o);
/* The same for operands that are descriptor constants from `first` on, then `numbers` (0 or 1)
 * numbers, without an index: most of a program's operations, which compile faster so. */
void csl_vector_row(pe *p, int op, int first, int descriptors, int numbers, double number,
                    int place);
int csl_launch_row(pe *p, int op, int first, int descriptors, int numbers, double number,
                   int place, const options *o);
extern const options csl_no_options;
void csl_load_dsr(pe *p, int bank, int64_t number, const dsd *d, int save, int is_async,
                  const options *o);
void csl_set_dsr_base(pe *p, int64_t bank, int64_t number, int64_t addr);

/* --- @map: the operands of one statement, destination last, and the values at one position --- */

enum { MAP_OPERANDS = 6 };
typedef struct {
    dsd d[MAP_OPERANDS];
    dsr *reg[MAP_OPERANDS];
    value v[MAP_OPERANDS];
    int64_t count, position;
    int32_t operands, has_dst;
} mapping;
void csl_map_begin(pe *p, mapping *map, int count, const operand *operands, int has_dst);
int csl_map_next(pe *p, mapping *map);
int csl_map_take(pe *p, mapping *map, int source, int type, int place);
void csl_map_taken(pe *p, mapping *map, int source, int type);
int csl_map_put(pe *p, mapping *map, int type, value v, int place);
void csl_map_end(pe *p, mapping *map);

/* --- effects --- */

void csl_activate(pe *p, int64_t number);
void csl_block(pe *p, int kind, int64_t number);
void csl_unblock(pe *p, int kind, int64_t number);
void csl_unblock_cmd_stream(pe *p);
void csl_check(pe *p, int64_t holds, int place);
int64_t csl_random16(pe *p);
void csl_prng_seed(pe *p, int64_t seed);
void csl_fifo_length(pe *p, int64_t number, int64_t length, int writes);
void csl_queue_flush(pe *p, int64_t number);
void csl_flush_exit(pe *p, int64_t number);
void csl_bind_queue(pe *p, int64_t is_output, int64_t queue, int64_t color);
int64_t csl_queue_empty(pe *p, int64_t queue);
void csl_tsc_enable(pe *p);
void csl_tsc_disable(pe *p);
void csl_tsc_reset(pe *p);
void csl_tsc_read(pe *p, int64_t addr);
int64_t csl_get_config(pe *p, int64_t word);
void csl_set_config(pe *p, int64_t word, int64_t v);
void csl_reset_routes(pe *p, int64_t color, int64_t rx, int64_t tx);
void csl_switch_position(pe *p, int64_t color, int64_t position);
void csl_switch_invalid(pe *p, int64_t color);
void csl_switch_set(pe *p, int64_t color, int64_t position, int64_t direction, int64_t is_rx);
void csl_switch_both(pe *p, int64_t color, int64_t position, int64_t rx, int64_t tx);
void csl_task_priority(pe *p, int64_t is_data, int64_t number, int64_t high);
void csl_thread_priority(pe *p, int64_t level);
void csl_teardown_exit(pe *p, int64_t color);
void csl_teardown_toggle(pe *p, int64_t color);
int64_t csl_teardown_pending(pe *p, int64_t color);
value csl_python(pe *p, int number, const value *args);

/* --- mathematics: type is T_F16 or T_F32 --- */

double csl_math(pe *p, int function, int type, double x, double y);
enum { M_FLOOR, M_CEIL, M_SQRT, M_COS, M_SIN, M_EXP, M_LOG, M_INV, M_INVSQRT, M_TANH, M_POW,
       M_FSCALE };

extern const function csl_functions[]; /* defined by generated code, from number 1 */

#pragma GCC visibility pop

#endif
