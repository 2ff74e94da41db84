/* Running: cycle by cycle, the PEs of a cycle in the order of their numbers. A PE reaches another
 * one a cycle later at the earliest, so that parts of the machine can do a cycle side by side. */
#include <stdlib.h>

#include "machine.h"

/* --- making events --- */

static event made_by(machine *m, int64_t time, action *act, void *subject, void *argument)
{
    return (event){time, m->now, m->acting << MAKER_SHIFT | ++m->made, act, subject, argument};
}

/* Add to the events of a PE. */
void put_event(core *c, const event *e)
{
    machine *m = c->head.m;
    heap_push(&c->events, e);
    calendar_note(&m->calendar, m->now, e->time, c - m->pes);
}

/* Call act at a time, as an event of a PE that this part runs. */
void at(pe *p, int64_t time, action *act, void *subject, void *argument)
{
    event new = made_by(p->m, time, act, subject, argument);
    put_event(core_of(p), &new);
}

/* The same for any PE, with a burst, which then belongs to the event; time is after this cycle
 * where the PE is one of another part. */
void at_other(machine *m, pe *there, int64_t time, action *act, void *subject, burst *b)
{
    event new = made_by(m, time, act, subject, b);
    if (there->m == m) {
        put_event(core_of(there), &new);
        return;
    }
    int parity = m->parity;
    outbox *to = &m->out[parity][there->m->index];
    if (to->count == to->room) {
        to->room = to->room ? 2 * to->room : 64;
        to->items = realloc(to->items, (size_t)to->room * sizeof(parcel));
        if (!to->items)
            abort();
    }
    to->items[to->count++] = (parcel){there, new};
    m->earliest[parity] = min64(m->earliest[parity], time);
}

/* --- between cycles --- */

void begin_cycle(machine *m, int64_t time)
{
    m->now = time;
    m->fault = FAULT_NONE;
    m->tally_count = 0;
    calendar_turn(&m->calendar, time);
}

/* Give all senders the room of a cycle. */
static void settle_all_credits(simulation *s)
{
    for (int i = 0; i < s->part_count; i++)
        settle_credits(s->parts[i]);
    for (int i = 0; i < s->part_count; i++)
        drop_refunds(s->parts[i]);
}

/* What parts have sent and made room for in a cycle reaches the others. */
static void exchange(simulation *s)
{
    for (int i = 0; s->part_count > 1 && i < s->part_count; i++)
        take_parcels(s->parts[i], 0);
    for (int i = 0; s->part_count > 1 && i < s->part_count; i++)
        drop_parcels(s->parts[i], 0);
    settle_all_credits(s);
}

/* --- a cycle --- */

static void run_events(machine *m, core *c, int64_t time)
{
    m->acting = c->head.number;
    while (c->events.count && c->events.items[0].time == time) {
        event e = heap_pop(&c->events);
        m->events++;
        e.act(m, time, e.subject, e.argument);
    }
}

/* Handle the events of a cycle at the PEs of a part, to one of a number; 0 when it ends in a fault. */
int cycle(machine *m, int64_t time, int64_t end)
{
    jmp_buf here, *outer = m->escape;
    m->last_time = max64(m->last_time, time);
    if (setjmp(here)) {
        m->escape = outer;
        m->acting = NOBODY;
        return 0;
    }
    m->escape = &here;
    preview ahead = preview_of(m, time);
    for (int64_t place; (place = calendar_first(&m->calendar, time)) >= 0;) {
        if (m->pes[place].head.number >= end)
            break;
        look_ahead(m, &ahead, time);
        if (m->defers)
            note_tally(m, m->pes[place].head.number);
        run_events(m, &m->pes[place], time);
        calendar_strike(&m->calendar, time, place);
    }
    m->escape = outer;
    m->acting = NOBODY;
    return 1;
}

/* Handle the first event of nobody, which is due; 0 when it ends in a fault. */
static int host_event(simulation *s)
{
    machine *m = s->parts[0];
    jmp_buf here, *outer = m->escape;
    if (setjmp(here)) {
        m->escape = outer;
        return 0;
    }
    m->escape = &here;
    event e = heap_pop(&s->host);
    m->events++;
    m->last_time = max64(m->last_time, e.time);
    e.act(m, e.time, e.subject, e.argument);
    m->escape = outer;
    return 1;
}

static int64_t next_of_parts(const simulation *s)
{
    int64_t next = FOREVER;
    for (int i = 0; i < s->part_count; i++)
        next = min64(next, calendar_next(&s->parts[i]->calendar, s->parts[i]->now));
    return next;
}

static int64_t next_of_host(const simulation *s)
{
    return s->host.count ? s->host.items[0].time : FOREVER;
}

/* The first PE of a part that has events in a cycle, or FOREVER. */
static int64_t next_due(const machine *m, int64_t time)
{
    int64_t place = calendar_first(&m->calendar, time);
    return place < 0 ? FOREVER : m->pes[place].head.number;
}

/* Handle the events of a cycle at all PEs, by their numbers; 0 when it ends in a fault. */
static int all_pes(simulation *s, int64_t time)
{
    for (;;) {
        int64_t first = FOREVER, second = FOREVER;
        machine *m = NULL;
        for (int i = 0; i < s->part_count; i++) {
            int64_t number = next_due(s->parts[i], time);
            if (number < first) {
                second = first;
                first = number;
                m = s->parts[i];
            } else {
                second = min64(second, number);
            }
        }
        if (!m)
            return 1;
        if (!cycle(m, time, second))
            return 0;
    }
}

/* Handle all events of a cycle; 0 when it ends in a fault. */
static int whole_cycle(simulation *s, int64_t time)
{
    s->now = time;
    for (int i = 0; i < s->part_count; i++)
        begin_cycle(s->parts[i], time);
    for (;;) {
        if (!all_pes(s, time))
            return 0;
        if (next_of_host(s) != time)
            break;
        if (!host_event(s))
            return 0;
    }
    exchange(s);
    for (int i = 0; i < s->part_count; i++)
        settle(s->parts[i]);
    return 1;
}

/* Events handled so far. */
int64_t events_of(const simulation *s)
{
    int64_t sum = 0;
    for (int i = 0; i < s->part_count; i++)
        sum += s->parts[i]->events;
    return sum;
}

/* --- goals --- */

static void act_nothing(machine *m, int64_t time, void *subject, void *argument)
{
    (void)m, (void)time, (void)subject, (void)argument;
}

static void at_host(simulation *s, int64_t time, action *act, void *subject)
{
    event new = made_by(s->parts[0], time, act, subject, NULL);
    heap_push(&s->host, &new);
}

static int has_room(const credit *c) { return c->outstanding <= c->room; }

/* Whether a part is where the host wants it to be. */
int reached_in(machine *m)
{
    switch (m->all->goal) {
    case UNTIL_UNBLOCKED: return m->lagging == 0;
    case UNTIL_TIME: return m->all->now >= m->all->amount;
    case UNTIL_RECEIVED:
        while (m->waiting_count && ((stream *)m->waiting[m->waiting_count - 1].subject)->total >=
                                       m->all->amount)
            m->waiting_count--;
        return m->waiting_count == 0;
    case UNTIL_SENT:
        for (int64_t i = 0; i < m->waiting_count; i++)
            if (!has_room(m->waiting[i].subject))
                return 0;
        return 1;
    default: return 0;
    }
}

static int reached(simulation *s)
{
    for (int i = 0; i < s->part_count; i++)
        if (!reached_in(s->parts[i]))
            return 0;
    return 1;
}

static void wait_for(machine *m, void *subject, int64_t number)
{
    m->waiting = grown(m->waiting, m->waiting_count, sizeof *m->waiting);
    m->waiting[m->waiting_count++] = (awaited){subject, number};
}

#pragma GCC visibility push(default)

/* Start to run towards a goal; subjects are the streams that shall hold amount wavelets, or the
 * credits that shall have room. */
void csl_goal(simulation *s, int goal, int64_t amount, void **subjects, int64_t count)
{
    s->goal = goal;
    s->amount = amount;
    for (int i = 0; i < s->part_count; i++) {
        machine *m = s->parts[i];
        m->waiting_count = 0;
        m->wanted = goal == UNTIL_UNBLOCKED ? amount : m->wanted;
        m->lagging = 0;
        for (int k = 0; goal == UNTIL_UNBLOCKED && k < m->count; k++)
            m->lagging += m->pes[k].head.unblocked < amount;
    }
    if (goal == UNTIL_TIME)
        at_host(s, amount, act_nothing, NULL);
    for (int64_t i = 0; goal == UNTIL_RECEIVED && i < count; i++) {
        wait_for(((stream *)subjects[i])->m, subjects[i], i + 1);
        stream_read(subjects[i], amount);
    }
    settle_all_credits(s);
    for (int64_t i = 0; goal == UNTIL_SENT && i < count; i++)
        wait_for(((credit *)subjects[i])->p->m, subjects[i], i + 1);
}

/* Python wants to be called at a time. */
static void act_python(machine *m, int64_t time, void *subject, void *argument)
{
    (void)argument;
    m->python.event((int64_t)(intptr_t)subject, time);
    check_python(m);
}

void csl_at_python(simulation *s, int64_t time, int64_t token)
{
    at_host(s, time, act_python, (void *)(intptr_t)token);
}

enum { NOTHING_LEFT, GOAL_REACHED, PAUSED, OVERDUE };

/* Handle events of whole cycles until the goal is reached, nothing is left to do, or about as many
 * as most are done. */
int csl_run(simulation *s, int64_t most)
{
    int64_t events = events_of(s), end = events + most;
    int64_t before = s->part_count > 1 ? clock_now() : 0;
    for (int64_t cycles = 0; cycles < most; cycles++) {
        if (reached(s))
            return GOAL_REACHED;
        int64_t next = next_of_parts(s), host = next_of_host(s);
        if (min64(next, host) == FOREVER)
            return NOTHING_LEFT;
        if (min64(next, host) > s->deadline)
            return OVERDUE;
        if (!whole_cycle(s, min64(next, host)))
            return -1;
        int64_t handled = events_of(s) - events;
        events += handled;
        if (events >= end)
            break;
        if (s->part_count == 1 || (s->parts[0]->strict && s->dynamic))
            continue;
        int64_t after = clock_now();
        if (team_pays(s, after, after - before, handled)) {
            if (!team_run(s, min64(s->deadline, next_of_host(s) - 1)))
                return -1;
            events = events_of(s);
            after = clock_now();
        }
        before = after;
    }
    return PAUSED;
}
