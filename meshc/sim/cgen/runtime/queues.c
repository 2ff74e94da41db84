/* Queues that get another color or are flushed, and registers without a model. Mirrors the end of
 * machine/pe.py. */
#include <stdlib.h>

#include "machine.h"

enum { TEARDOWN_TASK = 29, FIRST_OUTPUT = 8 };

/* The place of a register that only keeps what was written. */
int64_t *stored_register(pe *p, int64_t word)
{
    core *c = core_of(p);
    for (int i = 0; i < c->register_count; i++)
        if (c->registers[i].word == word)
            return &c->registers[i].value;
    c->registers = realloc(c->registers, (size_t)(c->register_count + 1) * sizeof(stored));
    if (!c->registers)
        abort();
    c->registers[c->register_count] = (stored){word, 0};
    return &c->registers[c->register_count++].value;
}

/* Give a queue another color; a data task of an input queue goes with it. */
void csl_bind_queue(pe *p, int64_t is_output, int64_t queue_, int64_t color)
{
    core *c = core_of(p);
    if (queue_ < 0 || queue_ >= QUEUES)
        csl_fault(p, 0, "there is no queue %lld", (long long)queue_);
    if (is_output) {
        c->out_queue[queue_] = (int32_t)color;
        return;
    }
    int old = c->in_queue[queue_], idle = is_idle(p, queue_);
    c->in_queue[queue_] = (int32_t)color;
    if (idle) {
        channel *of = channel_of_color(p, color);
        of->task = c->kind->data_task[queue_];
        of->blocked = c->shut >> queue_ & 1;
    }
    if (old >= 0 && c->kind->wse3 && c->kind->data_task[queue_]) {
        channel *before = channel_of_color(p, old), *after = channel_of_color(p, color);
        after->task = before->task;
        after->blocked = before->blocked;
        before->task = 0;
        before->blocked = 1;
    }
}

/* A flushed queue is empty: its handler runs, or the task of the teardown id. */
static void act_flushed(machine *m, int64_t time, void *subject, void *argument)
{
    pe *p = subject;
    const pe_class *kind = core_of(p)->kind;
    int64_t number = (int64_t)(intptr_t)argument;
    (void)m;
    *stored_register(p, FLUSHED + number / 8) |= 1ll << number % 8;
    if (kind->empty_handler[number]) {
        launch_function(p, time, kind->empty_handler[number], NULL);
        wake(p, time);
    } else if (kind->local_task[TEARDOWN_TASK]) {
        activate_now(p, time, TEARDOWN_TASK);
    }
}

static void flushed_at(pe *p, int64_t time, int64_t number)
{
    at(p, max64(time, p->m->now), act_flushed, p, (void *)(intptr_t)number);
}

/* Look which of the input queues that are flushed have run empty. */
void end_flushes(pe *p, int64_t time)
{
    core *c = core_of(p);
    for (uint32_t left = c->flushing; left; left &= left - 1) {
        int number = __builtin_ctz(left);
        if (!channel_of_color(p, input_color(p, number))->bursts.count) {
            c->flushing &= ~(1u << number);
            flushed_at(p, time, number);
        }
    }
}

static int64_t checked(pe *p, int64_t number)
{
    if (number < 0 || number >= 2 * FIRST_OUTPUT)
        csl_fault(p, 0, "there is no queue %lld", (long long)number);
    return number;
}

/* Tell when a queue is empty; output queues count from 8. */
void csl_queue_flush(pe *p, int64_t number)
{
    core *c = core_of(p);
    if (checked(p, number) < FIRST_OUTPUT) {
        c->flushing |= 1u << number;
        return;
    }
    int color = c->out_queue[number - FIRST_OUTPUT];
    int64_t unused = color >= 0 && color < COLORS ? c->routers[color]->out_free : 0;
    flushed_at(p, max64(p->t, unused), number);
}

/* Forget that a queue was flushed. */
void csl_flush_exit(pe *p, int64_t number)
{
    *stored_register(p, FLUSHED + checked(p, number) / 8) &= ~(1ll << number % 8);
}
