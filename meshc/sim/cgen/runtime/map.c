/* @map: a function applied element by element. Mirrors machine/mapping.py. */
#include "machine.h"

static int is_fabric_or_fifo(const dsd *d)
{
    return d->kind == FABIN || d->kind == FABOUT || d->kind == FIFO;
}

/* @map ends when any of its DSDs is used up. */
void csl_map_begin(pe *p, mapping *map, int count, const operand *operands, int has_dst)
{
    int64_t least = FOREVER;
    (void)p;
    for (int k = 0; k < count; k++) {
        dsd *d = &map->d[k];
        map->reg[k] = operands[k].reg;
        map->v[k] = (value){0};
        if (!operands[k].d) {
            d->kind = NO_OPERAND;
            map->v[k].f = operands[k].value;
            continue;
        }
        *d = *operands[k].d;
        if (d->kind != FIFO && !d->scalar && (d->n & ENDLESS) != ENDLESS)
            least = min64(least, d->n);
    }
    map->operands = count;
    map->has_dst = has_dst;
    map->count = least == FOREVER ? 1 : least;
    map->position = -1;
}

/* Go to the next element; 0 when there is none. */
int csl_map_next(pe *p, mapping *map)
{
    if (++map->position >= map->count)
        return 0;
    p->t += p->m->costs.map_call;
    return 1;
}

static int64_t bytes_of(int type)
{
    return type == T_U8 || type == T_I8 ? 1
         : type == T_U32 || type == T_I32 || type == T_F32 ? 4
         : type == T_U64 || type == T_I64 ? 8 : 2;
}

static uint8_t *element(pe *p, const dsd *d, int64_t size, int64_t position)
{
    int64_t step, offset = 0;
    if (!d->ndims)
        return view(p, d, size, d->scalar ? 0 : position, 1, &step);
    for (int i = d->ndims - 1; i >= 0; i--) {
        int64_t extent = max64(d->extent[i], 1);
        offset += position % extent * floor_div(d->step[i] * size, d->esize);
        position /= extent;
    }
    check_range(p, d->addr + offset, d->addr + offset + size);
    return p->mem + d->addr + offset;
}

static value value_at(const uint8_t *from, int type)
{
    uint64_t bits = 0;
    int size = (int)bytes_of(type);
    memcpy(&bits, from, (size_t)size);
    switch (type) {
    case T_F32: return (value){.f = csl_f32_of((int64_t)bits)};
    case T_F16: return (value){.f = csl_half((uint16_t)bits)};
    case T_BF16: return (value){.f = csl_brain((uint16_t)bits)};
    case T_I8: case T_I16: case T_I32: return (value){.i = csl_wrap_s(bits, 8 * size)};
    default: return (value){.u = bits};
    }
}

static uint64_t bits_of(value v, int type)
{
    switch (type) {
    case T_F32: return (uint64_t)csl_w32(v.f);
    case T_F16: return csl_h16(v.f);
    case T_BF16: return csl_hb16(v.f);
    default: return v.u;
    }
}

/* --- elements of the fabric and of FIFOs pass through four bytes behind the variables --- */

static dsd cell_behind(pe *p)
{
    int64_t addr = (core_of(p)->kind->end + 15) / 8 * 8;
    return (dsd){.kind = MEM, .addr = (int32_t)addr, .n = 1, .stride = 4, .esize = 4};
}

static int transfer(pe *p, int type, const operand *operands, int place)
{
    static const options none = {.activate = -1, .unblock_kind = GATE_NONE, .thread = -1,
                                 .on_activate = -1, .on_unblock_kind = GATE_NONE};
    machine *m = p->m;
    int op = bytes_of(type) == 4 ? m->move32 : m->move16;
    operation *o = launch(p, op, 2, operands, 0, 0, place, &none);
    if (!o)
        return 0;
    if ((operands[0].d && operands[0].d->kind == FIFO) ||
        (operands[1].d && operands[1].d->kind == FIFO))
        o->n = 1;
    core_of(p)->waiting_on = o;
    return 1;
}

/* Have the element of a source ready; 1 when it has to be waited for. */
int csl_map_take(pe *p, mapping *map, int source, int type, int place)
{
    dsd *d = &map->d[source], from = *d, to = cell_behind(p);
    if (d->kind == NO_OPERAND) {
        if (type != T_F32 && type != T_F16 && type != T_BF16 && map->position == 0)
            map->v[source].i = (int64_t)map->v[source].f;
        return 0;
    }
    if (d->kind == MEM) {
        map->v[source] = value_at(element(p, d, bytes_of(type), map->position), type);
        return 0;
    }
    if (d->kind == FABIN)
        from.n = 1;
    return transfer(p, type, (operand[]){{&to, 0, 0}, {&from, 0, 0}}, place);
}

/* Fetch an element that has come from the fabric or a FIFO. */
void csl_map_taken(pe *p, mapping *map, int source, int type)
{
    dsd cell_ = cell_behind(p);
    if (is_fabric_or_fifo(&map->d[source]))
        map->v[source] = value_at(element(p, &cell_, bytes_of(type), 0), type);
}

/* Store a result; 1 when that has to be waited for. */
int csl_map_put(pe *p, mapping *map, int type, value v, int place)
{
    dsd *d = &map->d[map->operands - 1], to = *d;
    uint64_t bits = bits_of(v, type);
    if (d->kind == MEM) {
        int64_t size = bytes_of(type);
        memcpy(element(p, d, size, map->position), &bits, (size_t)size);
        return 0;
    }
    if (d->kind == FABOUT)
        to.n = 1;
    uint32_t raw = (uint32_t)(bytes_of(type) == 4 ? bits : bits & 0xffff);
    return transfer(p, type, (operand[]){{&to, 0, 0}, {0, 0, (double)raw}}, place);
}

void csl_map_end(pe *p, mapping *map)
{
    (void)p;
    for (int k = 0; k < map->operands; k++)
        if (map->reg[k])
            dsr_advance(map->reg[k], map->count,
                        map->d[k].kind == MEM ? map->reg[k]->d.esize : 2);
}
