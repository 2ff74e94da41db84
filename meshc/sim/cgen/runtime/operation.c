/* A vector operation in progress: takes operands as they become available, element by element.
 * Mirrors machine/vector_operation.py. */
#include "machine.h"

void hold(operation *o) { o->references++; }

void drop(operation *o)
{
    if (--o->references)
        return;
    if (o->sent)
        words_drop(o->p->m, o->sent);
    pool_put(&o->p->m->pool, o, sizeof *o);
}

/* Call act at a time with the operation, which lives at least as long. */
void later(operation *o, int64_t time, action *act)
{
    hold(o);
    at(o->p, time, act, o, NULL);
}

void act_progress(machine *m, int64_t time, void *subject, void *argument)
{
    (void)m, (void)argument;
    progress(subject, time);
    drop(subject);
}

static fifo *fifo_out(const operation *o) { return &core_of(o->p)->fifos[o->operands[0].number]; }

static int per_wavelet(const operation *o, int simd)
{
    return simd && result_size(o->op) == 2 ? 2 : 1;
}

/* --- working --- */

void begin(machine *m, int64_t time, void *subject, void *argument)
{
    (void)time, (void)argument;
    operation *o = subject;
    for (int i = 0; i < o->channel_count; i++)
        hold(o), queue_push(&o->channels[i]->waiting, o);
    for (int i = 0; i < o->fifo_count; i++)
        hold(o), queue_push(&o->fifos[i]->readers, o);
    if (o->operands[0].kind == FIFO)
        hold(o), queue_push(&fifo_out(o)->writers, o);
    progress(o, m->now);
    drop(o);
}

/* A control wavelet at the head of an input: it may end the operation, and stays there. */
static void control(operation *o)
{
    machine *m = o->p->m;
    if (o->o.on_control == ON_CONTROL_NONE) {
        wake(o->p, m->now);
        return;
    }
    int kind = o->o.on_control;
    o->o.activate = kind == ON_CONTROL_ACTIVATE ? o->o.on_activate : -1;
    o->o.unblock_kind = kind == ON_CONTROL_UNBLOCK ? o->o.on_unblock_kind : GATE_NONE;
    o->o.unblock = o->o.on_unblock;
    o->t = max64(o->t, m->now);
    o->complete = kind == ON_CONTROL_TERMINATE;
    finish(o);
}

/* Elements that the queues behind the destination have room for; without any it waits there. */
static int64_t room_for(operation *o)
{
    credit *c = credit_of(o->p, &o->operands[0], 0);
    int64_t room = c->room - c->outstanding;
    if (room <= 0 && queue_find(&c->stalled, o) < 0) {
        hold(o);
        queue_push(&c->stalled, o);
    }
    return max64(0, room) * per_wavelet(o, o->operands[0].simd);
}

/* There is room again from the next cycle on. */
void again(operation *o) { later(o, o->p->m->now + 1, act_progress); }

static int64_t available(operation *o, int64_t now)
{
    int64_t count = o->n - o->done_count;
    for (int i = 0; i < o->channel_count; i++) {
        channel *c = o->channels[i];
        if (queue_at(&c->waiting, 0) != o || !c->bursts.count)
            return 0;
        if (c->task && !c->blocked)
            return 0;
        burst *b = queue_at(&c->bursts, 0);
        if (burst_time(b, 0) > now) {
            later(o, burst_time(b, 0), act_progress);
            return 0;
        }
        if (b->control && (o->o.on_control != ON_CONTROL_NONE || starts_tasks(o->p, c))) {
            control(o);
            return 0;
        }
        count = min64(count, burst_left(b) * per_wavelet(o, o->operands[o->inputs[i]].simd));
    }
    for (int i = 0; i < o->fifo_count; i++) {
        fifo *f = o->fifos[i];
        if (!f->count) {
            f->empty = 1;
            return 0;
        }
        if (queue_at(&f->readers, 0) != o)
            return 0;
        count = min64(count, f->count);
    }
    if (o->operands[0].kind == FIFO) {
        fifo *f = fifo_out(o);
        if (f->capacity == f->count)
            f->full = 1;
        count = min64(count, f->capacity - f->count);
    }
    if (o->operands[0].kind == FABOUT && o->p->m->strict)
        count = min64(count, room_for(o));
    if (count > (int64_t)1 << 40)
        csl_fault(o->p, o->place, "an endless operation without an input");
    return count;
}

void progress(operation *o, int64_t now)
{
    if (o->done)
        return;
    while (o->done_count < o->n) {
        int64_t count = available(o, now);
        if (count == 0) {
            if (!o->is_async && !o->channel_count &&
                (o->fifo_count || o->operands[0].kind == FIFO)) {
                o->complete = 0;
                finish(o);
            }
            return;
        }
        step(o, count, now);
    }
    finish(o);
}

/* When the work on count elements starts and ends. */
int64_t plan(operation *o, int64_t count, int64_t start, int64_t last_in)
{
    core *c = core_of(o->p);
    int64_t steps = vector_cycles(o->p->m, o->op, o->sources, o->operands, count);
    for (int k = 0; k <= o->sources; k++)
        if (is_fabric(&o->operands[k]))
            steps = max64(steps, ceil_div(count, per_wavelet(o, o->operands[k].simd)));
    int64_t span = max64(steps, last_in + 1 - start);
    if (o->is_async)
        span = o->priority > c->rank ? issue_high(&c->slots, start, steps, span)
                           : issue_low(&c->slots, start, steps, span);
    else if (needs_input(o))
        pipe_claim(&c->slots.pipe, start, steps, span);
    else
        c->issued += steps;
    return start + span;
}

void worked(operation *o, int64_t start, int64_t end)
{
    machine *m = o->p->m;
    if (!o->is_async)
        o->p->cycles_busy -= max64(0, start - o->t); /* code stood still */
    if (m->tracing) {
        int32_t moves = 0;
        for (int k = 0; k <= o->sources; k++)
            moves |= is_fabric(&o->operands[k]);
        int64_t waited = o->is_async ? -1 : min64(o->t, start);
        m->python.trace(o->p->number, o->op, o->place, moves, waited, start, end);
        check_python(m);
    }
    o->t = end;
}

/* Whether the set-up begins once the first word is there: that of a microthread is over. */
static int sets_up(const operation *o) { return o->channel_count && !o->is_async; }

/* Wavelets leave evenly, the last one at end. */
void send_words(operation *o, words *payload, int64_t start, int64_t end)
{
    int64_t n = payload->count, period = max64(1, (end - start) / n);
    int64_t first = end - (n - 1) * period - 1;
    int64_t relay = sets_up(o) ? 0 : o->p->m->costs.relay;
    send(o->p, &o->operands[0], payload, max64(start, first) + relay, period);
}

static void fifo_push(fifo *f, const cell *in, int64_t n, operation *o)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t word;
        words_of_cells(&in[i], 1, o->op, 0, 0, &word);
        f->data[(f->head + f->count++) % f->room].w = word;
    }
}

static void write_result(operation *o, column *columns, int64_t count, int64_t start, int64_t end)
{
    pe *p = o->p;
    machine *m = p->m;
    dsd *d = &o->operands[0];
    if (d->kind == MEM && reduces(d, count)) {
        reduce(p, o->op, o->sources, o->operands, columns, o->done_count, count);
        return;
    }
    cell *out = scratch(m, 4, count);
    compute(o->op, count, out, columns);
    if (d->kind == MEM) {
        write_elements(p, d, o->op, o->done_count, count, out);
    } else if (d->kind == FIFO) {
        fifo *f = fifo_out(o);
        fifo_push(f, out, count, o);
        f->t = max64(f->t, end);
        if (f->empty && d->activate_push >= 0) {
            f->empty = 0;
            activate_later(p, d->activate_push, end);
        }
        if (f->readers.count)
            later(queue_at(&f->readers, 0), max64(start, m->now), act_progress);
    } else {
        words *payload = words_new(m, count);
        int64_t n = words_of_cells(out, count, o->op, d->simd, d->indexed ? o->index : 0,
                                   payload->data);
        if (n < count) { /* two values share a wavelet */
            words *shorter = words_new(m, n);
            memcpy(shorter->data, payload->data, (size_t)n * 4);
            words_drop(m, payload);
            payload = shorter;
        }
        if (o->is_async && !needs_input(o)) {
            o->sent = payload;
        } else {
            send_words(o, payload, start, end);
            words_drop(m, payload);
        }
    }
}

static column pop_fifo(operation *o, const dsd *d, int operand, int64_t count)
{
    machine *m = o->p->m;
    fifo *f = &core_of(o->p)->fifos[d->number];
    cell *words_ = scratch(m, 7, count), *out = scratch(m, operand, count);
    if (f->count < count)
        csl_fault(o->p, o->place, "two operands of an operation read the same FIFO");
    for (int64_t i = 0; i < count; i++, f->count--) {
        words_[i] = f->data[f->head];
        f->head = (f->head + 1) % f->room;
    }
    if (f->full && d->activate_pop >= 0) {
        f->full = 0;
        activate_later(o->p, d->activate_pop, o->t);
    }
    cells_of_words(&words_[0].w, count, o->op, operand, 0, out);
    return (column){out, 1};
}

/* Compute count elements. */
void step(operation *o, int64_t count, int64_t now)
{
    pe *p = o->p;
    machine *m = p->m;
    int64_t start = max64(o->t, now), last_in = 0, first, last;
    int64_t begins = sets_up(o) && !o->done_count ? m->costs.fabric_in : 0;
    column columns[3];
    cell scalars[3];
    for (int k = 1; k <= o->sources; k++) {
        const dsd *d = &o->operands[k];
        if (d->kind == MEM) {
            columns[k - 1] = read_elements(p, d, o->op, k, o->done_count, count);
        } else if (d->kind == FABIN) {
            int64_t wavelets = ceil_div(count, per_wavelet(o, d->simd));
            cell *raw = scratch(m, 7, wavelets), *out = scratch(m, k, count);
            channel *c = channel_of(p, d);
            if (!c->bursts.count || burst_left(queue_at(&c->bursts, 0)) < wavelets)
                csl_fault(p, o->place, "two operands of an operation read the same color");
            channel_take(m, c, wavelets, &raw[0].w, &first, &last);
            start = max64(start, first + begins);
            last_in = max64(last_in, last);
            cells_of_words(&raw[0].w, count, o->op, k, d->simd, out);
            columns[k - 1] = (column){out, 1};
        } else if (d->kind == FIFO) {
            columns[k - 1] = pop_fifo(o, d, k, count);
        } else {
            scalars[k - 1] = cell_of_scalar(o->op, k, o->scalars[k]);
            columns[k - 1] = (column){&scalars[k - 1], 0};
        }
    }
    if (o->is_async && !needs_input(o)) {
        write_result(o, columns, count, start, start);
        o->done_count = count;
        return;
    }
    int64_t end = plan(o, count, start, last_in);
    write_result(o, columns, count, start, end);
    worked(o, start, end);
    o->done_count += count;
    for (int i = 0; i < o->fifo_count; i++) {
        fifo *f = o->fifos[i];
        f->t = max64(f->t, end);
        if (f->writers.count)
            later(queue_at(&f->writers, 0), end, act_progress);
    }
}

/* --- the end --- */

static void leave(operation *o, queue *q)
{
    int position = queue_find(q, o);
    if (position >= 0) {
        queue_remove(q, position);
        drop(o);
    }
}

/* Whether the queues have no room for all that was sent; then it ends later. */
static int held(operation *o)
{
    int64_t color = output_color(o->p, &o->operands[0]);
    credit *c = color < 0 ? NULL : core_of(o->p)->routers[color]->credit;
    if (!c || c->outstanding <= c->room)
        return 0;
    o->done = 0;
    hold(o);
    queue_push(&c->held, o);
    return 1;
}

void act_done(machine *m, int64_t time, void *subject, void *argument)
{
    (void)argument;
    operation_done_at(m, time, subject);
    drop(subject);
}

/* There is room for the last wavelets from the next cycle on. */
void release(operation *o)
{
    o->done = 1;
    o->t = max64(o->t, o->p->m->now + 1);
    later(o, o->t, act_done);
}

/* All elements done: leave the queues and tell whoever waits, at time t. */
void finish(operation *o)
{
    pe *p = o->p;
    machine *m = p->m;
    int64_t when = max64(m->now, o->t);
    hold(o);
    o->done = 1;
    for (int i = 0; i < o->channel_count; i++) {
        channel *c = o->channels[i];
        leave(o, &c->waiting);
        if (c->waiting.count)
            later(queue_at(&c->waiting, 0), when, act_progress);
        else if (c->bursts.count)
            wake(p, when);
    }
    for (int i = 0; i < o->fifo_count; i++) {
        fifo *f = o->fifos[i];
        leave(o, &f->readers);
        if (f->readers.count)
            later(queue_at(&f->readers, 0), when, act_progress);
    }
    if (o->operands[0].kind == FIFO)
        leave(o, &fifo_out(o)->writers);
    if (o->operands[0].kind == FABOUT && o->operands[0].advance)
        advance(p, (int)output_color(p, &o->operands[0]));
    for (int i = 0; i < o->record_count; i++)
        dsr_advance(o->records[i], o->done_count, o->record_size[i]);
    if (o->operands[0].kind == FABOUT && m->strict && held(o)) {
        drop(o);
        return;
    }
    if (o->is_async || o->resume)
        later(o, when, act_done);
    else
        p->t = max64(p->t, o->t);
    drop(o);
}

/* With save_address the base moves past the elements used. */
void dsr_advance(dsr *record, int64_t count, int64_t size)
{
    if (record->save && record->d.kind == MEM)
        record->d.addr = (int32_t)((record->d.addr + count * element_step(&record->d, size)) & 0xffff);
}
