/* Memory of a PE by byte address, with every access checked. Mirrors machine/memory.py. */
#include "machine.h"

int64_t floor_div(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return q - (a % b != 0 && (a < 0) != (b < 0));
}

void out_of_bounds(pe *p, int64_t low, int64_t high)
{
    if (low < 0 || high > MEMORY_BYTES)
        csl_fault(p, 0, "a memory access at bytes %lld to %lld is outside of the PE's memory",
                  (long long)low, (long long)high);
    csl_fault(p, 0,
              "a memory access at bytes %lld to %lld is outside of all variables, which end at %lld",
              (long long)low, (long long)high, (long long)core_of(p)->kind->end);
}

void check_range(pe *p, int64_t low, int64_t high)
{
    if (low < 0 || high > p->size)
        out_of_bounds(p, low, high);
}

int64_t csl_wrap_index(pe *p, int64_t index, int64_t size, int place)
{
    machine *m = p->m;
    int64_t wrapped = (index * size) & 0xffff;
    if ((index >= 0 && index * size < 0x10000) || wrapped + size > p->size)
        csl_index_fault(p, place);
    if (m->wrapped_in != core_of(p)->kind || m->wrapped_at != place) {
        m->wrapped_in = core_of(p)->kind;
        m->wrapped_at = place;
        remark(p, ODD_WRAP, index * size, place, 0);
    }
    return wrapped / size;
}

/* Tell Python when an operand reaches past the variable it starts in. */
static void check_symbol(pe *p, int64_t low, int64_t high)
{
    const pe_class *kind = core_of(p)->kind;
    int a = 0, b = kind->symbols;
    while (a < b) {
        int middle = (a + b) / 2;
        if (kind->symbol_start[middle] <= low)
            a = middle + 1;
        else
            b = middle;
    }
    if (a > 0 && low < kind->symbol_end[a - 1] && kind->symbol_end[a - 1] < high &&
        !kind->remarked[a - 1]) {
        kind->remarked[a - 1] = !p->m->defers;
        remark(p, ODD_BOUNDS, low, high, a - 1);
    }
}

/* Bytes between elements: the stride counts elements of the operation's type. */
int64_t element_step(const dsd *d, int64_t size)
{
    if (size == d->esize || !d->esize)
        return d->stride;
    return floor_div(d->stride, d->esize) * size;
}

/* The first of count elements of a one-dimensional operand, all of them in memory. */
uint8_t *view(pe *p, const dsd *d, int64_t size, int64_t first, int64_t count, int64_t *step)
{
    int64_t by = element_step(d, size), addr = d->addr + first * by;
    int64_t end = addr + (count - 1) * by;
    int64_t low = min64(addr, end), high = max64(addr, end) + size;
    if (low < 0 || high > p->size)
        out_of_bounds(p, low, high);
    check_symbol(p, low, high);
    *step = by;
    return p->mem + addr;
}

static int bytes_of(int type)
{
    static const int sizes[] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 4, 2};
    return sizes[type];
}

static uint8_t *place_of(pe *p, int64_t addr, int type)
{
    check_range(p, addr, addr + bytes_of(type));
    return p->mem + addr;
}

int64_t csl_load_int(pe *p, int64_t addr, int type)
{
    addr &= 0xffff;
    if (addr >= FIRST_BYTE)
        return csl_get_config(p, addr / 2);
    uint64_t bits = 0;
    int bytes = bytes_of(type);
    memcpy(&bits, place_of(p, addr, type), (size_t)bytes);
    int is_signed = type == T_I8 || type == T_I16 || type == T_I32 || type == T_I64;
    return is_signed ? csl_wrap_s(bits, 8 * bytes) : (int64_t)bits;
}

double csl_load_float(pe *p, int64_t addr, int type)
{
    uint32_t bits = (uint32_t)csl_load_int(p, addr, type);
    if ((addr & 0xffff) >= FIRST_BYTE)
        return bits;
    return type == T_F32 ? csl_f32_of(bits) : type == T_F16 ? csl_half((uint16_t)bits)
                                                            : csl_brain((uint16_t)bits);
}

void csl_store_int(pe *p, int64_t addr, int type, int64_t v)
{
    addr &= 0xffff;
    if (addr >= FIRST_BYTE) {
        csl_set_config(p, addr / 2, v & 0xffff);
        return;
    }
    memcpy(place_of(p, addr, type), &v, (size_t)bytes_of(type));
}

void csl_store_float(pe *p, int64_t addr, int type, double v)
{
    int64_t bits = type == T_F32 ? csl_w32(v) : type == T_F16 ? csl_h16(v) : csl_hb16(v);
    csl_store_int(p, addr, type, bits);
}

void csl_copy(pe *p, int64_t to, int64_t source, int64_t size)
{
    check_range(p, source, source + size);
    check_range(p, to, to + size);
    memmove(p->mem + to, p->mem + source, (size_t)size);
}

dsd *csl_slot(pe *p, int64_t index, int place)
{
    if (index < 0)
        index += p->slot_count;
    if ((uint64_t)index >= (uint64_t)p->slot_count)
        csl_index_fault(p, place);
    return &p->slots[index];
}

/* A descriptor that must have been set. */
const dsd *csl_descriptor(pe *p, const dsd *d, int place)
{
    if (d->kind == NO_OPERAND)
        csl_fault(p, place, "a descriptor is used that was never set");
    return d;
}
