/* What a PE sends: credits of queues towards the host, and bursts to its router. */
#include <stdlib.h>

#include "machine.h"

/* Account for count wavelets that are sent. */
credit *credit_of(pe *p, const dsd *dst, int64_t count)
{
    core *c = core_of(p);
    int64_t color = output_color(p, dst), copies, room;
    int64_t queue_ = dst->queue < 0 || dst->queue >= QUEUES ? 0 : dst->queue;
    reach(p, (int)color, p->m->costs.output_depth[queue_], &copies, &room);
    if (!c->lanes[color].credit) {
        c->lanes[color].credit = pool_keep(&p->m->pool, sizeof(credit));
        c->lanes[color].credit->p = p;
        c->lanes[color].credit->color = (int32_t)color;
        c->credit_order[c->credit_count++] = (uint8_t)color;
    }
    c->lanes[color].credit->room = room;
    c->lanes[color].credit->outstanding += count * copies;
    return c->lanes[color].credit;
}

/* Put wavelets into the fabric. */
void send(pe *p, const dsd *dst, words *payload, int64_t start, int64_t period)
{
    core *c = core_of(p);
    machine *m = p->m;
    int64_t color = output_color(p, dst);
    if (color < 0 || color >= COLORS)
        csl_fault(p, 0, "color %lld is sent but has no route at PE (%d, %d)", (long long)color, p->x,
                  p->y);
    burst *b = burst_new(m, payload, 0, payload->count, start, period, 0, NULL);
    pipe_carry(&c->ramp_out, b, max64(start, c->lanes[color].out_free));
    c->lanes[color].out_free = burst_end(b);
    if (m->strict)
        b->paid = credit_of(p, dst, payload->count);
    if (!dst->control) {
        inject(p, (int)color, b);
        return;
    }
    for (int i = 0; i < payload->count; i++)
        inject(p, (int)color, burst_new(m, payload, i, 1, burst_time(b, i), 1, 1, b->paid));
    burst_drop(m, b);
}
