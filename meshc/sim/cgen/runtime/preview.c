/* Fetching ahead. A cycle goes over many PEs, and most of what their events touch is in no cache.
 * While the events of a PE are handled, what those of the next ones will touch is fetched: of the
 * farthest PE its state, of a nearer one what its first event is about, of the next ones what that
 * points to, step by step. A guess may be wrong; nothing depends on it. */
#include "machine.h"

static int is_of_operation(const event *e)
{
    return e->act == begin || e->act == act_progress || e->act == act_done || e->act == act_emit;
}

static void fetch_operation(const operation *o) { fetch(o, sizeof *o); }

enum { MOST_BYTES = 8 * LINE };

static void fetch_memory(const operation *o)
{
    for (int k = 0; k <= o->sources; k++) {
        const dsd *d = &o->operands[k];
        int64_t left = o->n - o->done_count;
        if (d->kind == MEM)
            fetch(o->p->mem + d->addr + o->done_count * d->stride,
                  d->stride > 0 ? min64(left * d->stride, MOST_BYTES) : 1);
    }
}

static const router *reached(const core *c, const event *e)
{
    return c->routers[((const burst *)e->argument)->color];
}

/* The state of a PE, without which nothing can be said about its events. */
static void fetch_state(const core *c) { fetch(c, offsetof(core, routers)); }

/* The router of the color that an operation sends on, NULL of another one. */
static router *const *sent_on(const core *c, const operation *o)
{
    const dsd *to = &o->operands[0];
    int64_t color = to->color;
    if (to->kind != FABOUT)
        return NULL;
    if (to->queue >= 0 && to->queue < QUEUES && (c->kind->wse3 || color < 0))
        color = c->out_queue[to->queue];
    return color >= 0 && color < COLORS ? &c->routers[color] : NULL;
}

/* What its first event is about. */
static void fetch_subject(const core *c, const event *e)
{
    (void)c;
    if (is_of_operation(e))
        fetch_operation(e->subject);
    else if (e->act != dispatch && e->act != act_reach)
        fetch(e->subject, 2 * LINE);
    fetch(e->argument, 1);
}

/* The queues that it changes. */
static void fetch_queues(const core *c, const event *e)
{
    const operation *o = e->subject;
    if (e->act == act_reach) {
        fetch(&c->routers[((const burst *)e->argument)->color], 1);
    } else if (e->act == deliver) {
        fetch(((const router *)e->subject)->channel, sizeof(channel));
        fetch(((const burst *)e->argument)->payload, 1);
    } else if (e->act == act_done) {
        fetch(c->head.top, 2 * LINE);
    } else if (is_of_operation(e)) {
        fetch(sent_on(c, o), 1);
        if (o->channel_count)
            fetch(o->channels[0], sizeof(channel));
    }
}

/* What lies in the queues, and the router that a burst comes to. */
static void fetch_items(const core *c, const event *e)
{
    const operation *o = e->subject;
    if (e->act == act_reach) {
        fetch(reached(c, e), 2 * LINE);
    } else if (e->act == deliver) {
        const channel *to = ((const router *)e->subject)->channel;
        if (to && to->waiting.count)
            fetch_operation(queue_at(&to->waiting, 0));
    } else if (is_of_operation(e)) {
        router *const *to = sent_on(c, o);
        fetch_memory(o);
        if (to)
            fetch(*to, 2 * LINE);
        if (o->channel_count && o->channels[0]->bursts.count)
            fetch(queue_at(&o->channels[0]->bursts, 0), 1);
    }
}

/* The memory that an operation reads or writes once its wavelets come, the account of what it
 * sends, and the neighbour to which a burst goes on. */
static void fetch_data(const core *c, const event *e)
{
    const operation *o = e->subject;
    if (e->act == act_reach) {
        const router *r = reached(c, e);
        const pe *there = r->tx.count ? neighbour(&c->head, r->tx.d[0]) : NULL;
        fetch(there, there ? offsetof(core, events) + 2 * LINE : 0);
        fetch(&c->links[r->tx.d[0]], 1);
    } else if (e->act == deliver) {
        const channel *to = ((const router *)e->subject)->channel;
        if (to && to->waiting.count)
            fetch_memory(queue_at(&to->waiting, 0));
    } else if (is_of_operation(e)) {
        router *const *to = sent_on(c, o);
        if (to)
            fetch((*to)->credit, 1);
        if (o->channel_count && o->channels[0]->bursts.count)
            fetch(((const burst *)queue_at(&o->channels[0]->bursts, 0))->payload, 1);
    }
}

typedef void fetching(const core *c, const event *e);
static fetching *const steps[AHEAD - 1] = {fetch_data, fetch_items, fetch_queues, fetch_subject};

/* Look at the PE behind those known of a cycle. */
void look_ahead(machine *m, preview *v, int64_t time)
{
    core *far = NULL;
    if (v->place >= 0 && (v->place = calendar_after(&m->calendar, time, v->place)) >= 0)
        fetch_state(far = &m->pes[v->place]);
    for (int i = 1; i < AHEAD; i++) {
        v->next[i - 1] = v->next[i];
        const core *c = v->next[i];
        if (c && c->events.count)
            steps[i - 1](c, &c->events.items[0]);
    }
    v->next[AHEAD - 1] = far;
}

/* What lies behind the first PE of a cycle. */
preview preview_of(machine *m, int64_t time)
{
    preview v = {.place = calendar_first(&m->calendar, time)};
    for (int i = 0; i < AHEAD; i++)
        look_ahead(m, &v, time);
    return v;
}
