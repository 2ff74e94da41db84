/* What generated code needs to run: frames, calls through pointers, faults, registers, @map. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "machine.h"

/* --- faults --- */

void escape(machine *m, int fault)
{
    m->fault = fault;
    m->all->faulty = m;
    longjmp(*m->escape, 1);
}

void check_python(machine *m)
{
    if (m->failed)
        escape(m, FAULT_PYTHON);
}

void csl_fault(pe *p, int place, const char *form, ...)
{
    machine *m = p->m;
    va_list list;
    va_start(list, form);
    vsnprintf(m->message, sizeof m->message, form, list);
    va_end(list);
    m->fault_pe = p->number;
    m->fault_place = place;
    escape(m, FAULT_RUN);
}

void csl_index_fault(pe *p, int place)
{
    csl_fault(p, place, "a memory access outside of the variables");
}

void csl_overrun(pe *p)
{
    csl_fault(p, 0, "a task runs for too many cycles; does its loop end?");
}

void csl_check(pe *p, int64_t holds, int place)
{
    if (!holds)
        csl_fault(p, place, "an assertion does not hold");
}

value csl_python(pe *p, int number, const value *args)
{
    value v = {.i = p->m->python.call(p->number, number, args)};
    check_python(p->m);
    return v;
}

/* --- frames --- */

enum { MOST_FRAMES = 20000 };

frame *csl_push(pe *p, int32_t size, int (*step)(pe *, frame *))
{
    if (++core_of(p)->depth > MOST_FRAMES)
        csl_fault(p, 0, "functions call each other too deeply");
    frame *f = pool_get(&p->m->pool, (size_t)size);
    memset(f, 0, (size_t)size);
    f->below = p->top;
    f->step = step;
    f->size = size;
    p->top = f;
    return f;
}

void csl_pop(pe *p)
{
    frame *f = p->top;
    core_of(p)->depth--;
    p->top = f->below;
    pool_put(&p->m->pool, f, (size_t)f->size);
}

static const function *target_of(pe *p, int64_t target)
{
    if (target <= 0 || target > p->function_count)
        csl_fault(p, 0, "a call through a function pointer that was never set");
    return &p->functions[target];
}

/* Call through a pointer; 1 when a frame was made that has to run first. */
int csl_call_target(pe *p, int64_t target, const value *args)
{
    const function *f = target_of(p, target);
    if (f->enter) {
        f->enter(p, args);
        return 1;
    }
    p->result = f->call(p, args);
    return 0;
}

/* Call a function that cannot wait through a pointer. */
value csl_call_plain(pe *p, int64_t target, const value *args)
{
    const function *f = target_of(p, target);
    if (f->call)
        return f->call(p, args);
    frame *bottom = p->top;
    f->enter(p, args);
    while (p->top != bottom) {
        int how = p->top->step(p, p->top);
        if (how == STEP_DONE)
            csl_pop(p);
        else if (how == STEP_WAIT)
            csl_fault(p, 0, "a function waits that was called through a pointer");
    }
    return p->result;
}

/* --- data structure registers --- */

static dsr *register_of(pe *p, int bank, int64_t number)
{
    if (number < 0 || number >= REGISTERS)
        return NULL;
    void **found = core_of(p)->dsrs[bank][number / ROW];
    return found ? found[number % ROW] : NULL;
}

static dsr *loaded(pe *p, int bank, int64_t number)
{
    static const char *const banks[] = {"dest", "src0", "src1"};
    dsr *found = register_of(p, bank, number);
    if (!found && bank == 0)
        found = register_of(p, 1, number);
    if (!found)
        csl_fault(p, 0, "register %s %lld is used but never loaded", banks[bank],
                  (long long)number);
    return found;
}

operand csl_dsr(pe *p, int bank, int64_t number)
{
    dsr *found = loaded(p, bank, number);
    return (operand){&found->d, found, 0};
}

void csl_load_dsr(pe *p, int bank, int64_t number, const dsd *d, int save, int is_async,
                  const options *o)
{
    if (number < 0 || number >= REGISTERS)
        csl_fault(p, 0, "there is no register %lld", (long long)number);
    void **place = place_in(p, core_of(p)->dsrs[bank], number);
    if (!*place) /* never moved: operands and operations point to it */
        *place = pool_keep(&p->m->pool, sizeof(dsr));
    *(dsr *)*place = (dsr){*d, save, is_async, *o, p->t + p->m->costs.rewritten};
}

void csl_set_dsr_base(pe *p, int64_t bank, int64_t number, int64_t addr)
{
    dsr *record = loaded(p, (int)bank, number);
    record->d.addr = (int32_t)addr;
    record->ready = max64(p->t, p->drained) + p->m->costs.rewritten;
}

/* --- descriptors --- */

dsd csl_mem1d(int64_t addr, int64_t n, int64_t stride, int64_t esize, int64_t indexed)
{
    return (dsd){.kind = MEM, .addr = addr & 0xffff, .n = n & 0xffff,
                 .stride = (int32_t)(stride * esize), .esize = (int32_t)esize,
                 .indexed = (int32_t)indexed};
}

dsd csl_scalar_mem(int64_t addr, int64_t esize)
{
    return (dsd){.kind = MEM, .addr = addr & 0xffff, .esize = (int32_t)esize, .scalar = 1};
}

static dsd memory_only(pe *p, const dsd *d)
{
    if (d->kind != MEM)
        csl_fault(p, 0, "this descriptor has no base address");
    return *d;
}

dsd csl_inc_offset(pe *p, const dsd *d, int64_t count, int64_t size)
{
    dsd new = memory_only(p, d);
    new.addr = (int32_t)((d->addr + count * size) & 0xffff);
    return new;
}

dsd csl_set_base(pe *p, const dsd *d, int64_t addr, int64_t esize)
{
    dsd new = memory_only(p, d);
    if (d->esize != esize)
        new.stride = (int32_t)(floor_div(d->stride, max64(1, d->esize)) * esize);
    new.addr = addr & 0xffff;
    new.esize = (int32_t)esize;
    new.scalar = 0;
    return new;
}

dsd csl_dsd_length(const dsd *d, int64_t n)
{
    dsd new = *d;
    if (d->kind == FIFO)
        return new;
    new.n = n & 0xffff;
    new.ndims = 0;
    new.scalar = 0;
    return new;
}

dsd csl_dsd_stride(pe *p, const dsd *d, int64_t stride)
{
    dsd new = memory_only(p, d);
    new.stride = (int32_t)(stride * d->esize);
    new.ndims = 0;
    new.scalar = 0;
    return new;
}

dsd csl_fabin(int64_t color, int64_t n, int64_t queue, int64_t simd, int64_t priority)
{
    return (dsd){.kind = FABIN, .color = (int32_t)color, .n = (int32_t)n, .queue = (int32_t)queue,
                 .simd = (int32_t)simd, .priority = (int32_t)priority};
}

dsd csl_fabout(int64_t color, int64_t n, int64_t queue, int64_t control, int64_t indexed,
               int64_t advance_, int64_t simd, int64_t zero, int64_t priority)
{
    return (dsd){.kind = FABOUT, .color = (int32_t)color, .n = (int32_t)n,
                 .queue = (int32_t)queue, .control = (int32_t)control,
                 .indexed = (int32_t)indexed, .advance = (int32_t)advance_,
                 .simd = (int32_t)simd, .zero = (int32_t)zero, .priority = (int32_t)priority};
}
