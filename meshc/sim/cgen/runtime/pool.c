/* Small blocks kept by size, and queues of pointers. */
#include <stdlib.h>

#include "machine.h"

enum { CHUNK = 1 << 18 };

struct pool_block {
    pool_block *next;
};

static void *must(void *block)
{
    if (!block)
        abort(); /* no memory: there is nothing left to do in words */
    return block;
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
    size = kind * POOL_STEP;
    if (from->left < size) {
        from->chunks = must(realloc(from->chunks, (size_t)(from->chunk_count + 1) * sizeof(void *)));
        from->chunk = from->chunks[from->chunk_count++] = must(malloc(CHUNK));
        from->left = CHUNK;
    }
    from->left -= size;
    from->chunk += size;
    return from->chunk - size;
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

void queue_push(queue *q, void *item)
{
    if (q->count == q->room) {
        int room = q->room ? 2 * q->room : 4;
        void **items = must(malloc((size_t)room * sizeof(void *)));
        for (int i = 0; i < q->count; i++)
            items[i] = queue_at(q, i);
        free(q->items);
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

void queue_end(queue *q) { free(q->items); }
