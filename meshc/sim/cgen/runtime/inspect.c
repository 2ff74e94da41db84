/* The state of a PE and of its routers as numbers, for explanations and reports. The order of the
 * numbers is that in which meshc/sim/cgen/inspect.py reads them. */
#include "machine.h"

typedef struct {
    int64_t *items;
    int64_t count, room;
} numbers;

static void add(numbers *to, int64_t v)
{
    if (to->count < to->room)
        to->items[to->count] = v;
    to->count++;
}

static void add_dsd(numbers *to, const dsd *d)
{
    int on_fabric = d->kind == FABIN || d->kind == FABOUT;
    add(to, d->kind);
    add(to, d->kind == FIFO ? d->number : on_fabric ? d->color : 0);
    add(to, on_fabric ? d->queue : 0);
}

static void add_operation(numbers *to, const operation *o)
{
    add(to, (int64_t)(intptr_t)o);
    add(to, o->op);
    add(to, o->place);
    add(to, o->done_count);
    add(to, o->n);
    add(to, o->resume);
    add(to, o->is_async);
    add(to, o->done);
    add(to, o->t);
    add(to, o->sources);
    for (int k = 0; k <= o->sources; k++)
        add_dsd(to, &o->operands[k]);
}

static void add_operations(numbers *to, const queue *q)
{
    add(to, q->count);
    for (int i = 0; i < q->count; i++)
        add_operation(to, queue_at(q, i));
}

static void add_burst(numbers *to, const burst *b)
{
    add(to, b->control);
    add(to, b->t0);
    add(to, b->period);
    add(to, burst_left(b));
    add(to, burst_data(b)[b->pos]);
}

static void add_bursts(numbers *to, const queue *q)
{
    add(to, q->count);
    for (int i = 0; i < q->count; i++)
        add_burst(to, queue_at(q, i));
}

#pragma GCC visibility push(default)

/* Write at most room numbers about a PE; how many there are. */
int64_t csl_inspect_pe(pe *p, int64_t *items, int64_t room)
{
    core *c = core_of(p);
    numbers to = {items, 0, room};
    add(&to, c->channel_count);
    for (int i = 0; i < c->channel_count; i++) {
        const channel *of = c->routers[c->channel_order[i]]->channel;
        add(&to, of->color);
        add(&to, of->blocked);
        add(&to, of->task);
        add_bursts(&to, &of->bursts);
        add_operations(&to, &of->waiting);
    }
    add(&to, c->kind->fifos);
    for (int i = 0; i < c->kind->fifos; i++) {
        add(&to, c->fifos[i].capacity);
        add(&to, c->fifos[i].count);
        add_operations(&to, &c->fifos[i].readers);
        add_operations(&to, &c->fifos[i].writers);
    }
    add(&to, c->active_count);
    for (int i = 0; i < c->active_count; i++) {
        add(&to, c->active[i].key);
        add(&to, c->active[i].since);
    }
    for (int i = 0; i < QUEUES; i++)
        add(&to, c->in_queue[i]);
    add(&to, c->credit_count);
    for (int i = 0; i < c->credit_count; i++) {
        const credit *of = c->routers[c->credit_order[i]]->credit;
        add(&to, c->credit_order[i]);
        add(&to, of->outstanding);
        add(&to, of->room);
        add_operations(&to, &of->held);
        add_operations(&to, &of->stalled);
    }
    add(&to, (int64_t)c->blocked);
    add(&to, c->waiting_on != NULL);
    if (c->waiting_on)
        add_operation(&to, c->waiting_on);
    add(&to, (int64_t)c->ran_local);
    add(&to, (int64_t)c->ran_control);
    add(&to, (int64_t)c->ran_colors);
    return to.count;
}

static void add_directions(numbers *to, const directions *set)
{
    add(to, set->count);
    for (int i = 0; i < set->count; i++)
        add(to, set->d[i]);
}

/* Write at most room numbers about all routers of a PE; how many there are. */
int64_t csl_inspect_routers(pe *p, int64_t *items, int64_t room)
{
    core *c = core_of(p);
    numbers to = {items, 0, room};
    for (int color = 0; color < COLORS; color++) {
        const router *r = c->routers[color];
        if (!r || !r->exists)
            continue;
        add(&to, color);
        add(&to, r->at);
        add(&to, r->ring);
        add(&to, r->pop);
        add(&to, r->teardown);
        add_directions(&to, &r->rx);
        add_directions(&to, &r->tx);
        for (int i = 0; i < 3; i++) {
            add(&to, r->positions[i].present);
            add(&to, r->positions[i].has_rx);
            add(&to, r->positions[i].has_tx);
            add_directions(&to, &r->positions[i].rx);
            add_directions(&to, &r->positions[i].tx);
        }
        for (int port = 0; port < PORTS; port++)
            if (r->ports)
                add_bursts(&to, &r->ports[port]);
            else
                add(&to, 0);
    }
    add(&to, -1);
    for (int out = 0; out < PORTS; out++)
        add(&to, c->load[out]);
    return to.count;
}
