/* The state of a machine: routers, PEs, threads. Mirrors meshc/sim/machine. */
#ifndef MACHINE_H
#define MACHINE_H

#include <pthread.h>
#include <setjmp.h>

#include "parts.h"

/* --- router.c: one color at one PE --- */

typedef struct {
    uint8_t count, d[PORTS];
} directions;

typedef struct {
    uint8_t present, has_rx, has_tx;
    directions rx, tx;
} position;

enum { FILTER_NONE, FILTER_RANGE, FILTER_COUNTER, FILTER_SPARSE };
typedef struct {
    int32_t kind;
    int64_t low, high, limit1, limit2, max_counter, init_counter;
    int32_t count_data, count_control, filter_control;
} filter;
/* A filter and where its counter stands. */
typedef struct {
    filter rule;
    int64_t counter, limit, stage;
} filtering;

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
    int32_t count, broken, edge_count;
    struct {
        router *at;
        int64_t hops;
    } *receivers;
    router **edges;
    uint8_t *edge_ports;
    int64_t farthest; /* hops to a receiver */
    int32_t followed; /* whether the ends of the route, and the most words on the way, are known */
    int64_t ends, room;
} tree;

typedef struct {
    int32_t port;
    int64_t t0, end, period;
} passing;

/* What a PE has of a color: its router, of which exists says whether it has a route, and what sends
 * or receives there. What passing bursts touch comes first. */
struct router {
    pe *p;
    channel *channel; /* NULL while nothing has been received */
    credit *credit;   /* NULL without strict queues */
    tree *known;
    int64_t generation; /* of the links' users, in which known was found */
    int64_t free_at;
    int32_t queued; /* bursts that wait at the ports */
    uint8_t color, exists, at, teardown, by_hops; /* by_hops: whether known is broken */
    directions rx, tx; /* at position 0 */
    int8_t entry, exit;
    int64_t out_free;
    int64_t unsent; /* operations whose words wait for their turn */
    uint8_t is_static, ring, pop, swap_x, swap_y;
    uint8_t left; /* bits of the directions in which wavelets left the rectangle */
    filtering *filters; /* NULL without a filter */
    stream *sink, *out;
    router *virtual_target;
    int64_t virtual_hops;
    queue *ports; /* PORTS of them; NULL while nothing has had to wait */
    int64_t stamp;
    int32_t stamp_ports;
    position positions[3];
    uint8_t selects[3];
    change *pending;
    int32_t pending_count, recent_count, recent_room;
    passing *recent;
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

router *router_for_code(pe *p, int color);
void note_links(router *r);
pe *neighbour(const pe *p, int out);
action act_reach;
int swapped(pe *p, int color, int port, int *colors);
extern const int opposite[];
void inject(pe *p, int color, burst *b);
void settle(machine *m);
void pump(machine *m, int64_t now, router *r);
void advance(pe *p, int color);
void enter(machine *m, router *r, burst *b);
void configure_later(pe *p, int color, const change *what);
void stream_read(stream *s, int64_t count);

/* --- credit.c --- */

void settle_credits(machine *m);
void drop_refunds(machine *m);

/* --- reach.c --- */

void tree_free(tree *t);
tree *tree_of(router *origin);
void *grown(void *items, int64_t count, size_t size);
int reach(pe *p, int color, int64_t depth, int64_t *copies, int64_t *room);

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

enum { BANKS = 3, REGISTERS = 64 }; /* of a bank */

/* Pointers by number, of which a few are used: in rows that are made when they are. */
enum { ROW = 16 };

/* All of a PE; what most events touch comes first. The first event lies in one cache line with the
 * head of the heap, behind three of the PE's head. */
enum { FIRST_ACTIVE = 4 };
typedef struct {
    _Alignas(LINE) pe head;
    heap events;
    const pe_class *kind;
    int32_t running; /* whether some function has started and waits */
    int64_t started, dispatch_at, resumed, issued;
    operation *waiting_on;
    uint64_t ready_colors, blocked, local_tasks;
    int32_t rank;                         /* of microthreads that go no further than the code */
    int32_t active_count;
    uint64_t urgent_tasks, urgent_colors; /* what goes before other tasks */
    uint32_t flushing;                    /* input queues that are flushed */
    uint32_t shut;                        /* those that are blocked before they have a color */
    pipe_ ramp_in, ramp_out;
    issue slots;
    router *routers[COLORS]; /* by color; no_router where it is not used */
    int32_t in_queue[QUEUES], out_queue[QUEUES]; /* their colors, -1 for none */
    void **dsrs[BANKS][REGISTERS / ROW];
    void **threads[COLORS / ROW]; /* the latest operation of each microthread */
    fifo *fifos;
    pipe_ links[PORTS];
    uint64_t users[PORTS];
    int64_t load[PORTS];
    int64_t depth;
    uint64_t ran_local, ran_control, ran_colors; /* tasks that were started, for explanations */
    queue launches; /* of launch_ */
    activation *active; /* first_active, until there are more */
    int32_t active_room;
    activation first_active[FIRST_ACTIVE];
    uint8_t channel_order[COLORS], credit_order[COLORS];
    int32_t channel_count, credit_count;
    stored *registers; /* those without a model */
    int32_t register_count;
    int64_t tsc_base, tsc_frozen;
    int32_t frozen;
    uint32_t prng;
} core;
static inline core *core_of(pe *p) { return (core *)p; }

/* --- colors.c --- */

extern router no_router;
router *router_at(pe *p, int64_t color);
router *existing(pe *p, int color);
channel *channel_of_color(pe *p, int64_t color);
credit *credit_at(pe *p, int64_t color);
void **place_in(pe *p, void ***rows, int64_t number);

/* --- pe.c, queues.c, sending.c --- */

channel *channel_of(pe *p, const dsd *source);
int64_t input_color(pe *p, int64_t queue);
int is_idle(pe *p, int64_t queue);
int64_t output_color(pe *p, const dsd *dst);
void wake(pe *p, int64_t time);
void activate_now(pe *p, int64_t time, int64_t key);
void activate_later(pe *p, int64_t number, int64_t time);
action dispatch, deliver;
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
    /* op: -1 for a task, whose name is place; moves: over the fabric; waited: since when
       code has waited for it, -1 for an operation beside the code */
    void (*trace)(int32_t pe, int32_t op, int32_t place, int32_t moves, int64_t waited,
                  int64_t start, int64_t end);
} callbacks;

typedef struct simulation simulation;

/* Something odd that does not stop a run; current: the function that the PE was running. */
enum { ODD_BOUNDS, ODD_MICROTHREAD, ODD_EDGE, ODD_WRAP };
typedef struct {
    pe *p;
    int32_t kind, current;
    int64_t a, b, c;
} oddity;
void remark(pe *p, int kind, int64_t a, int64_t b, int64_t c);
machine *tell_remarks(simulation *s);

/* An event for a PE of another part, with a burst as its argument. */
typedef struct {
    pe *to;
    event what;
} parcel;
typedef struct {
    parcel *items;
    int64_t count, room;
} outbox;

/* Wavelets of a sender that left the fabric in a cycle. */
typedef struct {
    credit *to;
    int64_t count;
} refund;
typedef struct {
    refund *items;
    int64_t count, room;
} refund_list;
enum { REFUNDS_AHEAD = 8 }; /* so far ahead are senders' accounts fetched */

typedef struct {
    void *subject; /* a stream or a credit */
    int64_t number;
} awaited;

enum { FAULT_NONE, FAULT_RUN, FAULT_COLLISION, FAULT_PYTHON };

/* The counters of a part before the events of a PE. */
typedef struct {
    int64_t number, events, tasks_run, last_time;
} tally;

/* The PEs that one thread runs, in the order of their numbers, and all that it writes to. */
struct machine {
    simulation *all;
    int32_t index, count; /* of the part, and of its PEs */
    core *pes;
    int64_t now, last_time, events, tasks_run, task_limit;
    int64_t made, acting; /* events made so far, and the PE whose event is handled, or NOBODY */
    calendar calendar;
    int32_t parity;       /* of the cycle, where several threads run */
    outbox *out[2];       /* by parity, for each part */
    int64_t earliest[2];  /* of what lies there */
    refund_list *refunds; /* for the senders of each part */
    credit **due;         /* whose operations wait for room */
    tally *tallies;       /* of the cycle, one for each PE at most, where there are several parts */
    int64_t tally_count;
    int64_t lagging, wanted; /* PEs that have not unblocked the command stream so often */
    awaited *waiting;
    int64_t waiting_count;
    router **changed; /* by code in this cycle */
    int64_t changed_count;
    oddity *odd; /* told after the cycle */
    int64_t odd_count, told;
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
    int32_t band; /* see division.c */
    machine **parts;
    machine *faulty;
    core *pes; /* of the parts, one behind the other */
    core **grid;
    uint64_t dynamic;           /* colors whose routes may change */
    int32_t swaps;              /* whether a router swaps colors */
    int64_t generation, stamp;  /* of the links' users, from 1 on, and of walks over the routers */
    pthread_mutex_t walking;
    heap host;                  /* events of nobody */
    int32_t goal;               /* see run.c */
    int64_t amount;
    int64_t worth; /* nanoseconds a cycle takes, in the mean, from which on all threads share it */
    struct team *team; /* see team.c */
};

enum { UNTIL_REST, UNTIL_UNBLOCKED, UNTIL_TIME, UNTIL_RECEIVED, UNTIL_SENT };
int reached_in(machine *m);
void put_event(core *c, const event *e);
void begin_cycle(machine *m, int64_t time);
int cycle(machine *m, int64_t time, int64_t end);
int64_t events_of(const simulation *s);

/* --- division.c --- */

void divide(simulation *s, int threads);
int part_of(const simulation *s, int number);
int64_t place_in_part(const simulation *s, int number);
int size_of_part(const simulation *s, int index);
void take_parcels(machine *m, int parity);
void drop_parcels(machine *m, int parity);
void note_tally(machine *m, int number);
int conclude(simulation *s);

/* --- preview.c --- */

static inline void fetch(const void *from, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += LINE)
        __builtin_prefetch((const char *)from + i);
}

enum { AHEAD = 5 };
typedef struct {
    core *next[AHEAD]; /* PEs of a cycle behind the one that is handled, NULL where there are none */
    int64_t place;     /* of the last of them; -1 when there are no others */
} preview;
preview preview_of(machine *m, int64_t time);
void look_ahead(machine *m, preview *v, int64_t time);

/* --- team.c --- */

int64_t clock_now(void);
int team_pays(simulation *s, int64_t now, int64_t spent, int64_t events);
int team_run(simulation *s, int64_t limit);
void team_end(simulation *s);

_Noreturn void escape(machine *m, int fault);
void check_python(machine *m);

#endif
