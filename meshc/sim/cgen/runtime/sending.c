/* What a PE sends: credits of queues towards the host, and bursts to its router. */
#include <stdlib.h>

#include "machine.h"

/* Account for count wavelets that are sent. What the route holds is asked again when it may have
 * changed. */
credit *credit_of(pe *p, const dsd *dst, int64_t count)
{
    const simulation *s = p->m->all;
    int64_t queue_ = dst->queue < 0 || dst->queue >= QUEUES ? 0 : dst->queue;
    int64_t color = output_color(p, dst), depth = p->m->costs.output_depth[queue_];
    credit *of = credit_at(p, color);
    if (of->generation != s->generation || of->depth != depth || s->dynamic >> color & 1) {
        int stays = reach(p, (int)color, depth, &of->copies, &of->room);
        of->generation = stays ? s->generation : 0;
        of->depth = depth;
    }
    of->outstanding += count * of->copies;
    return of;
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
    router *r = router_at(p, color);
    pipe_carry(&c->ramp_out, b, max64(start, r->out_free));
    r->out_free = burst_end(b);
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
