/* The fabric: bursts along fixed multicast trees, or hop by hop where they may meet others or
 * routes may change. Mirrors machine/fabric.py. */
#include <stdlib.h>

#include "machine.h"

const int opposite[PORTS] = {RAMP, WEST, EAST, SOUTH, NORTH};
static const int step_x[PORTS] = {0, 1, -1, 0, 0}, step_y[PORTS] = {0, 0, 0, -1, 1};
static const char *const names[PORTS] = {"RAMP", "EAST", "WEST", "NORTH", "SOUTH"};

/* --- routers --- */

/* The PE one step in a direction, NULL past the edge. */
pe *neighbour(const pe *p, int out)
{
    const simulation *s = p->m->all;
    int x = p->x + step_x[out], y = p->y + step_y[out];
    if (x < 0 || y < 0 || x >= s->width || y >= s->height)
        return NULL;
    core *c = s->grid[(int64_t)y * s->width + x];
    return c ? &c->head : NULL;
}

/* Remember which colors have routes over the links of a router. */
void note_links(router *r)
{
    core *c = core_of(r->p);
    uint32_t outputs = router_outputs(r);
    for (int out = 0; out < PORTS; out++)
        if ((outputs >> out & 1) && !(c->users[out] >> r->color & 1)) {
            c->users[out] |= 1ull << r->color;
            r->p->m->all->generation++;
        }
}

static int uses_new_links(const router *r)
{
    uint32_t outputs = router_outputs(r);
    for (int out = 0; out < PORTS; out++)
        if ((outputs >> out & 1) && !(core_of(r->p)->users[out] >> r->color & 1))
            return 1;
    return 0;
}

static void changes(router *r)
{
    machine *m = r->p->m;
    m->changed = grown(m->changed, m->changed_count, sizeof *m->changed);
    m->changed[m->changed_count++] = r;
}

/* What code changed in a cycle holds for the trees of all senders from the next one on. */
void settle(machine *m)
{
    for (int64_t i = 0; i < m->changed_count; i++) {
        note_links(m->changed[i]);
        m->all->dynamic |= 1ull << m->changed[i]->color;
    }
    m->changed_count = 0;
}

/* The router of a color for code that changes it, made if the color had no route. */
router *router_for_code(pe *p, int color)
{
    router *r = router_at(p, color);
    if (!r->exists)
        r->exists = r->is_static = 1;
    if (!(p->m->all->dynamic >> color & 1))
        changes(r);
    return r;
}

/* --- sending --- */

static void note(machine *m, int64_t time) { m->last_time = max64(m->last_time, time); }

static void stream_add(stream *s, burst *b)
{
    if (s->count == s->room) {
        s->room = 2 * s->room + 4;
        s->items = realloc(s->items, (size_t)s->room * sizeof *s->items);
        if (!s->items)
            abort();
    }
    s->items[s->count++] = b;
    s->total += burst_left(b);
}

/* The host asks for count more wavelets of a stream, which makes room for others. */
void stream_read(stream *s, int64_t count)
{
    int64_t wanted = s->wanted + count, given = min64(wanted, s->unread.count);
    s->wanted = wanted - given;
    for (int64_t i = 0; i < given; i++)
        consume(s->m, queue_pop(&s->unread), 1);
}

/* A burst lies in the queues between a PE and the host until the host asks for it. */
static void to_host(machine *m, stream *s, burst *b)
{
    int64_t end = burst_end(b);
    stream_add(s, b);
    note(m, end);
    if (b->paid) {
        for (int i = 0; i < b->count; i++)
            queue_push(&s->unread, b->paid);
        stream_read(s, 0);
    }
}

static void deliver_parts(machine *m, router *r, burst *b)
{
    burst **parts;
    int64_t count = router_filter(m, r, b, &parts);
    for (int64_t i = 0; i < count; i++)
        deliver_at(m, r, max64(parts[i]->t0, m->now), parts[i]);
}

enum { NEAR = 4, FAR = 8 }; /* so far ahead are receivers fetched */

/* What goes on of a burst at t0: a copy, or at last the burst itself. Its payload, which nobody
 * looks at on the way, is in no cache. */
static burst *going_on(machine *m, burst *b, int64_t t0, int is_last)
{
    if (!is_last)
        return burst_moved(m, b, t0);
    b->t0 = t0;
    return b;
}

static void multicast(machine *m, tree *t, burst *b)
{
    int64_t start = b->t0 + 2 * m->costs.ramp;
    for (int i = 0; m->report && i < t->edge_count; i++)
        core_of(t->edges[i]->p)->load[t->edge_ports[i]] += b->count;
    for (int i = 0; i < t->count; i++) {
        if (i + FAR < t->count)
            fetch(t->receivers[i + FAR].at, LINE);
        if (i + NEAR < t->count)
            fetch(t->receivers[i + NEAR].at->p, offsetof(core, events) + LINE);
        deliver_parts(m, t->receivers[i].at,
                      going_on(m, b, start + t->receivers[i].hops, i + 1 == t->count));
    }
    if (!t->count)
        burst_drop(m, b);
}

/* --- hop by hop: an arrival is a burst at a port of a router --- */

static void act_arrive(machine *m, int64_t now, void *subject, void *argument);
static void forward(router *r, burst *b, int64_t start);

static void arrive_later(machine *m, router *r, int port, burst *b)
{
    b->port = (int8_t)port;
    at_other(m, r->p, max64(b->t0, m->now), act_arrive, r, b);
}

static void act_pump(machine *m, int64_t now, void *subject, void *argument)
{
    (void)argument;
    pump(m, now, subject);
}

/* A burst has to wait at a port. */
static void put_by(router *r, burst *b)
{
    if (!r->ports)
        r->ports = pool_keep(&r->p->m->pool, PORTS * sizeof(queue));
    queue_push(&r->ports[b->port], b);
    r->queued++;
}

static int accepts(const directions *rx, int port)
{
    for (int i = 0; i < rx->count; i++)
        if (rx->d[i] == port)
            return 1;
    return 0;
}

static void act_arrive(machine *m, int64_t now, void *subject, void *argument)
{
    router *r = subject;
    burst *b = argument;
    directions rx = router_rx(r);
    if (rx.count > 1 && b->count) {
        int other = router_meeting(r, b->port, b);
        if (other >= 0) {
            m->fault_pe = r->p->number;
            m->fault_numbers[0] = r->color;
            m->fault_numbers[1] = other;
            m->fault_numbers[2] = b->port;
            escape(m, FAULT_COLLISION);
        }
    }
    int64_t start = max64(b->t0, r->free_at);
    if (!r->queued && !r->teardown && start <= now && accepts(&rx, b->port)) {
        forward(r, b, start); /* nothing waits that might follow it */
        return;
    }
    put_by(r, b);
    pump(m, now, r);
}

/* A burst enters a router from outside, through the port that has no neighbour. */
void enter(machine *m, router *r, burst *b) { arrive_later(m, r, r->entry, b); }

/* Drop the first command of a control wavelet; a NOP that the CE ignores comes in last. */
static uint32_t pop_command(uint32_t word)
{
    uint32_t commands[9] = {word >> 22 & 7, word >> 25 & 7, (word >> 28 & 3) | (word & 1) << 2};
    for (int i = 0; i < 5; i++)
        commands[3 + i] = word >> (3 * i + 1) & 7;
    commands[8] = 4;
    uint32_t result = (word & 0x3f << 16) | (word & 0xc0000000u);
    result |= commands[1] << 22 | commands[2] << 25 | (commands[3] & 3) << 28 | commands[3] >> 2;
    for (int i = 0; i < 5; i++)
        result |= commands[4 + i] << (3 * i + 1);
    return result;
}

/* Whether a router takes part in the swap of what arrives at a port: from the PE itself, when it
 * does so on both sides. */
static int swaps(const router *r, int port)
{
    int with_x = port != NORTH && port != SOUTH, with_y = port != EAST && port != WEST;
    return r && (r->swap_x || !with_x) && (r->swap_y || !with_y);
}

/* The colors a wavelet has after arriving at a PE. */
int swapped(pe *p, int color, int port, int *colors)
{
    colors[0] = color;
    if (!p->m->all->swaps)
        return 1;
    int a = swaps(existing(p, color), port), b = swaps(existing(p, color ^ 1), port);
    colors[0] = a && b ? color ^ 1 : color;
    colors[1] = color ^ 1;
    return !a && b ? 2 : 1;
}

/* The routers that a burst comes to at a PE, by the colors that it has there. */
static int targets(pe *p, int color, int port, burst *b, router **found)
{
    int colors[2], count = swapped(p, color, port, colors);
    for (int i = 0; i < count; i++) {
        found[i] = existing(p, colors[i]);
        if (!found[i])
            csl_fault(p, 0,
                      "color %d arrives at PE (%d, %d) from the %s, which has no route for it",
                      colors[i], p->x, p->y, names[port]);
    }
    if (b->paid)
        consume(p->m, b->paid, -(int64_t)(count - 1) * b->count);
    return count;
}

/* A burst reaches a PE from a neighbour; its color may be swapped there. */
void act_reach(machine *m, int64_t now, void *subject, void *argument)
{
    burst *b = argument;
    router *found[2];
    int count = targets(subject, b->color, b->port, b, found);
    for (int i = 0; i < count; i++) {
        burst *copy = b;
        if (i + 1 < count) {
            copy = burst_moved(m, b, b->t0);
            copy->port = b->port;
        }
        act_arrive(m, now, found[i], copy);
    }
}

/* A burst, which becomes the neighbour's, goes to it in a direction and is there at its t0. */
static void cross(router *r, int out, burst *b)
{
    machine *m = r->p->m;
    pe *there = neighbour(r->p, out);
    if (!there) {
        if (!(r->left >> out & 1)) {
            r->left |= (uint8_t)(1 << out);
            remark(r->p, ODD_EDGE, r->color, out, 0);
        }
        dropped(m, b, b->count);
        burst_drop(m, b);
        return;
    }
    b->port = (int8_t)opposite[out];
    b->color = (int8_t)r->color;
    at_other(m, there, max64(b->t0, m->now), act_reach, there, b);
}

/* A burst leaves through a port: to the host or over a virtual link. */
static void leave(router *r, burst *b)
{
    machine *m = r->p->m;
    if (r->virtual_target) {
        b->t0 += r->virtual_hops;
        enter(m, r->virtual_target, b);
    } else if (b->control || !r->out) { /* the host takes data only */
        dropped(m, b, b->count);
        burst_drop(m, b);
    } else {
        to_host(m, r->out, b);
    }
}

/* Send a burst over the link in a direction; when its last wavelet has left. */
static int64_t hop(router *r, int out, burst *b, int64_t start)
{
    machine *m = r->p->m;
    int64_t end;
    if (r->exit == out) {
        end = burst_end(b);
        b->t0 += m->costs.hop;
        leave(r, b);
        return end;
    }
    pipe_carry(&core_of(r->p)->links[out], b, start);
    core_of(r->p)->load[out] += b->count;
    end = burst_end(b);
    b->t0 += m->costs.hop;
    cross(r, out, b);
    return end;
}

static void tear_down(router *r, int64_t time)
{
    machine *m = r->p->m;
    if (core_of(r->p)->kind->teardown[r->color])
        at(r->p, max64(time, m->now), act_activate, r->p,
           (void *)(intptr_t)teardown_key(r->color));
}

static void forward(router *r, burst *b, int64_t start)
{
    machine *m = r->p->m;
    if (!b->count) {
        router_execute(r, 1);
        burst_drop(m, b);
        return;
    }
    directions before = router_tx(r);
    burst *onward = b;
    int ignored = 0;
    if (b->control) {
        uint32_t word = burst_data(b)[0], command = word >> 22 & 3;
        ignored = word >> 24 & 1;
        int popped = router_execute(r, (int)command);
        if (command == 3 && !r->teardown) {
            r->teardown = 1;
            tear_down(r, start);
        }
        if (popped) {
            words *one = words_new(m, 1);
            one->data[0] = pop_command(word);
            onward = burst_new(m, one, 0, 1, start, 1, 1, b->paid);
            words_drop(m, one);
        }
    }
    r->free_at = start + (b->count - 1) * b->period + 1;
    if (b->paid)
        consume(m, b->paid, -(int64_t)(before.count - 1) * b->count);
    int kept = 1;
    for (int i = 0; i < before.count; i++) {
        int out = before.d[i], is_last = onward == b && i + 1 == before.count;
        if (out == RAMP && ignored) {
            dropped(m, b, b->count);
            continue;
        }
        kept &= !is_last;
        if (out != RAMP)
            r->free_at = max64(r->free_at, hop(r, out, going_on(m, onward, start, is_last), start));
        else
            deliver_parts(m, r, going_on(m, b, start + m->costs.ramp, is_last));
    }
    if (onward != b)
        burst_drop(m, onward);
    if (kept)
        burst_drop(m, b);
}

/* Forward everything that the router's present position accepts. */
void pump(machine *m, int64_t now, router *r)
{
    (void)m;
    while (r->queued && !r->teardown) {
        directions rx = router_rx(r);
        int i = 0;
        while (i < rx.count && !r->ports[rx.d[i]].count)
            i++;
        if (i == rx.count)
            return;
        queue *port = &r->ports[rx.d[i]];
        burst *b = queue_at(port, 0);
        int64_t start = max64(b->t0, r->free_at);
        if (start > now) {
            at(r->p, start, act_pump, r, NULL);
            return;
        }
        queue_pop(port);
        r->queued--;
        forward(r, b, start);
    }
}

/* A PE sends a burst; its t0 is when the first wavelet leaves the PE. */
void inject(pe *p, int color, burst *b)
{
    machine *m = p->m;
    router *r = router_at(p, color);
    if (r->sink) {
        to_host(m, r->sink, b);
        return;
    }
    tree *t = b->control ? NULL : tree_of(r);
    if (t) {
        multicast(m, t, b);
        return;
    }
    if (!r->exists)
        csl_fault(p, 0, "color %d is sent but has no route at PE (%d, %d)", color, p->x, p->y);
    b->t0 += m->costs.ramp;
    router *found[2];
    burst *copy = targets(p, color, RAMP, b, found) == 2 ? burst_moved(m, b, b->t0) : NULL;
    arrive_later(m, found[0], RAMP, b);
    if (copy)
        arrive_later(m, found[1], RAMP, copy);
}

/* --- changes by code --- */

/* Advance a switch behind all that its PE has sent: a burst without wavelets does it. */
void advance(pe *p, int color)
{
    machine *m = p->m;
    router *r = existing(p, color);
    if (r) {
        words *none = words_new(m, 1);
        int64_t time = core_of(p)->routers[color]->out_free + m->costs.ramp;
        arrive_later(m, r, RAMP, burst_new(m, none, 0, 0, time, 1, 0, NULL));
        words_drop(m, none);
    }
}

/* The oldest pending change of a router takes effect. */
static void act_reconfigure(machine *m, int64_t now, void *subject, void *argument)
{
    router *r = subject;
    (void)argument;
    change oldest = r->pending[0];
    r->pending_count--;
    memmove(r->pending, r->pending + 1, (size_t)r->pending_count * sizeof(change));
    router_change(r, &oldest);
    if (uses_new_links(r))
        changes(r);
    pump(m, now, r);
}

/* Change a router; it takes effect a little later than the PE's own time. */
void configure_later(pe *p, int color, const change *what)
{
    machine *m = p->m;
    router *r = router_for_code(p, color);
    r->pending = grown(r->pending, r->pending_count, sizeof *r->pending);
    r->pending[r->pending_count++] = *what;
    at(p, max64(p->t + m->costs.configure, m->now), act_reconfigure, r, NULL);
}
