/* Bursts of wavelets, and the wavelets that wait at a PE. Mirrors machine/channel.py. */
#include "machine.h"

words *words_new(machine *m, int64_t count)
{
    words *w = pool_get(&m->pool, sizeof(words) + (size_t)count * 4);
    w->references = 1;
    w->count = (int32_t)count;
    return w;
}

void words_drop(machine *m, words *w)
{
    if (--w->references == 0)
        pool_put(&m->pool, w, sizeof(words) + (size_t)w->count * 4);
}

burst *burst_new(machine *m, words *payload, int64_t first, int64_t count, int64_t t0,
                 int64_t period, int control, credit *paid)
{
    burst *b = pool_get(&m->pool, sizeof(burst));
    payload->references++;
    *b = (burst){payload, (int32_t)first, (int32_t)count, 0, (int8_t)control, 0, 0, t0, period, paid};
    return b;
}

burst *burst_moved(machine *m, const burst *b, int64_t t0)
{
    return burst_new(m, b->payload, b->first, b->count, t0, b->period, b->control, b->paid);
}

void burst_drop(machine *m, burst *b)
{
    words_drop(m, b->payload);
    pool_put(&m->pool, b, sizeof(burst));
}

/* Up to count wavelets of the first burst, copied to out; the number taken. */
int64_t channel_take(machine *m, channel *c, int64_t count, uint32_t *out, int64_t *first,
                     int64_t *last)
{
    burst *b = queue_at(&c->bursts, 0);
    int64_t taken = min64(count, burst_left(b));
    *first = burst_time(b, 0);
    *last = burst_time(b, taken - 1);
    memcpy(out, burst_data(b) + b->pos, (size_t)taken * 4);
    b->pos += (int32_t)taken;
    dropped(m, b, taken);
    if (!burst_left(b)) {
        queue_pop(&c->bursts);
        burst_drop(m, b);
    }
    return taken;
}
