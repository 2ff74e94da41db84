/* Where the wavelets of a sender go: the trees of static colors, and how many words fit on the way.
 * Mirrors the trees of machine/fabric.py, and machine/reach.py. */
#include <stdlib.h>

#include "machine.h"

void tree_free(tree *t)
{
    if (t) {
        free(t->receivers);
        free(t->edges);
        free(t->edge_ports);
        free(t);
    }
}

typedef struct {
    router *at;
    int port;
    int64_t hops;
} visit;

/* Room for one more item after count of them. */
void *grown(void *items, int64_t count, size_t size)
{
    if (count & (count - 1))
        return items;
    items = realloc(items, (size_t)(count ? 2 * count : 4) * size);
    if (!items)
        abort();
    return items;
}

/* Receivers of a static color with their distance; broken when a route is broken or bursts may
 * meet others on the way. */
static void tree_build(tree *t, router *origin)
{
    const costs *cycles = &origin->p->m->costs;
    visit *work = NULL;
    int64_t count = 0, stamp = ++origin->p->m->all->stamp;
    work = grown(work, 0, sizeof *work);
    work[count++] = (visit){origin, RAMP, 0};
    t->broken = 1;
    for (int64_t i = 0; i < count; i++) {
        visit v = work[i];
        router *r = v.at;
        if (!r || !r->exists)
            goto done;
        directions rx = router_rx(r), tx = router_tx(r);
        if (r->stamp != stamp) {
            r->stamp = stamp;
            r->stamp_ports = 0;
        }
        if (rx.count != 1 || rx.d[0] != v.port || (r->stamp_ports >> v.port & 1))
            goto done;
        if (r->out || r->virtual_target)
            goto done;
        r->stamp_ports |= 1 << v.port;
        for (int k = 0; k < tx.count; k++) {
            int out = tx.d[k];
            if (out == RAMP) {
                t->receivers = grown(t->receivers, t->count, sizeof *t->receivers);
                t->receivers[t->count].at = r;
                t->receivers[t->count++].hops = v.hops;
                t->farthest = max64(t->farthest, v.hops);
                continue;
            }
            uint64_t users = core_of(r->p)->users[out];
            if (users & (users - 1))
                goto done;
            t->edges = grown(t->edges, t->edge_count, sizeof *t->edges);
            t->edge_ports = grown(t->edge_ports, t->edge_count, sizeof *t->edge_ports);
            t->edges[t->edge_count] = r;
            t->edge_ports[t->edge_count++] = (uint8_t)out;
            pe *there = neighbour(r->p, out);
            if (!there)
                goto done;
            work = grown(work, count, sizeof *work);
            work[count++] = (visit){existing(there, r->color), opposite[out],
                                    v.hops + cycles->hop};
        }
    }
    t->broken = 0;
done:
    free(work);
}

/* What is known of a sender's tree, which may be broken; NULL where routes may change. */
static tree *known_of(router *origin)
{
    simulation *s = origin->p->m->all;
    if (s->dynamic >> origin->color & 1)
        return NULL;
    if (origin->generation == s->generation)
        return origin->known;
    tree_free(origin->known);
    tree *t = origin->known = calloc(1, sizeof *t);
    if (!t)
        abort();
    origin->generation = s->generation;
    pthread_mutex_lock(&s->walking);
    tree_build(t, origin);
    pthread_mutex_unlock(&s->walking);
    origin->by_hops = t->broken != 0;
    return t;
}

/* The tree of what a PE sends on a color; NULL where bursts go from router to router. */
tree *tree_of(router *origin)
{
    tree *t = known_of(origin);
    return t && !origin->by_hops ? t : NULL;
}

typedef struct {
    visit *work;
    int64_t count, stamp, ends, room;
} walk;

static void walk_to(walk *w, router *r, int64_t links)
{
    if (!r || r->stamp == w->stamp)
        return;
    r->stamp = w->stamp;
    w->work = grown(w->work, w->count, sizeof *w->work);
    w->work[w->count++] = (visit){r, 0, links};
}

static void walk_ends(walk *w, int64_t room)
{
    w->ends++;
    w->room = max64(w->room, room);
}

/* Go on over what a router sends in a direction. */
static void walk_out(walk *w, router *r, int out, int64_t links)
{
    machine *m = r->p->m;
    if (out == RAMP) {
        walk_ends(w, links + m->costs.input_depth);
    } else if (out == r->exit) {
        if (r->virtual_target)
            walk_to(w, r->virtual_target, links + 1 + r->virtual_hops);
        else
            walk_ends(w, links + 1 + m->costs.host_depth);
    } else {
        pe *there = neighbour(r->p, out);
        int colors[2], count = there ? swapped(there, r->color, opposite[out], colors) : 0;
        for (int i = 0; i < count; i++)
            walk_to(w, existing(there, colors[i]), links + 1);
    }
}

/* Follow a route by the present positions of its routers, to its ends; whether they stay. Where
 * nothing can change it, known is the sender's tree, which keeps what was found. */
static int follow(router *origin, tree *known, int64_t *ends, int64_t *room)
{
    machine *m = origin->p->m;
    int one_color = 1;
    if (known && known->followed) {
        *ends = known->ends;
        *room = known->room;
        return 1;
    }
    pthread_mutex_lock(&m->all->walking);
    walk w = {.stamp = ++m->all->stamp};
    int colors[2], count = origin->exists ? swapped(origin->p, origin->color, RAMP, colors) : 0;
    for (int i = 0; i < count; i++)
        walk_to(&w, existing(origin->p, colors[i]), 0);
    for (int64_t i = 0; i < w.count; i++) {
        visit v = w.work[i];
        directions tx = router_tx(v.at);
        one_color &= v.at->color == origin->color;
        for (int k = 0; k < tx.count; k++)
            walk_out(&w, v.at, tx.d[k], v.hops);
    }
    pthread_mutex_unlock(&m->all->walking);
    free(w.work);
    *ends = max64(1, w.ends);
    *room = w.ends ? w.room : m->costs.input_depth;
    if (known && one_color) {
        known->followed = 1;
        known->ends = *ends;
        known->room = *room;
    }
    return known && one_color;
}

/* What one wavelet that a PE sends on a color counts for, and how much fits under way; whether both
 * stay while the links have the same users. Each receiver has its own copy; a router that makes copies
 * counts them itself. Every link holds one word, the output queue depth and the queue at the end of
 * the route what is documented. */
int reach(pe *p, int color, int64_t depth, int64_t *copies, int64_t *room)
{
    const costs *cycles = &p->m->costs;
    router *r = router_at(p, color);
    tree *t = r->sink ? NULL : known_of(r);
    *copies = 1;
    if (r->sink) {
        *room = depth + cycles->host_depth;
        return 1;
    }
    if (!t || r->by_hops || !t->count) {
        int64_t ends, between;
        int stays = follow(r, t, &ends, &between);
        *room = ends * (depth + between);
        return stays;
    }
    *copies = t->count;
    *room = t->count * (depth + cycles->input_depth + t->farthest);
    return 1;
}
