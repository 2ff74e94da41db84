/* Elements of memory operands, and synchronous vector operations on memory. Mirrors
 * machine/vector.py and the strided accesses of machine/memory.py. */
#include <stdlib.h>

#include "machine.h"

/* Whether several elements are written to one place, one after the other. */
int reduces(const dsd *d, int64_t count)
{
    if (count < 2 || d->scalar)
        return count > 1 && d->scalar;
    if (d->stride != 0)
        return 0;
    for (int i = 0; i < d->ndims; i++)
        if (d->step[i] == 0 && d->extent[i] > 1)
            return 1;
    return d->ndims == 0;
}

static int reduces_to_one(const dsd *d)
{
    for (int i = 0; i < d->ndims; i++)
        if (d->step[i] != 0 && d->extent[i] != 1)
            return 0;
    return d->stride == 0;
}

/* A block of cells that stays valid until the same one is asked for again. */
cell *scratch(machine *m, int which, int64_t count)
{
    if (m->scratch_room[which] < count) {
        free(m->scratch[which]);
        m->scratch_room[which] = count + 256;
        m->scratch[which] = malloc((size_t)m->scratch_room[which] * sizeof(cell));
        if (!m->scratch[which])
            abort();
    }
    return m->scratch[which];
}

/* --- grids: operands of several dimensions --- */

typedef struct {
    uint8_t *base;
    int64_t step[4];
} grid;

static grid grid_of(pe *p, const dsd *d, int64_t size)
{
    grid g;
    int64_t low = d->addr, high = d->addr + size;
    for (int i = 0; i < d->ndims; i++) {
        g.step[i] = floor_div(d->step[i] * size, d->esize);
        int64_t reach = max64(d->extent[i] - 1, 0) * g.step[i];
        low += min64(0, reach);
        high += max64(0, reach);
    }
    check_range(p, low, high);
    g.base = p->mem + d->addr;
    return g;
}

/* The elements from a position to the end of its row, at most so many, and where they are. */
static int64_t row_from(const grid *g, const dsd *d, int64_t position, int64_t most, uint8_t **at)
{
    int64_t offset = 0, extent = max64(d->extent[d->ndims - 1], 1);
    int64_t count = min64(most, extent - position % extent);
    for (int i = d->ndims - 1; i >= 0; i--) {
        extent = max64(d->extent[i], 1);
        offset += position % extent * g->step[i];
        position /= extent;
    }
    *at = g->base + offset;
    return count;
}

column read_elements(pe *p, const dsd *d, int op, int operand, int64_t first, int64_t count)
{
    int64_t size = size_of_type(operation_kinds[op].types[operand]), step;
    cell *out = scratch(p->m, operand, d->scalar ? 1 : count);
    if (d->scalar) {
        gather(view(p, d, size, 0, 1, &step), 0, 1, op, operand, out);
        return (column){out, 0};
    }
    if (d->ndims) {
        grid g = grid_of(p, d, size);
        uint8_t *at;
        for (int64_t i = 0, n; i < count; i += n) {
            n = row_from(&g, d, first + i, count - i, &at);
            gather(at, g.step[d->ndims - 1], n, op, operand, &out[i]);
        }
        return (column){out, 1};
    }
    uint8_t *from = view(p, d, size, first, count, &step);
    gather(from, step, count, op, operand, out);
    return (column){out, 1};
}

void write_elements(pe *p, const dsd *d, int op, int64_t first, int64_t count, const cell *in)
{
    int64_t size = result_size(op), step;
    if (d->scalar) {
        scatter(view(p, d, size, 0, 1, &step), 0, 1, op, &in[count - 1]);
    } else if (d->ndims) {
        grid g = grid_of(p, d, size);
        uint8_t *at;
        for (int64_t i = 0, n; i < count; i += n) {
            n = row_from(&g, d, first + i, count - i, &at);
            scatter(at, g.step[d->ndims - 1], n, op, &in[i]);
        }
    } else {
        uint8_t *to = view(p, d, size, first, count, &step);
        scatter(to, step, count, op, in);
    }
}

/* --- reductions: elements written to one place in order --- */

/* A one-dimensional source is read when its turn comes, since results may change it. */
typedef struct {
    const uint8_t *from;
    int64_t step;
} live;

static void look_at(pe *p, int op, int sources, const dsd *operands, int64_t first, int64_t count,
                    live *found)
{
    for (int k = 0; k < sources; k++) {
        const dsd *s = &operands[k + 1];
        int64_t size = size_of_type(operation_kinds[op].types[k + 1]);
        found[k].from = NULL;
        if (s->kind == MEM && !s->scalar && !s->ndims)
            found[k].from = view(p, s, size, first, count, &found[k].step);
    }
}

/* A grid whose rows fall on each other: row by row, each seeing the results before. */
static void reduce_rows(pe *p, int op, int sources, const dsd *operands, column *columns,
                        const live *now_at, int64_t count)
{
    const dsd *d = &operands[0];
    int64_t n = max64(d->extent[d->ndims - 1], 1), size = result_size(op), step;
    for (int64_t row = 0; row < count / n; row++) {
        int64_t offset = 0, rest = row;
        for (int i = d->ndims - 2; i >= 0; i--) {
            int64_t extent = max64(d->extent[i], 1);
            offset += rest % extent * d->step[i];
            rest /= extent;
        }
        dsd line = {.kind = MEM, .addr = (int32_t)(d->addr + offset), .n = (int32_t)n,
                    .stride = d->step[d->ndims - 1], .esize = d->esize};
        uint8_t *now = view(p, &line, size, 0, n, &step);
        cell *present = scratch(p->m, 5, n), *out = scratch(p->m, 6, n);
        column args[3];
        for (int k = 0; k < sources; k++) {
            const dsd *s = &operands[k + 1];
            int same = s->kind == MEM && s->addr == d->addr && s->ndims == d->ndims;
            for (int i = 0; same && i < d->ndims; i++)
                same = s->step[i] == d->step[i] && s->extent[i] == d->extent[i];
            cell *fresh = scratch(p->m, k + 1, n);
            if (same) {
                gather(now, step, n, op, k + 1, present);
                args[k] = (column){present, 1};
            } else if (now_at[k].from) {
                gather(now_at[k].from + row * n * now_at[k].step, now_at[k].step, n, op, k + 1,
                       fresh);
                args[k] = (column){fresh, 1};
            } else {
                args[k] = (column){columns[k].v + row * n * columns[k].step, columns[k].step};
            }
        }
        compute(op, n, out, args);
        scatter(now, step, n, op, out);
    }
}

void reduce(pe *p, int op, int sources, const dsd *operands, column *columns, int64_t first,
            int64_t count)
{
    const dsd *d = &operands[0];
    live now_at[3];
    look_at(p, op, sources, operands, first, count, now_at);
    if (d->ndims && d->step[d->ndims - 1] != 0) {
        reduce_rows(p, op, sources, operands, columns, now_at, count);
        return;
    }
    int64_t step;
    int same[3] = {0};
    dsd place = *d;
    place.stride = 0;
    place.ndims = 0;
    uint8_t *to = view(p, &place, result_size(op), 0, 1, &step);
    for (int k = 0; k < sources; k++) {
        const dsd *s = &operands[k + 1];
        same[k] = s->kind == MEM && s->addr == d->addr && (s->scalar || reduces_to_one(s));
    }
    if (d->scalar && sources > 1 && operands[1].kind == NO_OPERAND) {
        /* (pointer, scalar, dsd): the scalar is the start of the running result */
        scatter(to, 0, 1, op, columns[0].v);
        same[0] = 1;
    }
    for (int64_t i = 0; i < count; i++) {
        cell now[3], out;
        column args[3];
        for (int k = 0; k < sources; k++) {
            const uint8_t *from = same[k] ? to : now_at[k].from;
            if (from)
                gather(same[k] ? to : from + i * now_at[k].step, 0, 1, op, k + 1, &now[k]);
            args[k] = (column){from ? &now[k] : columns[k].v + i * columns[k].step, 0};
        }
        compute(op, 1, &out, args);
        scatter(to, 0, 1, op, &out);
    }
}

/* --- time --- */

/* The documented stride rule, in 16-bit words modulo the eight banks. */
static int64_t stride_lanes(const dsd *d, int64_t lanes)
{
    int64_t stride = floor_div(d->stride, d->esize <= 2 ? 2 : 4), rest = stride & 7;
    if (stride == 0 || stride == 1 || rest == 2 || rest == 3 || rest == 5 || rest == 6)
        return lanes;
    return rest == 0 ? 1 : 2;
}

/* Rows that n elements of an operand of several dims take; 0 for one of a single dim. */
static int64_t rows_of(const dsd *d, int64_t n)
{
    return d->ndims < 2 ? 0 : ceil_div(n, max64(1, d->extent[d->ndims - 1]));
}

/* Bytes from an element to the next, in the innermost of its dims. */
static int64_t pace(const dsd *d)
{
    return d->ndims ? d->step[d->ndims - 1] : d->stride;
}

/* Steps in which two sources lie in one bank group; groups repeat every period bytes. */
static int64_t reads_that_meet(const dsd *a, const dsd *b, int64_t period, int64_t n)
{
    int64_t first = pace(a), second = pace(b), apart = a->addr - b->addr, every = 1;
    if (!first || !second)
        return 0;
    while (every * (first - second) % period)
        every++;
    for (int64_t step = 0; step < min64(every, n); step++)
        if ((apart + step * (first - second)) % period == 0)
            return ceil_div(n - step, every);
    return 0;
}

/* Whether results are written over the elements of a source, which moves. */
static int in_place(const dsd *to, const dsd *source)
{
    return to->kind == MEM && !to->scalar && to->addr == source->addr &&
           pace(to) == pace(source) && pace(to) != 0;
}

/* Cycles for n elements between memory operands, without the set-up. */
int64_t vector_cycles(machine *m, int op, int sources, const dsd *operands, int64_t n)
{
    int kind = operation_kinds[op].kind;
    int64_t lanes = m->costs.lanes[kind], every = m->costs.write_every[kind], lost = 0;
    const dsd *memory[3];
    int found = 0, words = 1;
    int64_t rows = 0;
    for (int k = 0; k <= sources; k++) {
        const dsd *d = &operands[k];
        if (d->kind != MEM || d->scalar)
            continue;
        lanes = min64(lanes, stride_lanes(d, lanes));
        rows = max64(rows, rows_of(d, n));
        if (k > 0) {
            memory[found++] = d;
            words = words && d->esize == 4;
        }
    }
    int halved = rows && lanes > 1;
    if (halved)
        lanes /= 2;
    int64_t cycles = rows * m->costs.row[kind] + ceil_div(n, lanes);
    if (!words)
        return cycles + (every && operands[0].kind == MEM ? cycles / every : 0);
    if (found > 1 && !halved)
        lost = reads_that_meet(memory[0], memory[1], m->costs.period, n);
    int stays = 0;
    for (int k = 0; k < found; k++)
        stays = stays || (in_place(&operands[0], memory[k]) && pace(memory[k]) % 16 == 0);
    if (stays)
        lost = n + n / m->costs.stay_every + (lost == n ? n : 0);
    if (lost || operands[0].kind != MEM)
        return cycles + lost;
    for (int k = 0; !every && !rows && k < found; k++)
        if (in_place(&operands[0], memory[k]))
            every = m->costs.in_place_every[kind];
    return cycles + (every ? n / every : 0);
}

/* --- synchronous operations on memory --- */

/* Whether an element written may be read as a later element of a source. */
static int chained(int sources, const dsd *operands, int64_t n)
{
    const dsd *d = &operands[0];
    if (n < 2 || d->ndims || d->scalar)
        return 0;
    int64_t end = d->addr + n * d->stride;
    for (int k = 1; k <= sources; k++) {
        const dsd *s = &operands[k];
        if (s->kind != MEM || s->scalar || s->ndims)
            continue;
        if (s->stride == d->stride && d->stride > 0) {
            if (d->addr < s->addr + n * s->stride && s->addr < d->addr)
                return 1;
        } else if (d->addr <= s->addr && s->addr < end && s->stride == 0) {
            return 1;
        }
    }
    return 0;
}

/* Element by element, so that later elements see earlier results. */
static void sequential(pe *p, int op, int sources, const dsd *operands, column *columns, int64_t n)
{
    int64_t step;
    live now_at[3];
    uint8_t *to = view(p, &operands[0], result_size(op), 0, n, &step);
    look_at(p, op, sources, operands, 0, n, now_at);
    for (int64_t i = 0; i < n; i++) {
        cell now[3], out;
        column args[3];
        for (int k = 0; k < sources; k++) {
            const uint8_t *from = now_at[k].from;
            if (from)
                gather(from + i * now_at[k].step, 0, 1, op, k + 1, &now[k]);
            args[k] = (column){from ? &now[k] : columns[k].v + i * columns[k].step, 0};
        }
        compute(op, 1, &out, args);
        scatter(to + i * step, 0, 1, op, &out);
    }
}

static int64_t length_of(int count, const dsd *operands)
{
    for (int k = 1; k < count; k++)
        if (operands[k].kind != NO_OPERAND && operands[k].kind != FIFO && operands[k].n)
            return operands[k].n;
    return operands[0].n ? operands[0].n : 1;
}

void csl_vector(pe *p, int op, int count, const operand *given, int64_t index, int has_index,
                int place)
{
    (void)place;
    dsd operands[4];
    column columns[3];
    cell scalars[3];
    int sources = count - 1;
    for (int k = 0; k < count; k++) {
        if (!given[k].d) {
            operands[k].kind = NO_OPERAND;
            continue;
        }
        operands[k] = *given[k].d;
        if (given[k].reg)
            p->t = max64(p->t, given[k].reg->ready);
        if (has_index && operands[k].kind == MEM && operands[k].indexed)
            operands[k].addr = (int32_t)((operands[k].addr + 2 * index) & 0xffff);
    }
    int64_t n = length_of(count, operands);
    for (int k = 0; k < sources; k++) {
        if (operands[k + 1].kind == MEM) {
            columns[k] = read_elements(p, &operands[k + 1], op, k + 1, 0, n);
        } else {
            scalars[k] = cell_of_scalar(op, k + 1, given[k + 1].value);
            columns[k] = (column){&scalars[k], 0};
        }
    }
    if (reduces(&operands[0], n)) {
        reduce(p, op, sources, operands, columns, 0, n);
    } else if (chained(sources, operands, n)) {
        sequential(p, op, sources, operands, columns, n);
    } else {
        cell *out = scratch(p->m, 4, n);
        compute(op, n, out, columns);
        write_elements(p, &operands[0], op, 0, n, out);
    }
    int64_t steps = vector_cycles(p->m, op, sources, operands, n);
    p->t += p->m->costs.memory + steps;
    core_of(p)->issued += steps;
    for (int k = 0; k < count; k++)
        if (given[k].reg) {
            p->drained = p->t + p->m->costs.drained;
            dsr_advance(given[k].reg, n, size_of_type(operation_kinds[op].types[k]));
        }
}
