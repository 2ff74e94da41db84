/* The event queue: a binary heap in order of (time, number). */
#include <stdlib.h>

#include "machine.h"

static inline int before(const event *a, const event *b)
{
    return a->time < b->time || (a->time == b->time && a->number < b->number);
}

void at(machine *m, int64_t time, action *act, void *subject, void *argument)
{
    heap *h = &m->heap;
    if (h->count == h->room) {
        h->room = h->room ? 2 * h->room : 1024;
        h->items = realloc(h->items, (size_t)h->room * sizeof(event));
        if (!h->items)
            abort();
    }
    event new = {time, ++m->number, act, subject, argument};
    int64_t i = h->count++;
    while (i > 0) {
        int64_t parent = (i - 1) / 2;
        if (!before(&new, &h->items[parent]))
            break;
        h->items[i] = h->items[parent];
        i = parent;
    }
    h->items[i] = new;
}

event heap_pop(heap *h)
{
    event first = h->items[0], last = h->items[--h->count];
    int64_t i = 0, child;
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
