/* What a machine is made of: costs, arithmetic, events, channels, vector operations. */
#ifndef PARTS_H
#define PARTS_H

#include <stddef.h>

#include "csl.h"
#include "space.h" /* written by meshc/sim/cgen/build.py */

enum { LINE = 64 }; /* bytes that are fetched at once */
enum { COLORS = 64, TASKS = 64, QUEUES = 32, PORTS = 5, MEMORY_BYTES = 50 * 1024 };
enum { RAMP, EAST, WEST, NORTH, SOUTH };
enum { ENDLESS = 0x7fff };
static const int64_t FOREVER = (int64_t)1 << 62;

static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* --- costs.c: the cycle model; the fields are those of machine/cycle_model.py --- */

enum { KINDS = 32, MATHS = 16 };
typedef struct {
    int64_t memory, fabric_out, fabric_in, rewritten, drained, task, data_task, reopen;
    int64_t hop, ramp, relay, configure, map_call, period, stay_every;
    int64_t lanes[KINDS], write_every[KINDS], in_place_every[KINDS], row[KINDS];
    int64_t output_depth[QUEUES], input_depth, host_depth;
    int64_t math[MATHS];
} costs;

/* --- compute.c: the arithmetic of vector operations --- */

enum { E_U16, E_U32, E_I16, E_F16, E_F32, E_BF16 };

/* An element to compute with: bits for integers and moves, float for floating point. */
typedef union {
    uint32_t w;
    float f;
} cell;

/* The elements of an operand; step is 0 for a scalar. */
typedef struct {
    const cell *v;
    int64_t step;
} column;

enum { OPERATIONS = 128 };
typedef struct {
    int32_t code, kind, count; /* what to compute, speed class, number of operands */
    int32_t types[4];          /* destination first */
} operation_kind;
extern operation_kind operation_kinds[OPERATIONS];

static inline int64_t size_of_type(int type) { return type == E_U32 || type == E_F32 ? 4 : 2; }
static inline int64_t result_size(int op) { return size_of_type(operation_kinds[op].types[0]); }
void compute(int op, int64_t n, cell *out, const column *in);
cell cell_of_scalar(int op, int operand, double v);
void gather(const uint8_t *from, int64_t stride, int64_t n, int op, int operand, cell *out);
void scatter(uint8_t *to, int64_t stride, int64_t n, int op, const cell *in);
void cells_of_words(const uint32_t *from, int64_t n, int op, int operand, int simd, cell *out);
int64_t words_of_cells(const cell *from, int64_t n, int op, int simd, int high, uint32_t *out);

/* --- pool.c: small blocks by size, and growing arrays --- */

enum { POOL_STEP = LINE, POOL_CLASSES = 64 };
typedef struct pool_block pool_block;
typedef struct {
    pool_block *free[POOL_CLASSES];
    uint8_t *chunk;
    size_t left;
    int32_t is_large; /* whether chunks are large pages */
    void **chunks;
    int64_t chunk_count;
} pool;
void *zeroed_pages(size_t size);
void *pool_keep(pool *from, size_t size);
void *pool_get(pool *from, size_t size);
void pool_put(pool *to, void *block, size_t size);
void pool_end(pool *all);
void *longer(void *items, void *first, int32_t first_room, int32_t *room, size_t size);

/* A queue of pointers, the first few of which lie in it: a queue must not be moved. */
enum { FEW = 4 };
typedef struct {
    void **items;
    int32_t head, count, room;
    void *few[FEW];
} queue;
void queue_push(queue *q, void *item);
void *queue_pop(queue *q);
void queue_remove(queue *q, int position);
static inline void *queue_at(const queue *q, int i)
{
    return q->items[(q->head + i) & (q->room - 1)];
}
int queue_find(const queue *q, const void *item);
void queue_end(queue *q);

/* --- heap.c: events in order of time, then of the cycle in which they were made, of the PE that
 * made them, and then as it did --- */

typedef void action(machine *m, int64_t time, void *subject, void *argument);
typedef struct {
    int64_t time, made, maker; /* maker: number of a PE or NOBODY, and a count */
    action *act;
    void *subject, *argument;
} event;
enum { NOBODY = 1 << 22, MAKER_SHIFT = 40 };
enum { FIRST_EVENTS = 8 };
typedef struct {
    event *items; /* first, until there are more; a heap must not be moved */
    int32_t count, room;
    event first[FIRST_EVENTS];
} heap;
void heap_push(heap *h, const event *e);
event heap_pop(heap *h);
void heap_end(heap *h);

/* --- calendar.c: the PEs that have events, by cycle --- */

enum { RING = 256 }; /* cycles from now on that have a set of PEs each */
typedef struct {
    int64_t time;
    int32_t place;
} late;
typedef struct {
    int64_t heads, words;     /* of a set: which words are not 0, and the words */
    uint64_t *sets, used[RING / 64];
    late *far;                /* a heap of what lies behind the ring */
    int64_t far_count, far_room;
} calendar;
void calendar_start(calendar *c, int64_t places);
void calendar_note(calendar *c, int64_t now, int64_t time, int64_t place);
void calendar_turn(calendar *c, int64_t now);
int64_t calendar_next(const calendar *c, int64_t now);
int64_t calendar_first(const calendar *c, int64_t now);
int64_t calendar_after(const calendar *c, int64_t now, int64_t place);
void calendar_strike(calendar *c, int64_t now, int64_t place);
void calendar_end(calendar *c);

/* --- run.c --- */

typedef struct burst burst;
void at(pe *p, int64_t time, action *act, void *subject, void *argument);
void at_other(machine *m, pe *there, int64_t time, action *act, void *subject, burst *b);

/* --- channel.c: bursts of wavelets --- */

typedef struct {
    int32_t references, count;
    uint32_t data[];
} words;

/* Wavelets of one sender and color that are under way, with strict queues. Python reads the first
 * two. */
typedef struct {
    int64_t outstanding, room;
    int64_t copies, depth, generation; /* see credit_of */
    pe *p;
    int32_t color, is_due;
    queue held, stalled; /* of operation */
} credit;

struct burst {
    words *payload;
    int32_t first, count, pos; /* the part of the payload, and how much of it is taken */
    int8_t control, port, color; /* port: where it waits in a router; color: on a link */
    int64_t t0, period;
    credit *paid; /* NULL without strict queues */
};

typedef struct {
    pe *p;
    int32_t color, blocked, task; /* function number of the data task, 0 for none */
    int64_t free_at, open_at; /* its data task starts at open_at or later */
    queue bursts, waiting;
} channel;

typedef struct {
    int64_t capacity, t, read_length, write_length;
    int32_t full, empty;
    cell *data;
    int64_t head, count, room;
    queue readers, writers;
} fifo;

words *words_new(machine *m, int64_t count);
void words_drop(machine *m, words *w);
burst *burst_new(machine *m, words *payload, int64_t first, int64_t count, int64_t t0,
                 int64_t period, int control, credit *paid);
void consume(machine *m, credit *c, int64_t count);
static inline void dropped(machine *m, const burst *b, int64_t count)
{
    if (b->paid)
        consume(m, b->paid, count);
}
burst *burst_moved(machine *m, const burst *b, int64_t t0);
void burst_drop(machine *m, burst *b);
static inline const uint32_t *burst_data(const burst *b) { return b->payload->data + b->first; }
static inline int64_t burst_time(const burst *b, int64_t ahead)
{
    return b->t0 + (b->pos + ahead) * b->period;
}
static inline int64_t burst_end(const burst *b) { return b->t0 + (b->count - 1) * b->period + 1; }
static inline int64_t burst_left(const burst *b) { return b->count - b->pos; }
int64_t channel_take(machine *m, channel *c, int64_t count, uint32_t *out, int64_t *first,
                     int64_t *last);

/* --- pipe.c: what passes one item per cycle --- */

typedef struct {
    int64_t free_at, last;
    int64_t *ends; /* first, until there are more; a pipe must not be moved */
    int32_t count, room;
    int64_t first[FEW];
} pipe_;
int64_t pipe_share(const pipe_ *pipe, int64_t t, int64_t n);
void pipe_claim(pipe_ *pipe, int64_t t, int64_t n, int64_t span);
int64_t pipe_reserve(pipe_ *pipe, int64_t t, int64_t n, int64_t span);
void pipe_carry(pipe_ *pipe, burst *b, int64_t t);
void pipe_end(pipe_ *pipe);

typedef struct {
    pipe_ pipe;
    int64_t main_start, main_end, main_steps, stolen;
} issue;
int64_t issue_low(issue *slots, int64_t t, int64_t n, int64_t span);
int64_t issue_high(issue *slots, int64_t t, int64_t n, int64_t span);

/* --- memory.c --- */

int64_t element_step(const dsd *d, int64_t size);
uint8_t *view(pe *p, const dsd *d, int64_t size, int64_t first, int64_t count, int64_t *step);
_Noreturn void out_of_bounds(pe *p, int64_t low, int64_t high);
void check_range(pe *p, int64_t low, int64_t high);
int64_t floor_div(int64_t a, int64_t b);

/* --- vector.c: elements of memory operands --- */

int reduces(const dsd *d, int64_t count);
column read_elements(pe *p, const dsd *d, int op, int operand, int64_t first, int64_t count);
void write_elements(pe *p, const dsd *d, int op, int64_t first, int64_t count, const cell *in);
void reduce(pe *p, int op, int sources, const dsd *operands, column *columns, int64_t first,
            int64_t count);
int64_t vector_cycles(machine *m, int op, int sources, const dsd *operands, int64_t n);
cell *scratch(machine *m, int which, int64_t count);

/* --- operation.c: vector operations that may have to wait --- */

struct dsr {
    dsd d;
    int32_t save, is_async;
    options o;
    int64_t ready; /* operations that name it start then */
};

struct operation {
    pe *p;
    int64_t n, done_count, t;
    int32_t index, place, references;
    int16_t op;
    int8_t sources, is_async, done, complete, resume, priority;
    int8_t record_count, channel_count, fifo_count;
    int8_t record_size[4];
    int8_t inputs[3]; /* the operands that read the channels */
    options o;
    channel *channels[3];
    fifo *fifos[3];
    words *sent;
    dsr *records[4];
    dsd operands[4]; /* destination first; kind NO_OPERAND for a scalar */
    double scalars[4];
};

static inline int is_fabric(const dsd *d) { return d->kind == FABIN || d->kind == FABOUT; }
static inline int needs_input(const operation *o)
{
    return o->channel_count || o->fifo_count || o->operands[0].kind == FIFO;
}
void later(operation *o, int64_t time, action *act);
action begin, act_progress, act_done, act_emit;
void step(operation *o, int64_t count, int64_t now);
int64_t plan(operation *o, int64_t count, int64_t start, int64_t last_in);
void worked(operation *o, int64_t start, int64_t end);
void send_words(operation *o, words *payload, int64_t start, int64_t end);
void finish(operation *o);
operation *launch(pe *p, int op, int count, const operand *operands, int64_t index, int has_index,
                  int place, const options *o);
void hold(operation *o);
void drop(operation *o);
void progress(operation *o, int64_t now);
void release(operation *o);
void again(operation *o);
void dsr_advance(dsr *record, int64_t count, int64_t size);

#endif
