/* The state of a machine: events, PEs, channels, operations, routers. Mirrors meshc/sim/machine. */
#ifndef MACHINE_H
#define MACHINE_H

#include <pthread.h>
#include <setjmp.h>
#include <stddef.h>

#include "csl.h"
#include "space.h" /* written by meshc/sim/cgen/build.py */

enum { COLORS = 64, TASKS = 64, QUEUES = 32, PORTS = 5, MEMORY_BYTES = 50 * 1024 };
enum { RAMP, EAST, WEST, NORTH, SOUTH };
enum { ENDLESS = 0x7fff };
static const int64_t FOREVER = (int64_t)1 << 62;

static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* --- costs.c: the cycle model; the fields are those of machine/costs.py --- */

enum { KINDS = 32, MATHS = 16 };
typedef struct {
    int64_t memory, fabric_out, fabric_in, load_dsr, task, data_task;
    int64_t hop, ramp, relay, configure, map_call, period, stay_every;
    int64_t lanes[KINDS], write_every[KINDS];
    int64_t output_depth[QUEUES], input_depth, host_depth;
    int64_t math[MATHS];
} costs;

/* --- compute.c: the arithmetic of vector operations --- */

enum { E_U16, E_U32, E_I16, E_F16, E_F32 };

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

enum { POOL_STEP = 32, POOL_CLASSES = 64 };
typedef struct pool_block pool_block;
typedef struct {
    pool_block *free[POOL_CLASSES];
    uint8_t *chunk;
    size_t left;
    void **chunks;
    int64_t chunk_count;
} pool;
void *pool_get(pool *from, size_t size);
void pool_put(pool *to, void *block, size_t size);
void pool_end(pool *all);

/* A queue of pointers. */
typedef struct {
    void **items;
    int32_t head, count, room;
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
typedef struct {
    event *items;
    int32_t count, room;
} heap;
void heap_push(heap *h, const event *e);
event heap_pop(heap *h);

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

/* Wavelets of one sender and color that are under way, with strict queues. */
typedef struct {
    int64_t outstanding, room;
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
    int64_t free_at;
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
void consume(credit *c, int64_t count);
static inline void dropped(const burst *b, int64_t count)
{
    if (b->paid)
        consume(b->paid, count);
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
    int64_t *ends;
    int32_t count, room;
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
    int32_t loaded, save, is_async;
    options o;
};

struct operation {
    pe *p;
    int32_t op, sources, index, place, references;
    int32_t is_async, done, complete, resume, priority;
    dsd operands[4]; /* destination first; kind NO_OPERAND for a scalar */
    double scalars[4];
    dsr *records[4];
    int32_t record_size[4];
    int64_t n, done_count, t;
    options o;
    int32_t record_count, channel_count, fifo_count;
    channel *channels[3];
    const dsd *inputs[3];
    fifo *fifos[3];
    words *sent;
};

static inline int is_fabric(const dsd *d) { return d->kind == FABIN || d->kind == FABOUT; }
static inline int needs_input(const operation *o)
{
    return o->channel_count || o->fifo_count || o->operands[0].kind == FIFO;
}
void later(operation *o, int64_t time, action *act);
void begin(machine *m, int64_t time, void *subject, void *argument);
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

/* --- router.c: one color at one PE --- */

typedef struct {
    uint8_t count, d[PORTS];
} directions;

typedef struct {
    int32_t present, has_rx, has_tx;
    directions rx, tx;
} position;

enum { FILTER_NONE, FILTER_RANGE, FILTER_COUNTER, FILTER_SPARSE };
typedef struct {
    int32_t kind;
    int64_t low, high, limit1, limit2, max_counter, init_counter;
    int32_t count_data, count_control, filter_control;
} filter;

enum { CHANGE_ROUTES, CHANGE_POSITION, CHANGE_INVALID, CHANGE_SWITCH, CHANGE_BOTH, CHANGE_EXIT,
       CHANGE_TOGGLE, CHANGE_COLOR_WORD, CHANGE_SWITCH_WORD, CHANGE_FILTER };
typedef struct {
    int32_t kind, a, b, c;
} change;

typedef struct {
    burst **items;
    int64_t count, room, total; /* total: wavelets not yet taken */
    queue unread;               /* of credit, one for each wavelet the host has not asked for */
    int64_t wanted;             /* wavelets asked for that have not come */
    machine *m;
} stream;

typedef struct router router;
typedef struct {
    int64_t generation;
    int32_t count, broken, edge_count;
    struct {
        router *at;
        int64_t hops;
    } *receivers;
    router **edges;
    uint8_t *edge_ports;
} tree;

typedef struct {
    int32_t port;
    int64_t t0, end, period;
} passing;

struct router {
    pe *p;
    int32_t color, exists, is_static;
    int32_t at, ring, pop, teardown, swap_x, swap_y;
    directions rx, tx; /* at position 0 */
    position positions[3];
    int32_t selects[3];
    filter rule;
    int64_t counter, limit, stage;
    queue ports[PORTS];
    int64_t free_at;
    int32_t entry, exit;
    int32_t left; /* bits of the directions in which wavelets left the rectangle */
    change *pending;
    int32_t pending_count;
    passing *recent;
    int32_t recent_count, recent_room;
    tree *known;
    int64_t stamp;
    int32_t stamp_ports;
    router *virtual_target;
    int64_t virtual_hops;
    stream *sink, *out;
    credit *host; /* for what the host sends here */
};

directions router_rx(const router *r);
directions router_tx(const router *r);
uint32_t router_outputs(const router *r);
int router_execute(router *r, int command);
int router_meeting(router *r, int port, const burst *b);
void router_change(router *r, const change *what);
int router_color_word(const router *r);
int router_switch_word(const router *r);
int64_t router_filter(machine *m, router *r, burst *b, burst ***parts);

/* --- fabric.c --- */

router *router_at(pe *p, int color);
router *router_for_code(pe *p, int color);
void note_links(router *r);
router *existing(pe *p, int color);
pe *neighbour(pe *p, int out);
int swapped(pe *p, int color, int port, int *colors);
extern const int opposite[];
void inject(pe *p, int color, burst *b);
void settle(machine *m);
void pump(machine *m, int64_t now, router *r);
void advance(pe *p, int color);
void enter(machine *m, router *r, burst *b);
void configure_later(pe *p, int color, const change *what);
void stream_read(stream *s, int64_t count);

/* --- reach.c --- */

void tree_free(tree *t);
tree *tree_of(router *origin);
void *grown(void *items, int64_t count, size_t size);
void reach(pe *p, int color, int64_t depth, int64_t *copies, int64_t *room);

/* A route as Python states it: directions are a count and then the directions. */
struct route {
    uint8_t rx[8], tx[8], new_rx[3][8], new_tx[3][8];
    int32_t present[3], has_rx[3], has_tx[3];
    int32_t position, ring, pop, teardown, swap_x, swap_y, is_static;
    filter rule;
};

/* --- pe.c --- */

typedef struct {
    int64_t end;
    const int32_t *symbol_start, *symbol_end;
    uint8_t *remarked; /* symbols that were remarked upon */
    int32_t symbols;
    int32_t data_task[TASKS], local_task[TASKS], control_task[TASKS], teardown[TASKS];
    int32_t empty_handler[QUEUES], in_queue[QUEUES], out_queue[QUEUES];
    int32_t functions;
    const uint8_t *params; /* PARAMS for each function from number 1: count, then types */
    int32_t wse3, fifos;
    int32_t data_task_order[TASKS], data_task_count;
} pe_class;
enum { PARAMS = 16 };

typedef struct {
    int64_t time;
    int32_t function;
    value args[PARAMS];
} launch_;

typedef struct {
    int64_t key; /* a local task id, or teardown_key of a color */
    int64_t since;
} activation;
static inline int64_t teardown_key(int color) { return -1 - color; }

typedef struct {
    int64_t word, value;
} stored;

/* All of a PE; what most events touch comes first. */
typedef struct {
    pe head;
    heap events;
    const pe_class *kind;
    int32_t number, running; /* running: some function has started and waits */
    int64_t started, dispatch_at, resumed, issued, depth;
    uint64_t ready_colors, blocked, local_tasks;
    uint64_t urgent_tasks, urgent_colors; /* what goes before other tasks */
    uint64_t ran_local, ran_control, ran_colors; /* tasks that were started, for explanations */
    int32_t rank;                         /* of microthreads that go no further than the code */
    uint32_t flushing;                    /* input queues that are flushed */
    issue slots;
    operation *waiting_on;
    pipe_ ramp_in, ramp_out;
    queue launches; /* of launch_ */
    fifo *fifos;
    dsr *dsrs[3];
    int32_t dsr_room[3];
    int32_t active_count;
    activation active[2 * TASKS];
    int32_t in_queue[QUEUES], out_queue[QUEUES]; /* their colors, -1 for none */
    channel *channels[COLORS];
    router *routers[COLORS];
    operation *threads[COLORS];
    int64_t out_free[COLORS];
    int32_t unsent[COLORS];
    uint8_t channel_order[COLORS], credit_order[COLORS];
    int32_t channel_count, credit_count;
    stored *registers; /* those without a model */
    int32_t register_count;
    int64_t tsc_base, tsc_frozen;
    int32_t frozen;
    uint32_t prng;
    credit *credits[COLORS];
    pipe_ links[PORTS];
    uint64_t users[PORTS];
    int64_t load[PORTS];
} core;
static inline core *core_of(pe *p) { return (core *)p; }

channel *channel_of_color(pe *p, int64_t color);
channel *channel_of(pe *p, const dsd *source);
int64_t input_color(pe *p, int64_t queue);
int64_t output_color(pe *p, const dsd *dst);
void wake(pe *p, int64_t time);
void activate_now(pe *p, int64_t time, int64_t key);
void activate_later(pe *p, int64_t number, int64_t time);
void deliver_at(machine *m, router *r, int64_t time, burst *b);
void poke(pe *p, channel *c, int64_t time);
void open_gate(pe *p, int kind, int64_t number, int64_t time);
int starts_tasks(pe *p, const channel *of);
void close_gate(pe *p, int kind, int64_t number);
int64_t *stored_register(pe *p, int64_t word);
void end_flushes(pe *p, int64_t time);
credit *credit_of(pe *p, const dsd *dst, int64_t count);
void send(pe *p, const dsd *dst, words *payload, int64_t start, int64_t period);
void act_activate(machine *m, int64_t time, void *subject, void *argument);
void launch_function(pe *p, int64_t time, int function, const value *args);
void operation_done_at(machine *m, int64_t time, operation *o);

/* --- the machine --- */

typedef struct {
    int64_t (*call)(int32_t pe, int32_t number, const value *args); /* the bits of a value */
    void (*event)(int64_t token, int64_t time);
    void (*bounds)(int32_t pe, int64_t low, int64_t high);
    void (*microthread)(int32_t pe, int32_t place, int32_t other, int32_t thread);
    void (*edge)(int32_t pe, int32_t color, int32_t out);
    void (*wrap)(int32_t pe, int64_t address, int32_t place);
    void (*trace)(int32_t pe, int32_t op, int32_t place, int64_t start, int64_t end);
} callbacks;

/* Something odd that does not stop a run; current: the function that the PE was running. */
enum { ODD_BOUNDS, ODD_MICROTHREAD, ODD_EDGE, ODD_WRAP };
typedef struct {
    pe *p;
    int32_t kind, current;
    int64_t a, b, c;
} oddity;
void remark(pe *p, int kind, int64_t a, int64_t b, int64_t c);
void tell_remarks(machine *m);

/* An event for a PE of another part, with a burst as its argument. */
typedef struct {
    pe *to;
    event what;
} parcel;
typedef struct {
    parcel *items;
    int64_t count, room;
} outbox;

typedef struct {
    void *subject; /* a stream or a credit */
    int64_t number;
} awaited;

enum { FAULT_NONE, FAULT_RUN, FAULT_COLLISION, FAULT_PYTHON };
typedef struct simulation simulation;

/* The PEs that one thread runs, in the order of their numbers, and all that it writes to. */
struct machine {
    simulation *all;
    int32_t index, first, count; /* of the part; its first PE and their number */
    int64_t now, last_time, events, tasks_run, task_limit;
    int64_t made, acting; /* events made so far, and the PE whose event is handled, or NOBODY */
    int64_t running;      /* the place of that PE; -1 for none */
    int32_t earlier;      /* an event of this cycle came to a PE before it */
    calendar calendar;
    int32_t parity;       /* of the cycle, where several threads run */
    outbox *out[2];       /* by parity, for each part */
    int64_t earliest[2];  /* of what lies there */
    int64_t kept[3];      /* events, tasks and latest time before the cycle */
    int64_t lagging, wanted; /* PEs that have not unblocked the command stream so often */
    awaited *waiting;
    int64_t waiting_count;
    router **changed; /* by code in this cycle */
    int64_t changed_count;
    oddity *odd; /* told after the cycle */
    int64_t odd_count;
    int32_t defers; /* whether Python must not be called now */
    pool pool;
    costs costs;
    callbacks python;
    const pe_class *wrapped_in; /* where an address was last remarked to wrap */
    int32_t wrapped_at;
    int32_t failed; /* set by Python when a callback raised */
    int32_t tracing, report, strict, move16, move32;
    burst *one[1];
    cell *scratch[8];
    int64_t scratch_room[8];
    jmp_buf *escape;
    int32_t fault, fault_pe, fault_place, fault_code;
    int64_t fault_numbers[4];
    char message[256];
};

/* What all parts share; written between cycles only. */
struct simulation {
    int64_t now, deadline;
    int32_t width, height, pe_count, part_count;
    machine **parts;
    machine *faulty;
    core *pes;
    core **grid;
    uint64_t dynamic;           /* colors whose routes may change */
    int64_t generation, stamp;  /* of the links' users, and of walks over the routers */
    pthread_mutex_t walking;
    heap host;                  /* events of nobody */
    int32_t goal;               /* see run.c */
    int64_t amount;
    int64_t worth; /* nanoseconds a cycle takes, in the mean, from which on all threads share it */
    struct team *team; /* see team.c */
};

enum { UNTIL_REST, UNTIL_UNBLOCKED, UNTIL_TIME, UNTIL_RECEIVED, UNTIL_SENT };
int reached_in(machine *m);
int cycle(machine *m, int64_t time);
int64_t events_of(const simulation *s);
void take_parcels(machine *m, int parity);
void drop_parcels(machine *m, int parity);

/* --- team.c --- */

int64_t clock_now(void);
int team_pays(simulation *s, int64_t now, int64_t spent, int64_t events);
int team_run(simulation *s, int64_t limit);
void team_end(simulation *s);

_Noreturn void escape(machine *m, int fault);
void check_python(machine *m);

#endif
