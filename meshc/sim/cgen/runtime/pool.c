/* Small blocks kept by size, blocks that live as long as a machine, and queues of pointers. */
#include <stdlib.h>
#include <sys/mman.h>

#include "machine.h"

enum { CHUNK = 1 << 18, LARGE_PAGE = 1 << 21 };

struct pool_block {
    pool_block *next;
};

static void *must(void *block)
{
    if (!block)
        abort(); /* no memory: there is nothing left to do in words */
    return block;
}

/* Zeroed memory, in large pages where it is that long: a machine of many PEs would need more entries
 * for small ones than a processor holds. */
void *zeroed_pages(size_t size)
{
    size_t step = size < LARGE_PAGE ? LINE : LARGE_PAGE;
    void *block = must(aligned_alloc(step, max64(1, ceil_div(size, step)) * step));
#ifdef MADV_HUGEPAGE
    if (size >= LARGE_PAGE)
        madvise(block, size, MADV_HUGEPAGE);
#endif
    return memset(block, 0, size);
}

/* A multiple of POOL_STEP bytes that nobody has had before, which are 0. */
static void *fresh(pool *from, size_t size)
{
    size_t room = from->is_large ? LARGE_PAGE : CHUNK;
    if (from->left < size) {
        from->chunks = must(realloc(from->chunks, (size_t)(from->chunk_count + 1) * sizeof(void *)));
        from->chunk = from->chunks[from->chunk_count++] = zeroed_pages(max64(room, size));
        from->left = max64(room, size);
    }
    from->left -= size;
    from->chunk += size;
    return from->chunk - size;
}

/* Zeroed memory that is given back with the pool. */
void *pool_keep(pool *from, size_t size)
{
    return fresh(from, (size + POOL_STEP - 1) / POOL_STEP * POOL_STEP);
}

void *pool_get(pool *from, size_t size)
{
    size_t kind = (size + POOL_STEP - 1) / POOL_STEP;
    if (kind >= POOL_CLASSES)
        return must(malloc(size));
    pool_block *found = from->free[kind];
    if (found) {
        from->free[kind] = found->next;
        return found;
    }
    return fresh(from, kind * POOL_STEP);
}

void pool_put(pool *to, void *block, size_t size)
{
    size_t kind = (size + POOL_STEP - 1) / POOL_STEP;
    if (kind >= POOL_CLASSES) {
        free(block);
        return;
    }
    ((pool_block *)block)->next = to->free[kind];
    to->free[kind] = block;
}

void pool_end(pool *all)
{
    for (int64_t i = 0; i < all->chunk_count; i++)
        free(all->chunks[i]);
    free(all->chunks);
}

/* An array of room items with twice as many, or at first those that lie beside it. */
void *longer(void *items, void *first, int32_t first_room, int32_t *room, size_t size)
{
    size_t before = (size_t)*room * size;
    *room = *room ? 2 * *room : first_room;
    if (!before)
        return first;
    if (items != first)
        return must(realloc(items, 2 * before));
    return memcpy(must(malloc(2 * before)), first, before);
}

void queue_push(queue *q, void *item)
{
    if (!q->room) {
        q->items = q->few;
        q->room = FEW;
    } else if (q->count == q->room) {
        int room = 2 * q->room;
        void **items = must(malloc((size_t)room * sizeof(void *)));
        for (int i = 0; i < q->count; i++)
            items[i] = queue_at(q, i);
        queue_end(q);
        q->items = items;
        q->room = room;
        q->head = 0;
    }
    q->items[(q->head + q->count++) & (q->room - 1)] = item;
}

void *queue_pop(queue *q)
{
    void *item = queue_at(q, 0);
    q->head = (q->head + 1) & (q->room - 1);
    q->count--;
    return item;
}

int queue_find(const queue *q, const void *item)
{
    for (int i = 0; i < q->count; i++)
        if (queue_at(q, i) == item)
            return i;
    return -1;
}

void queue_remove(queue *q, int position)
{
    for (int i = position; i + 1 < q->count; i++)
        q->items[(q->head + i) & (q->room - 1)] = queue_at(q, i + 1);
    q->count--;
}

void queue_end(queue *q)
{
    if (q->room > FEW)
        free(q->items);
}
