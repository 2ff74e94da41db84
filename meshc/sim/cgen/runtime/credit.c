/* Room in queues, with strict queues. What leaves the fabric in a cycle makes room after it, for
 * everybody at once: a sender goes on in the next cycle. Mirrors Credit of machine/channel.py. */
#include <stdlib.h>

#include "machine.h"

/* Wavelets left the fabric, in a cycle of a part; fewer than none where a router makes copies. */
void consume(machine *m, credit *c, int64_t count)
{
    refund_list *to = &m->refunds[m->all->part_count > 1 ? c->p->m->index : 0];
    if (to->count && to->items[to->count - 1].to == c) {
        to->items[to->count - 1].count += count;
        return;
    }
    if (to->count == to->room) {
        to->room = to->room ? 2 * to->room : 64;
        to->items = realloc(to->items, (size_t)to->room * sizeof *to->items);
        if (!to->items)
            abort();
    }
    to->items[to->count++] = (refund){c, count};
}

static int in_order(const void *left, const void *right)
{
    const credit *a = *(credit *const *)left, *b = *(credit *const *)right;
    int32_t first = a->p->number, second = b->p->number;
    return first != second ? (first > second) - (first < second) : a->color - b->color;
}

/* Operations that found no room go on if there is room now. */
static void let_go_on(credit *c)
{
    c->is_due = 0;
    while (c->held.count && c->outstanding <= c->room) {
        operation *o = queue_pop(&c->held);
        release(o);
        drop(o);
    }
    while (c->stalled.count && c->outstanding < c->room) {
        operation *o = queue_pop(&c->stalled);
        again(o);
        drop(o);
    }
}

/* Make the room of a cycle that is over, for the senders of a part. */
void settle_credits(machine *m)
{
    int64_t count = 0;
    for (int i = 0; i < m->all->part_count; i++) {
        const refund_list *from = &m->all->parts[i]->refunds[m->index];
        for (int64_t k = 0; k < from->count; k++) {
            credit *c = from->items[k].to;
            if (k + REFUNDS_AHEAD < from->count)
                __builtin_prefetch(from->items[k + REFUNDS_AHEAD].to);
            c->outstanding -= from->items[k].count;
            if ((c->held.count || c->stalled.count) && !c->is_due) {
                m->due = grown(m->due, count, sizeof *m->due);
                m->due[count++] = c;
                c->is_due = 1;
            }
        }
    }
    if (count > 1)
        qsort(m->due, (size_t)count, sizeof *m->due, in_order);
    for (int64_t i = 0; i < count; i++)
        let_go_on(m->due[i]);
}

/* Forget the refunds of a cycle, which the senders have. */
void drop_refunds(machine *m)
{
    for (int i = 0; i < m->all->part_count; i++)
        m->refunds[i].count = 0;
}
