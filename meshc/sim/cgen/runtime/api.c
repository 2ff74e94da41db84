/* What Python calls: it builds a machine, runs it, and reads and writes its state. Functions that
 * may end in a fault give -1 then; the machine says what happened. */
#include <stdlib.h>

#include "machine.h"

#pragma GCC visibility push(default)

/* Run STATEMENT; -1 when it ends in a fault. */
#define GUARDED(M, STATEMENT)                                                                      \
    do {                                                                                           \
        jmp_buf here, *outer = (M)->escape;                                                        \
        if (setjmp(here)) {                                                                        \
            (M)->escape = outer;                                                                   \
            return -1;                                                                             \
        }                                                                                          \
        (M)->escape = &here;                                                                       \
        STATEMENT;                                                                                 \
        (M)->escape = outer;                                                                       \
    } while (0)

static void *zeroed(size_t count, size_t size)
{
    void *block = calloc(count ? count : 1, size);
    if (!block)
        abort();
    return block;
}

/* --- building --- */

enum { MANY_PES = 256 }; /* whose state fills large pages */

static void part_new(simulation *s, int index, core *pes, const costs *cycles,
                     const callbacks *python)
{
    machine *m = s->parts[index] = zeroed(1, sizeof *m);
    int count = size_of_part(s, index);
    m->all = s;
    m->index = index;
    m->pes = pes;
    m->count = count;
    m->acting = NOBODY;
    m->pool.is_large = count >= MANY_PES;
    m->costs = *cycles;
    m->python = *python;
    calendar_start(&m->calendar, count);
    for (int parity = 0; parity < 2; parity++) {
        m->out[parity] = zeroed((size_t)s->part_count, sizeof(outbox));
        m->earliest[parity] = FOREVER;
    }
    m->refunds = zeroed((size_t)s->part_count, sizeof *m->refunds);
    if (s->part_count > 1)
        m->tallies = zeroed((size_t)count, sizeof *m->tallies);
}

/* A machine without PEs yet, in as many parts as there are threads. */
simulation *csl_machine_new(int width, int height, int pe_count, const costs *cycles,
                            const callbacks *python, int threads)
{
    simulation *s = zeroed(1, sizeof *s);
    s->width = width;
    s->height = height;
    s->pe_count = pe_count;
    s->generation = 1;
    s->pes = zeroed_pages((size_t)pe_count * sizeof(core));
    s->grid = zeroed((size_t)width * (size_t)height, sizeof(core *));
    pthread_mutex_init(&s->walking, NULL);
    s->worth = 20000;
    divide(s, threads);
    s->parts = zeroed((size_t)s->part_count, sizeof *s->parts);
    core *next = s->pes;
    for (int i = 0; i < s->part_count; i++) {
        part_new(s, i, next, cycles, python);
        next += s->parts[i]->count;
    }
    s->faulty = s->parts[0];
    return s;
}

/* The number of each structure that Python fills or reads, to compare with its own idea. */
int64_t csl_size(int which)
{
    static const size_t sizes[] = {sizeof(dsd), sizeof(options), sizeof(pe), sizeof(pe_class),
                                   sizeof(costs), sizeof(callbacks), sizeof(constants),
                                   sizeof(function), sizeof(struct route)};
    return (int64_t)sizes[which];
}

pe *csl_pe_new(simulation *s, int number, int x, int y, const pe_class *kind,
               const function *functions, const constants *k, const dsd *slots, int64_t slot_count,
               uint8_t *memory, int64_t size)
{
    machine *m = s->parts[part_of(s, number)];
    core *c = &m->pes[place_in_part(s, number)];
    pe *p = &c->head;
    p->m = m;
    p->x = x;
    p->y = y;
    p->mem = memory;
    p->size = size;
    p->k = k;
    p->slots = pool_keep(&p->m->pool, (size_t)slot_count * sizeof *slots);
    if (slot_count)
        memcpy(p->slots, slots, (size_t)slot_count * sizeof *slots);
    p->slot_count = slot_count;
    p->functions = functions;
    p->function_count = kind->functions;
    p->limit = FOREVER;
    c->kind = kind;
    c->head.number = number;
    c->dispatch_at = -1;
    memcpy(c->in_queue, kind->in_queue, sizeof c->in_queue);
    memcpy(c->out_queue, kind->out_queue, sizeof c->out_queue);
    for (int color = 0; color < COLORS; color++)
        c->routers[color] = &no_router;
    c->prng = (0xdeadbeefu ^ 0x2a5a5au);
    c->fifos = pool_keep(&p->m->pool, (size_t)kind->fifos * sizeof(fifo));
    for (int i = 0; i < TASKS; i++)
        if (kind->local_task[i])
            c->local_tasks |= 1ull << i;
    s->grid[(int64_t)y * s->width + x] = c;
    return p;
}

int csl_bind_data_tasks(pe *p)
{
    const pe_class *kind = core_of(p)->kind;
    GUARDED(p->m, {
        for (int i = 0; i < kind->data_task_count; i++) {
            int number = kind->data_task_order[i];
            if (is_idle(p, number))
                continue; /* on WSE-3 a queue without a color starts nothing */
            channel *c = channel_of_color(p, kind->wse3 ? input_color(p, number) : number);
            c->task = kind->data_task[number];
            c->blocked = 0;
        }
    });
    return 0;
}

void csl_fifo_capacity(pe *p, int number, int64_t capacity)
{
    fifo *f = &core_of(p)->fifos[number];
    free(f->data);
    f->capacity = capacity;
    f->room = capacity + 1;
    f->data = zeroed((size_t)f->room, sizeof *f->data);
}

int csl_initial_load(pe *p, int bank, int64_t number, const dsd *d, int save, int is_async,
                     const options *o)
{
    GUARDED(p->m, csl_load_dsr(p, bank, number, d, save, is_async, o));
    p->t = 0;
    return 0;
}

static directions directions_of(const uint8_t *listed)
{
    directions set = {listed[0], {0}};
    memcpy(set.d, listed + 1, PORTS);
    return set;
}

static void configure(pe *p, int color, const struct route *given)
{
    router *r = router_at(p, color);
    r->exists = 1;
    r->rx = directions_of(given->rx);
    r->tx = directions_of(given->tx);
    for (int i = 0; i < 3; i++)
        r->positions[i] = (position){(uint8_t)given->present[i], (uint8_t)given->has_rx[i],
                                     (uint8_t)given->has_tx[i], directions_of(given->new_rx[i]),
                                     directions_of(given->new_tx[i])};
    for (int i = 0; i < 3; i++)
        r->selects[i] = given->present[i] && given->has_rx[i];
    r->at = (uint8_t)given->position;
    r->ring = (uint8_t)given->ring;
    r->pop = (uint8_t)given->pop;
    r->teardown = (uint8_t)given->teardown;
    r->swap_x = (uint8_t)given->swap_x;
    r->swap_y = (uint8_t)given->swap_y;
    if (r->swap_x || r->swap_y) {
        p->m->all->swaps = 1;
        p->m->all->dynamic |= 1ull << (color ^ 1);
    }
    if (given->rule.kind != FILTER_NONE) {
        r->filters = pool_keep(&p->m->pool, sizeof *r->filters);
        *r->filters = (filtering){given->rule, given->rule.init_counter, given->rule.limit1, 0};
    }
    note_links(r);
    if (!given->is_static)
        p->m->all->dynamic |= 1ull << color;
}

int csl_configure(pe *p, int color, const struct route *given)
{
    GUARDED(p->m, configure(p, color, given));
    return 0;
}

/* The routes of a color at the PEs of a rectangle: numbers of routes, row by row, or -1. */
int csl_configure_all(simulation *s, int color, const int32_t *numbers, int width, int height,
                      const struct route *routes)
{
    machine *m = s->parts[0];
    GUARDED(m, {
        for (int y = 0; y < height && y < s->height; y++)
            for (int x = 0; x < width && x < s->width; x++) {
                int32_t number = numbers[(int64_t)y * width + x];
                core *c = s->grid[(int64_t)y * s->width + x];
                if (c && number >= 0)
                    configure(&c->head, color, &routes[number]);
            }
    });
    return 0;
}

static stream *stream_new(machine *m)
{
    stream *s = zeroed(1, sizeof *s);
    s->m = m;
    return s;
}

/* The PE streams a color to the host from its RAMP. */
stream *csl_sink(pe *p, int color)
{
    router *r = router_at(p, color);
    if (!r->sink)
        r->sink = stream_new(p->m);
    return r->sink;
}

/* A port between the host and a PE; the stream of an output. */
stream *csl_open_port(pe *p, int color, int direction, int is_input)
{
    router *r = router_at(p, color);
    p->m->all->dynamic |= 1ull << color;
    if (is_input) {
        r->entry = (int8_t)direction;
        return NULL;
    }
    r->exit = (int8_t)direction;
    r->out = stream_new(p->m);
    return r->out;
}

/* A virtual link from an output port of one PE to an input port of another. */
void csl_connect(pe *source, int color, int out, pe *target, int there, int port, int64_t hops)
{
    router *from = router_at(source, color), *to = router_at(target, there);
    from->exit = (int8_t)out;
    to->entry = (int8_t)port;
    from->virtual_target = to;
    from->virtual_hops = hops;
    source->m->all->dynamic |= 1ull << color | 1ull << there;
}

int csl_initial_setting(pe *p, int64_t word, int64_t v)
{
    GUARDED(p->m, {
        int64_t task = word - TASK_PRIORITIES;
        if (word == THREAD_PRIORITY)
            csl_thread_priority(p, v);
        else if (word >= TASK_PRIORITIES && word < TASK_PRIORITIES_END)
            csl_task_priority(p, task / 256, task % 256, v);
        else
            csl_set_config(p, word, v);
    });
    return 0;
}

int csl_initial_gate(pe *p, int opens, int kind, int64_t number)
{
    GUARDED(p->m, {
        if (opens)
            open_gate(p, kind, number, 0);
        else
            close_gate(p, kind, number);
    });
    return 0;
}

int csl_initial_activate(pe *p, int64_t number)
{
    GUARDED(p->m, activate_now(p, 0, number));
    return 0;
}

/* --- what the host does --- */

void csl_activate_later(pe *p, int64_t number, int64_t time) { activate_later(p, number, time); }

/* Python unblocks the command stream of a PE. */
void csl_host_unblock(pe *p) { csl_unblock_cmd_stream(p); }

void csl_launch(pe *p, int function, const value *args)
{
    launch_function(p, p->m->now, function, args);
    wake(p, p->m->now);
}

/* Account for words that the host sends, with strict queues. */
static credit *host_credit(router *r, int64_t count)
{
    machine *m = r->p->m;
    if (!m->strict)
        return NULL;
    if (!r->host) {
        r->host = pool_keep(&m->pool, sizeof *r->host);
        r->host->p = r->p;
        r->host->color = r->color;
        r->host->room = m->costs.input_depth + m->costs.host_depth;
    }
    r->host->outstanding += count;
    return r->host;
}

static burst *host_burst(router *r, const uint32_t *data, int64_t count, int64_t t0)
{
    machine *m = r->p->m;
    words *payload = words_new(m, count);
    memcpy(payload->data, data, (size_t)count * 4);
    burst *b = burst_new(m, payload, 0, count, t0, 1, 0, host_credit(r, count));
    words_drop(m, payload);
    return b;
}

/* The host sends words to the RAMP of a PE. */
int csl_inject_stream(pe *p, int color, const uint32_t *data, int64_t count)
{
    machine *m = p->m;
    GUARDED(m, {
        int64_t when = m->now + m->costs.ramp;
        router *r = router_at(p, color);
        deliver_at(m, r, when, host_burst(r, data, count, when));
    });
    return 0;
}

/* The host sends words into a port of a layout. */
void csl_enter(pe *p, int color, const uint32_t *data, int64_t count)
{
    router *r = router_at(p, color);
    enter(p->m, r, host_burst(r, data, count, p->m->now + 1));
}

int64_t csl_stream_total(const stream *s) { return s->total; }

/* Take count wavelets, which must be there, out of a stream. */
void csl_stream_take(stream *s, int64_t count, uint32_t *out)
{
    int64_t used = 0;
    s->total -= count;
    for (; count; used++) {
        burst *b = s->items[used];
        int64_t part = min64(count, burst_left(b));
        memcpy(out, burst_data(b) + b->pos, (size_t)part * 4);
        out += part;
        count -= part;
        b->pos += (int32_t)part;
        if (burst_left(b))
            break;
        burst_drop(s->m, b);
    }
    s->count -= used;
    memmove(s->items, s->items + used, (size_t)s->count * sizeof *s->items);
}

/* What the host sent to a color of a PE; NULL without strict queues. */
const credit *csl_host_credit(pe *p, int color) { return router_at(p, color)->host; }

/* --- reading --- */

static int64_t sum_of(const simulation *s, size_t field)
{
    int64_t sum = 0;
    for (int i = 0; i < s->part_count; i++)
        sum += *(const int64_t *)((const char *)s->parts[i] + field);
    return sum;
}

int64_t csl_number(simulation *s, int which)
{
    const machine *faulty = s->faulty;
    int64_t found = 0;
    switch (which) {
    case 0: return s->now;
    case 1:
        for (int i = 0; i < s->part_count; i++)
            found = max64(found, s->parts[i]->last_time);
        return found;
    case 2: return sum_of(s, offsetof(machine, tasks_run));
    case 3: return sum_of(s, offsetof(machine, events));
    case 4: return faulty->fault;
    case 5: return faulty->fault_pe;
    case 6: return faulty->fault_place;
    case 7: /* the last of the subjects of a goal that are waited for */
        for (int i = 0; i < s->part_count; i++)
            if (s->parts[i]->waiting_count)
                found = max64(found, s->parts[i]->waiting[s->parts[i]->waiting_count - 1].number);
        return found;
    case 12: return s->part_count;
    default: return faulty->fault_numbers[which - 8];
    }
}

static void set_number(machine *m, int which, int64_t v)
{
    switch (which) {
    case 3: m->task_limit = v; break;
    case 4: m->failed = (int32_t)v; break;
    case 5: m->tracing = (int32_t)v; break;
    case 6: m->report = (int32_t)v; break;
    case 7: m->move16 = (int32_t)v; break;
    case 8: m->move32 = (int32_t)v; break;
    default: m->strict = (int32_t)v; break;
    }
}

void csl_set_number(simulation *s, int which, int64_t v)
{
    if (which == 2)
        s->dynamic |= (uint64_t)v;
    else if (which == 10)
        s->deadline = v;
    else if (which == 11)
        s->worth = v;
    for (int i = 0; which > 2 && which < 10 && i < s->part_count; i++)
        set_number(s->parts[i], which, v);
}

/* The initial state of the machine is complete. */
void csl_machine_ready(simulation *s)
{
    for (int i = 0; i < s->part_count; i++)
        settle(s->parts[i]);
}

const char *csl_message(const simulation *s) { return s->faulty->message; }
