/* Making vector operations and starting them, for a task that waits or on a microthread. Mirrors the
 * launches of machine/runtime.py. */
#include "machine.h"

/* --- making one --- */

static int64_t length(operation *o)
{
    int any_fifo = 0;
    for (int i = 1; i <= o->sources + 1; i++) {
        int k = i <= o->sources ? i : 0; /* sources first, then the destination */
        const dsd *d = &o->operands[k];
        int64_t n = 0;
        if (d->kind == FIFO) {
            const fifo *state = &core_of(o->p)->fifos[d->number];
            n = k ? state->read_length : state->write_length;
            any_fifo = 1;
        } else if (d->kind != NO_OPERAND) {
            n = d->n;
        }
        if (n)
            return (n & ENDLESS) == ENDLESS ? FOREVER : n;
    }
    return any_fifo ? FOREVER : 1;
}

static operation *make(pe *p, int op, int count, const operand *given, int64_t index,
                       int has_index, int place)
{
    operation *o = pool_get(&p->m->pool, sizeof *o);
    memset(o, 0, offsetof(operation, records));
    o->p = p;
    o->op = (int16_t)op;
    o->sources = (int8_t)(count - 1);
    o->place = place;
    o->index = has_index ? (int32_t)index : 0;
    o->references = 1;
    o->complete = 1;
    for (int k = 0; k < count; k++) {
        if (given[k].reg) {
            o->record_size[o->record_count] = (int8_t)size_of_type(operation_kinds[o->op].types[k]);
            o->records[o->record_count++] = given[k].reg;
            p->t = max64(p->t, given[k].reg->ready);
        }
        o->scalars[k] = given[k].value;
        if (!given[k].d) {
            o->operands[k].kind = NO_OPERAND;
            continue;
        }
        dsd *d = &o->operands[k];
        *d = *given[k].d;
        if (has_index && d->kind == MEM && d->indexed)
            d->addr = (int32_t)((d->addr + 2 * index) & 0xffff);
        if (is_fabric(d) && d->priority > o->priority)
            o->priority = d->priority;
    }
    o->n = length(o);
    o->t = p->t;
    for (int k = 1; k < count; k++) {
        const dsd *d = &o->operands[k];
        if (d->kind == FABIN) {
            o->inputs[o->channel_count] = (int8_t)k;
            o->channels[o->channel_count++] = channel_of(p, d);
        } else if (d->kind == FIFO) {
            o->fifos[o->fifo_count++] = &core_of(p)->fifos[d->number];
        }
    }
    return o;
}

/* --- operations without inputs --- */

static void refuse_endless(operation *o)
{
    if (o->n > (int64_t)1 << 40)
        csl_fault(o->p, o->place, "an endless operation without an input");
}

/* Do all of an operation that needs no inputs. */
static void run_whole(operation *o, int64_t now)
{
    refuse_endless(o);
    step(o, o->n, now);
    finish(o);
}

static void act_run(machine *m, int64_t time, void *subject, void *argument)
{
    (void)m, (void)argument;
    run_whole(subject, time);
    drop(subject);
}

static int sends(const operation *o) { return o->operands[0].kind == FABOUT; }

static int64_t *unsent(operation *o)
{
    int64_t color = output_color(o->p, &o->operands[0]);
    return &router_at(o->p, color < 0 ? COLORS - 1 : color)->unsent;
}

/* The microthread of an operation without inputs gets its turn. */
void act_emit(machine *m, int64_t time, void *subject, void *argument)
{
    (void)m, (void)argument;
    operation *o = subject;
    int64_t start = max64(o->t, time), end = plan(o, o->n, start, 0);
    if (o->sent) {
        *unsent(o) -= 1;
        send_words(o, o->sent, start, end);
    }
    worked(o, start, end);
    finish(o);
    drop(o);
}

/* --- launches --- */

/* Take a microthread: the given one, else that of a register or of a queue. */
static void occupy(operation *o, int thread)
{
    for (int i = 0; thread < 0 && i < o->record_count; i++)
        thread = o->records[i]->o.thread;
    for (int k = 0, found = thread >= 0; !found && k <= o->sources; k++)
        if ((found = is_fabric(&o->operands[k])))
            thread = o->operands[k].queue;
    if (thread < 0 || thread >= COLORS)
        return;
    void **place = place_in(o->p, core_of(o->p)->threads, thread);
    operation *other = *place;
    if (other && !(other->done && other->t <= o->p->t)) {
        remark(o->p, ODD_MICROTHREAD, o->place, other->place, thread);
    }
    if (other)
        drop(other);
    hold(o);
    *place = o;
}

static void start_async(operation *o, const options *given)
{
    pe *p = o->p;
    machine *m = p->m;
    o->is_async = 1;
    if (given->priority > o->priority)
        o->priority = given->priority;
    occupy(o, given->thread);
    p->t += 1;
    o->t = p->t + m->costs.fabric_in;
    if (needs_input(o)) {
        later(o, max64(o->t, m->now), begin);
        return;
    }
    refuse_endless(o);
    step(o, o->n, o->t);
    if (o->sent)
        *unsent(o) += 1;
    later(o, max64(o->t, m->now), act_emit);
}

/* The options of an operation, completed by those of its registers. What follows the end of one on
 * a register that was loaded as asynchronous was said then (documented). */
static void complete_options(operation *o, const options *given)
{
    o->o = *given;
    for (int i = 0; i < o->record_count; i++) {
        if (o->records[i]->is_async) {
            o->o.activate = -1;
            o->o.unblock_kind = GATE_NONE;
        }
    }
    for (int i = 0; i < o->record_count; i++) {
        const options *r = &o->records[i]->o;
        if (o->o.activate < 0)
            o->o.activate = r->activate;
        if (o->o.unblock_kind == GATE_NONE) {
            o->o.unblock_kind = r->unblock_kind;
            o->o.unblock = r->unblock;
        }
        if (o->o.on_control == ON_CONTROL_NONE) {
            o->o.on_control = r->on_control;
            o->o.on_activate = r->on_activate;
            o->o.on_unblock_kind = r->on_unblock_kind;
            o->o.on_unblock = r->on_unblock;
        }
    }
}

/* Start an operation that its task waits for; NULL when it is through. */
operation *launch(pe *p, int op, int count, const operand *operands, int64_t index, int has_index,
                  int place, const options *given)
{
    machine *m = p->m;
    operation *o = make(p, op, count, operands, index, has_index, place);
    complete_options(o, given);
    int is_async = 0;
    for (int i = 0; i < o->record_count; i++)
        is_async |= o->records[i]->is_async;
    p->complete = 1;
    if (is_async) {
        start_async(o, given);
        drop(o);
        return NULL;
    }
    if (needs_input(o)) {
        o->resume = 1;
        o->t = p->t + m->costs.fabric_in;
        later(o, max64(o->t, m->now), begin);
        return o;
    }
    o->t = p->t + (sends(o) ? m->costs.fabric_out : m->costs.memory);
    if (sends(o) && *unsent(o) > 0) {
        o->resume = 1;
        later(o, max64(o->t, m->now), act_run);
        return o;
    }
    run_whole(o, o->t);
    if (o->o.activate >= 0)
        csl_activate(p, o->o.activate);
    if (o->o.unblock_kind != GATE_NONE)
        open_gate(p, o->o.unblock_kind, o->o.unblock, p->t);
    if (!o->done) { /* held back for lack of room */
        o->resume = 1;
        return o;
    }
    drop(o);
    return NULL;
}

static int wait_for(pe *p, operation *o)
{
    if (!o)
        return 0;
    core_of(p)->waiting_on = o;
    return 1;
}

int csl_launch_sync(pe *p, int op, int count, const operand *operands, int64_t index,
                    int has_index, int place, const options *given)
{
    return wait_for(p, launch(p, op, count, operands, index, has_index, place, given));
}

void csl_launch_async(pe *p, int op, int count, const operand *operands, int64_t index,
                      int has_index, int place, const options *given)
{
    operation *o = make(p, op, count, operands, index, has_index, place);
    complete_options(o, given);
    start_async(o, given);
    drop(o);
}

const options csl_no_options = {-1, GATE_NONE, 0, -1, 0, ON_CONTROL_NONE, -1, GATE_NONE, 0};

static const operand *row(pe *p, operand *made, int first, int descriptors, int numbers,
                          double number)
{
    for (int k = 0; k < descriptors; k++)
        made[k] = (operand){p->k->d + first + k, NULL, 0};
    if (numbers)
        made[descriptors] = (operand){NULL, NULL, number};
    return made;
}

void csl_vector_row(pe *p, int op, int first, int descriptors, int numbers, double number,
                    int place)
{
    operand made[4];
    csl_vector(p, op, descriptors + numbers, row(p, made, first, descriptors, numbers, number), 0,
               0, place);
}

int csl_launch_row(pe *p, int op, int first, int descriptors, int numbers, double number,
                   int place, const options *given)
{
    operand made[4];
    return csl_launch_sync(p, op, descriptors + numbers,
                           row(p, made, first, descriptors, numbers, number), 0, 0, place, given);
}
