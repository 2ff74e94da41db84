/* The end of a machine: all its memory is given back. */
#include <stdlib.h>

#include "machine.h"

static void credit_end(credit *c)
{
    if (c) {
        queue_end(&c->held);
        queue_end(&c->stalled);
    }
}

static void router_end(router *r)
{
    if (r->channel) {
        queue_end(&r->channel->bursts);
        queue_end(&r->channel->waiting);
    }
    credit_end(r->credit);
    for (int port = 0; r->ports && port < PORTS; port++)
        queue_end(&r->ports[port]);
    free(r->pending);
    free(r->recent);
    tree_free(r->known);
    if (r->sink)
        free(r->sink->items);
    if (r->out)
        free(r->out->items);
    if (r->sink)
        queue_end(&r->sink->unread);
    if (r->out)
        queue_end(&r->out->unread);
    credit_end(r->host);
    free(r->sink);
    free(r->out);
}

static void core_end(core *c)
{
    for (int color = 0; color < COLORS; color++) {
        router *r = c->routers[color];
        if (r && r != &no_router)
            router_end(r);
    }
    for (int i = 0; c->kind && i < c->kind->fifos; i++) {
        free(c->fifos[i].data);
        queue_end(&c->fifos[i].readers);
        queue_end(&c->fifos[i].writers);
    }
    for (int i = 0; i < PORTS; i++)
        pipe_end(&c->links[i]);
    pipe_end(&c->ramp_in);
    pipe_end(&c->ramp_out);
    pipe_end(&c->slots.pipe);
    queue_end(&c->launches);
    if (c->active != c->first_active)
        free(c->active);
    heap_end(&c->events);
    free(c->registers);
}

static void part_end(machine *m)
{
    for (int i = 0; i < 8; i++)
        free(m->scratch[i]);
    for (int i = 0; i < 2 * m->all->part_count; i++)
        free(m->out[i % 2][i / 2].items);
    for (int i = 0; i < m->all->part_count; i++)
        free(m->refunds[i].items);
    free(m->refunds);
    free(m->due);
    free(m->out[0]);
    free(m->out[1]);
    free(m->waiting);
    free(m->changed);
    free(m->odd);
    free(m->tallies);
    calendar_end(&m->calendar);
    pool_end(&m->pool);
    free(m);
}

/* Give all memory of a machine back. */
__attribute__((visibility("default"))) void csl_machine_end(simulation *s)
{
    team_end(s);
    for (int i = 0; i < s->pe_count; i++)
        core_end(&s->pes[i]);
    for (int i = 0; i < s->part_count; i++)
        part_end(s->parts[i]);
    pthread_mutex_destroy(&s->walking);
    heap_end(&s->host);
    free(s->parts);
    free(s->pes);
    free(s->grid);
    free(s);
}
