/* Events of a PE: a binary heap in order of time, then of who made them. */
#include <stdlib.h>

#include "machine.h"

static inline int before(const event *a, const event *b)
{
    if (a->time != b->time)
        return a->time < b->time;
    return a->made < b->made || (a->made == b->made && a->maker < b->maker);
}

void heap_push(heap *h, const event *e)
{
    if (h->count == h->room)
        h->items = longer(h->items, h->first, FIRST_EVENTS, &h->room, sizeof(event));
    int32_t i = h->count++;
    while (i > 0) {
        int32_t parent = (i - 1) / 2;
        if (!before(e, &h->items[parent]))
            break;
        h->items[i] = h->items[parent];
        i = parent;
    }
    h->items[i] = *e;
}

event heap_pop(heap *h)
{
    event first = h->items[0], last = h->items[--h->count];
    int32_t i = 0, child;
    while ((child = 2 * i + 1) < h->count) {
        if (child + 1 < h->count && before(&h->items[child + 1], &h->items[child]))
            child++;
        if (!before(&h->items[child], &last))
            break;
        h->items[i] = h->items[child];
        i = child;
    }
    h->items[i] = last;
    return first;
}

void heap_end(heap *h)
{
    if (h->items != h->first)
        free(h->items);
}
