/* Several threads, one for each part of the machine. All do the same cycle, and meet after it: what
 * they send to each other arrives a cycle later at the earliest. From what all have reported about a
 * cycle each decides alike whether there is another one, so that they meet once a cycle. Whatever
 * concerns all parts (goals, faults, remarks, changed routes, events of the host) ends a batch of
 * cycles and is done by the first thread alone. It also does the cycles that take too short to share;
 * the clock decides, since it changes nothing of what comes out. */
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "machine.h"

enum { PATIENCE = 2000, FIRST_BATCH = 64, LAST_BATCH = 1 << 14, MOST_FAILURES = 10 };

/* What a part says about a cycle; next: its own next event or that of what it sent; spent: the
 * nanoseconds that its events took. */
typedef struct {
    int64_t next, spent;
    int32_t stops, waits; /* whether something concerns all; whether the goal is not reached yet */
    char room[40];        /* so that no two share a cache line */
} account;

typedef struct team {
    simulation *s;
    pthread_t *threads;
    account *accounts[2]; /* by parity of the cycle */
    int64_t limit, most, activity;
    int64_t alone_spent, alone_events; /* what one thread needed, in the cycles worth sharing */
    int64_t failures, rests;           /* batches that did not pay; no other one before this time */
    _Atomic int64_t batch, phase;
    _Atomic int32_t arrived, through, faulty;
    int32_t ends;
    pthread_mutex_t mutex;
    pthread_cond_t wakes;
} team;

/* Nanoseconds of some clock. */
int64_t clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * (int64_t)1000000000 + now.tv_nsec;
}

static void pause_a_little(int64_t *tries)
{
    if (++*tries > PATIENCE)
        sched_yield();
#if defined(__x86_64__) || defined(__i386__)
    else
        __builtin_ia32_pause();
#endif
}

/* Wait until all parts are here. */
static void meet(team *t)
{
    int64_t phase = atomic_load(&t->phase), tries = 0;
    if (atomic_fetch_add(&t->arrived, 1) + 1 == t->s->part_count) {
        atomic_store(&t->arrived, 0);
        atomic_store(&t->phase, phase + 1);
        return;
    }
    while (atomic_load(&t->phase) == phase)
        pause_a_little(&tries);
}

static void report(const team *t, machine *m, int parity, int64_t spent, int fault)
{
    account *a = &t->accounts[parity][m->index];
    a->next = min64(calendar_next(&m->calendar, m->now), m->earliest[parity]);
    a->spent = spent;
    a->stops = fault || m->odd_count || m->changed_count;
    a->waits = !reached_in(m);
}

/* Give senders of a part the room that all parts made in a cycle, unless it ended in a fault. */
static void make_room(team *t, machine *m, int fault)
{
    if (fault)
        atomic_store(&t->faulty, 1);
    meet(t);
    if (!atomic_load(&t->faulty))
        settle_credits(m);
}

/* Do cycles until one of the accounts, the limit or too little work says stop. */
static void work(team *t, machine *m)
{
    int64_t activity = t->activity, cycles = 0;
    for (;; cycles++) {
        int64_t next = FOREVER, spent = 0;
        int stops = 0, waits = 0, parity = (int)(cycles & 1);
        for (int i = 0; i < t->s->part_count; i++) {
            const account *a = &t->accounts[!parity][i];
            next = min64(next, a->next);
            spent += a->spent;
            stops |= a->stops;
            waits |= a->waits;
        }
        if (cycles)
            activity += (spent - activity) / 16;
        if (stops || !waits || next > t->limit || cycles >= t->most || activity < t->s->worth / 2)
            break;
        take_parcels(m, !parity);
        drop_parcels(m, parity);
        drop_refunds(m);
        m->parity = parity;
        int is_due = calendar_next(&m->calendar, m->now) == next;
        begin_cycle(m, next);
        int64_t before = clock_now();
        int fault = is_due && !cycle(m, next, FOREVER);
        int64_t took = clock_now() - before;
        if (m->strict)
            make_room(t, m, fault);
        report(t, m, parity, took, fault);
        meet(t);
    }
    if (m->index == 0)
        t->activity = activity;
    m->parity = (int)(cycles & 1); /* the lists of the last cycle are those of the other one */
}

static void *help(void *given)
{
    machine *m = given;
    team *t = m->all->team;
    for (int64_t seen = 0;; seen++) {
        int64_t tries = 0;
        while (atomic_load(&t->batch) == seen && tries <= PATIENCE)
            pause_a_little(&tries);
        pthread_mutex_lock(&t->mutex);
        while (atomic_load(&t->batch) == seen)
            pthread_cond_wait(&t->wakes, &t->mutex);
        pthread_mutex_unlock(&t->mutex);
        if (t->ends)
            return NULL;
        work(t, m);
        atomic_fetch_add(&t->through, 1);
    }
}

static void begin_batch(team *t)
{
    pthread_mutex_lock(&t->mutex);
    atomic_store(&t->through, 0);
    atomic_fetch_add(&t->batch, 1);
    pthread_cond_broadcast(&t->wakes);
    pthread_mutex_unlock(&t->mutex);
}

static team *team_new(simulation *s)
{
    team *t = calloc(1, sizeof *t);
    if (!t)
        abort();
    t->s = s;
    t->most = FIRST_BATCH;
    s->team = t;
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->wakes, NULL);
    for (int parity = 0; parity < 2; parity++)
        if (!(t->accounts[parity] = calloc((size_t)s->part_count, sizeof(account))))
            abort();
    t->threads = calloc((size_t)s->part_count, sizeof *t->threads);
    for (int i = 1; i < s->part_count; i++)
        if (!t->threads || pthread_create(&t->threads[i], NULL, help, s->parts[i]))
            abort();
    return t;
}

void team_end(simulation *s)
{
    team *t = s->team;
    if (!t)
        return;
    t->ends = 1;
    begin_batch(t);
    for (int i = 1; i < s->part_count; i++)
        pthread_join(t->threads[i], NULL);
    pthread_mutex_destroy(&t->mutex);
    pthread_cond_destroy(&t->wakes);
    free(t->accounts[0]);
    free(t->accounts[1]);
    free(t->threads);
    free(t);
}

/* Whether cycles take long enough to share them, after one that ended now, with so many events in
 * so many nanoseconds. */
int team_pays(simulation *s, int64_t now, int64_t spent, int64_t events)
{
    team *t = s->team ? s->team : team_new(s);
    t->activity += (spent - t->activity) / 16;
    if (t->activity < s->worth)
        return 0;
    t->alone_spent += spent - t->alone_spent / 64;
    t->alone_events += events - t->alone_events / 64;
    return now >= t->rests;
}

/* Look whether a batch was faster than one thread; on a busy computer threads wait for each other,
 * and the next batch comes the later the more have failed. */
static void judge(team *t, int64_t began, int64_t events)
{
    int64_t now = clock_now(), spent = now - began;
    double alone = (double)t->alone_spent * (double)events / (double)max64(1, t->alone_events);
    if (!t->s->worth || (double)spent < 0.9 * alone) {
        t->failures = 0;
        t->most = min64(2 * t->most, LAST_BATCH);
    } else {
        t->failures = min64(t->failures + 1, MOST_FAILURES);
        t->most = FIRST_BATCH;
        t->rests = now + (spent << t->failures);
    }
}

/* After a batch: what was sent last, remarks and changes; 0 when a part has met a fault. */
static int after_batch(simulation *s)
{
    for (int i = 0; i < s->part_count; i++)
        take_parcels(s->parts[i], !s->parts[i]->parity);
    for (int i = 0; i < s->part_count; i++) {
        machine *m = s->parts[i];
        drop_parcels(m, 0);
        drop_parcels(m, 1);
        drop_refunds(m);
        m->parity = 0;
        s->now = max64(s->now, m->now);
    }
    if (!conclude(s))
        return 0;
    for (int i = 0; i < s->part_count; i++)
        settle(s->parts[i]);
    return 1;
}

/* Do cycles up to limit with all threads, as long as they have enough to do and nothing concerns
 * all; 0 when one ends in a fault. */
int team_run(simulation *s, int64_t limit)
{
    team *t = s->team;
    int64_t began = clock_now(), before = events_of(s);
    for (int i = 0; i < s->part_count; i++) {
        s->parts[i]->defers = 1;
        report(t, s->parts[i], 1, 0, 0);
    }
    t->limit = limit;
    atomic_store(&t->faulty, 0);
    begin_batch(t);
    work(t, s->parts[0]);
    for (int64_t tries = 0; atomic_load(&t->through) < s->part_count - 1;)
        pause_a_little(&tries);
    judge(t, began, events_of(s) - before);
    return after_batch(s);
}
