/* One processing element: names of queues and colors, tasks, gates. Mirrors machine/pe.py. */
#include <stdlib.h>

#include "machine.h"

/* --- names of things --- */

int64_t input_color(pe *p, int64_t queue)
{
    int64_t color = queue >= 0 && queue < QUEUES ? core_of(p)->in_queue[queue] : -1;
    if (color < 0)
        csl_fault(p, 0, "input queue %lld is used but never initialised", (long long)queue);
    return color;
}

/* Whether an input queue of WSE-3 has a data task but no color. */
int is_idle(pe *p, int64_t queue)
{
    core *c = core_of(p);
    return c->kind->wse3 && queue >= 0 && queue < QUEUES && c->in_queue[queue] < 0 &&
           c->kind->data_task[queue];
}

/* The channel a fabric input reads. On WSE-3 the queue decides, else the color. */
channel *channel_of(pe *p, const dsd *source)
{
    int by_queue = source->color < 0 || (core_of(p)->kind->wse3 && source->queue >= 0);
    return channel_of_color(p, by_queue ? input_color(p, source->queue) : source->color);
}

int64_t output_color(pe *p, const dsd *dst)
{
    const pe_class *kind = core_of(p)->kind;
    int64_t queue = dst->queue;
    int64_t color = queue >= 0 && queue < QUEUES ? core_of(p)->out_queue[queue] : -1;
    if (kind->wse3 && queue >= 0) {
        if (color < 0)
            csl_fault(p, 0, "output queue %lld is used but never initialised", (long long)queue);
        return color;
    }
    return dst->color >= 0 ? dst->color : color;
}

static int has_bit(uint64_t set, int64_t number)
{
    return number >= 0 && number < 64 && (set >> number & 1);
}

static uint64_t bit(int64_t number) { return number >= 0 && number < 64 ? 1ull << number : 0; }

/* --- code: it runs until it ends or waits --- */

/* Code goes on, later by what microthreads of higher priority have taken. */
static void pay(core *c)
{
    c->head.t += c->slots.stolen;
    c->slots.stolen = 0;
    c->resumed = c->head.t;
    c->issued = 0;
}

/* Code ends or waits: microthreads share the steps of its latest stretch. */
static void rest(core *c)
{
    c->slots.main_start = c->resumed;
    c->slots.main_end = c->head.t;
    c->slots.main_steps = c->issued;
}

static void ended(core *c)
{
    pe *p = &c->head;
    machine *m = p->m;
    rest(c);
    if (m->tracing) {
        m->python.trace(c->head.number, -1, p->current, 0, c->started, c->started, p->t);
        check_python(m);
    }
    p->cycles_busy += p->t - c->started;
    p->busy_until = p->t;
    m->last_time = max64(m->last_time, p->t);
    if (c->flushing)
        end_flushes(p, p->t);
    if (c->active_count || c->launches.count || c->ready_colors)
        wake(p, p->t);
}

/* Go on with the topmost frame until all have ended or one waits. */
static void go_on(core *c)
{
    pe *p = &c->head;
    while (p->top) {
        int how = p->top->step(p, p->top);
        if (how == STEP_DONE) {
            csl_pop(p);
        } else if (how == STEP_WAIT) {
            rest(c);
            c->waiting_on->resume = 1;
            return;
        }
    }
    c->running = 0;
    ended(c);
}

/* Run a function as a task. */
static void run(core *c, int64_t now, int number, const value *args)
{
    pe *p = &c->head;
    const function *f = &p->functions[number];
    p->current = number;
    c->started = now;
    p->m->tasks_run++;
    p->limit = p->t + p->m->task_limit;
    pay(c);
    if (f->call) {
        f->call(p, args);
        ended(c);
        return;
    }
    c->running = f->waits;
    f->enter(p, args);
    go_on(c);
}

void operation_done_at(machine *m, int64_t time, operation *o)
{
    pe *p = o->p;
    core *c = core_of(p);
    (void)m;
    if (o->resume) {
        p->complete = o->complete;
        if (c->waiting_on)
            drop(c->waiting_on);
        c->waiting_on = NULL;
        p->t = max64(p->t, time);
        pay(c);
        go_on(c);
        return;
    }
    if (c->flushing)
        end_flushes(p, time);
    if (o->o.activate >= 0)
        activate_now(p, time, o->o.activate);
    if (o->o.unblock_kind != GATE_NONE)
        open_gate(p, o->o.unblock_kind, o->o.unblock, time);
}

/* --- the choice of the next task --- */

static value value_of_bits(int type, uint32_t bits)
{
    switch (type) {
    case T_F32: return (value){.f = csl_f32_of(bits)};
    case T_F16: return (value){.f = csl_half((uint16_t)bits)};
    case T_BF16: return (value){.f = csl_brain((uint16_t)bits)};
    case T_I8: return (value){.i = (int8_t)bits};
    case T_U8: return (value){.i = (uint8_t)bits};
    case T_I16: return (value){.i = (int16_t)bits};
    case T_U16: return (value){.i = (uint16_t)bits};
    case T_I32: return (value){.i = (int32_t)bits};
    default: return (value){.i = bits};
    }
}

static void start_wavelet(core *c, int64_t now, channel *from)
{
    pe *p = &c->head;
    value args[2];
    uint32_t word;
    int64_t first, last;
    int is_control = ((burst *)queue_at(&from->bursts, 0))->control;
    if (!is_control && !from->task) {
        c->ready_colors &= ~bit(from->color);
        return;
    }
    channel_take(p->m, from, 1, &word, &first, &last);
    if (is_control) {
        int task = c->kind->control_task[word >> 16 & 63];
        if (!task) {
            p->busy_until = now;
            if (from->waiting.count)
                progress(queue_at(&from->waiting, 0), now);
            wake(p, now + 1);
            return;
        }
        args[0].i = word & 0xffff;
        c->ran_control |= bit(word >> 16 & 63);
        run(c, now, task, args);
        return;
    }
    const uint8_t *types = c->kind->params + PARAMS * from->task;
    if (types[0] == 1) {
        args[0] = value_of_bits(types[1], word);
    } else {
        args[0] = value_of_bits(types[1], word & 0xffff);
        args[1] = value_of_bits(types[2], word >> 16);
    }
    c->ran_colors |= bit(from->color);
    run(c, now, from->task, args);
}

static void start_local(core *c, int64_t now, int position)
{
    int64_t key = c->active[position].key;
    int task = 0;
    c->active_count--;
    memmove(&c->active[position], &c->active[position + 1],
            (size_t)(c->active_count - position) * sizeof(activation));
    if (key < 0)
        task = c->kind->teardown[-1 - key];
    else if (key < TASKS)
        task = c->kind->local_task[key];
    if (key >= 0 && key < TASKS)
        c->ran_local |= bit(key);
    if (!task)
        csl_fault(&c->head, 0, "local task id %lld is activated but not bound", (long long)key);
    run(c, now, task, NULL);
}

static void start_launch(core *c, int64_t now)
{
    launch_ *next = queue_pop(&c->launches), copy = *next;
    pool_put(&c->head.m->pool, next, sizeof *next);
    run(c, now, copy.function, copy.args);
}

/* On WSE-2 a local task bound to the number of a color lets its control wavelets through. */
static int is_open(core *c, const channel *of)
{
    if (!of->blocked)
        return 1;
    int shared = !c->kind->wse3 && has_bit(c->local_tasks, of->color);
    return shared && ((burst *)queue_at(&of->bursts, 0))->control &&
           !has_bit(c->blocked, of->color);
}

int starts_tasks(pe *p, const channel *of) { return is_open(core_of(p), of); }

/* What puts a task behind those of high priority. */
static int64_t lag(const core *c, uint64_t urgent, int64_t number)
{
    return (c->urgent_tasks || c->urgent_colors) && !has_bit(urgent, number) ? FOREVER / 2 : 0;
}

/* Run the task that has been ready for the longest time, one of high priority first. */
void dispatch(machine *m, int64_t now, void *subject, void *argument)
{
    core *c = subject;
    pe *p = &c->head;
    (void)argument;
    if (c->running || now < c->dispatch_at)
        return;
    c->dispatch_at = -1;
    if (now < p->busy_until) {
        wake(p, p->busy_until);
        return;
    }
    int64_t best = FOREVER, later = FOREVER;
    int launched = 0, local = -1;
    channel *wavelet = NULL;
    if (c->launches.count && ((launch_ *)queue_at(&c->launches, 0))->time <= now) {
        best = ((launch_ *)queue_at(&c->launches, 0))->time + lag(c, 0, 0);
        launched = 1;
    }
    for (int i = 0; i < c->active_count; i++) {
        int64_t key = c->active[i].key, rank = c->active[i].since + lag(c, c->urgent_tasks, key);
        if (!has_bit(c->blocked, key) && rank < best) {
            best = rank;
            local = i;
        }
    }
    for (uint64_t left = c->ready_colors; left; left &= left - 1) {
        channel *of = c->routers[__builtin_ctzll(left)]->channel;
        if (!of->bursts.count || !is_open(c, of)) {
            c->ready_colors &= ~bit(of->color);
            continue;
        }
        int64_t since = burst_time(queue_at(&of->bursts, 0), 0);
        int64_t rank = since + lag(c, c->urgent_colors, of->color);
        if (since > now) {
            later = min64(later, since);
        } else if (rank < best) {
            best = rank;
            wavelet = of;
        }
    }
    if (wavelet || local >= 0 || launched) {
        p->t = now + m->costs.task;
        if (wavelet)
            p->t = max64(now, wavelet->open_at) + m->costs.data_task;
        if (wavelet)
            start_wavelet(c, now, wavelet);
        else if (local >= 0)
            start_local(c, now, local);
        else
            start_launch(c, now);
    } else if (later < FOREVER) {
        wake(p, later);
    }
}

/* Look for something to run at a time or as soon as the PE is free. */
void wake(pe *p, int64_t time)
{
    core *c = core_of(p);
    if (c->running)
        return;
    int64_t when = max64(time, max64(p->busy_until, p->m->now));
    if (c->dispatch_at < 0 || when < c->dispatch_at) {
        c->dispatch_at = when;
        at(p, when, dispatch, c, NULL);
    }
}

void launch_function(pe *p, int64_t time, int number, const value *args)
{
    launch_ *new = pool_get(&p->m->pool, sizeof *new);
    new->time = time;
    new->function = number;
    int count = core_of(p)->kind->params[PARAMS * number];
    if (args)
        memcpy(new->args, args, (size_t)count * sizeof *args);
    queue_push(&core_of(p)->launches, new);
}

/* --- activation --- */

static int find_active(core *c, int64_t key)
{
    for (int i = 0; i < c->active_count; i++)
        if (c->active[i].key == key)
            return i;
    return -1;
}

static void set_active(pe *p, int64_t key, int64_t since)
{
    core *c = core_of(p);
    if (find_active(c, key) >= 0)
        return;
    if (c->active_count == 2 * TASKS)
        csl_fault(p, 0, "local task id %lld is activated but not bound", (long long)key);
    if (c->active_count == c->active_room)
        c->active = longer(c->active, c->first_active, FIRST_ACTIVE, &c->active_room,
                           sizeof(activation));
    c->active[c->active_count++] = (activation){key, since};
}

void csl_activate(pe *p, int64_t number) { set_active(p, number, p->t); }

void activate_now(pe *p, int64_t time, int64_t key)
{
    set_active(p, key, time);
    wake(p, time);
}

void act_activate(machine *m, int64_t time, void *subject, void *argument)
{
    (void)m;
    activate_now(subject, time, (int64_t)(intptr_t)argument);
}

void activate_later(pe *p, int64_t number, int64_t time)
{
    at(p, max64(time, p->m->now), act_activate, p, (void *)(intptr_t)number);
}

/* --- wavelets that arrive --- */

void deliver(machine *m, int64_t time, void *subject, void *argument)
{
    router *r = subject;
    burst *b = argument;
    pe *p = r->p;
    channel *to = r->channel;
    (void)m;
    if (!to)
        to = channel_of_color(p, r->color);
    pipe_carry(&core_of(p)->ramp_in, b, max64(b->t0, to->free_at));
    to->free_at = burst_end(b);
    queue_push(&to->bursts, b);
    poke(p, to, time);
}

/* A burst reaches the PE of a router at a time. */
void deliver_at(machine *m, router *r, int64_t time, burst *b)
{
    at_other(m, r->p, time, deliver, r, b);
}

/* Something about a channel changed: start its task or go on with an operation. */
void poke(pe *p, channel *of, int64_t time)
{
    core *c = core_of(p);
    if (!of->bursts.count)
        return;
    if (is_open(c, of)) {
        c->ready_colors |= bit(of->color);
        wake(p, max64(time, burst_time(queue_at(&of->bursts, 0), 0)));
    }
    if (of->waiting.count)
        progress(queue_at(&of->waiting, 0), p->m->now);
}

/* --- gates --- */

/* Whether a gate is that of a channel, and its color. A color may stand for the local task of its
 * number; queues never do. */
static int gate_color(pe *p, int kind, int64_t number, int64_t *color)
{
    core *c = core_of(p);
    if (kind == GATE_LOCAL || kind == GATE_CONTROL)
        return 0;
    if (kind == GATE_QUEUE) {
        *color = input_color(p, number);
        return 1;
    }
    return !(has_bit(c->local_tasks, number) && !c->routers[number]->channel);
}

/* Unblock a task, color or queue. */
void open_gate(pe *p, int kind, int64_t number, int64_t time)
{
    core *c = core_of(p);
    int64_t color = number;
    if (kind == GATE_QUEUE && is_idle(p, number)) {
        c->shut &= ~(1u << number);
        return;
    }
    if (gate_color(p, kind, number, &color)) {
        channel *of = channel_of_color(p, color);
        of->open_at = of->blocked ? time + p->m->costs.reopen : of->open_at;
        of->blocked = 0;
        poke(p, of, time);
        return;
    }
    c->blocked &= ~bit(color);
    if (find_active(c, color) >= 0)
        wake(p, time);
}

/* Block a task, color or queue. */
void close_gate(pe *p, int kind, int64_t number)
{
    int64_t color = number;
    if (kind == GATE_QUEUE && is_idle(p, number))
        core_of(p)->shut |= 1u << number;
    else if (gate_color(p, kind, number, &color))
        channel_of_color(p, color)->blocked = 1;
    else
        core_of(p)->blocked |= bit(color);
}

void csl_block(pe *p, int kind, int64_t number) { close_gate(p, kind, number); }

void csl_unblock(pe *p, int kind, int64_t number)
{
    if (kind == GATE_LOCAL || kind == GATE_CONTROL)
        core_of(p)->blocked &= ~bit(number);
    else
        open_gate(p, kind, number, p->t);
}
