/* Effects of code on its own PE: gates, the counter, random numbers, FIFOs, router registers.
 * Mirrors machine/config_registers.py and the effects of machine/runtime.py. */
#include "machine.h"

void csl_unblock_cmd_stream(pe *p)
{
    if (++p->unblocked == p->m->wanted)
        p->m->lagging--;
}

int64_t csl_queue_empty(pe *p, int64_t queue)
{
    return channel_of_color(p, input_color(p, queue))->bursts.count == 0;
}

void csl_fifo_length(pe *p, int64_t number, int64_t length, int writes)
{
    if (number < 0 || number >= core_of(p)->kind->fifos)
        csl_fault(p, 0, "there is no FIFO %lld", (long long)number);
    fifo *f = &core_of(p)->fifos[number];
    if (writes)
        f->write_length = length;
    else
        f->read_length = length;
}

/* --- random numbers: a 23-bit LFSR, 128 steps per call --- */

int64_t csl_random16(pe *p)
{
    uint32_t state = core_of(p)->prng & 0x7fffff;
    for (int i = 0; i < 128; i++)
        state = (state << 1 | ((state >> 22 ^ state >> 17) & 1)) & 0x7fffff;
    core_of(p)->prng = state;
    return state & 0xffff;
}

void csl_prng_seed(pe *p, int64_t seed)
{
    uint64_t own = (uint64_t)p->x * 2654435761u + (uint64_t)p->y * 40503u;
    uint32_t mixed = (uint32_t)(((uint64_t)seed ^ own) & 0x7fffff);
    core_of(p)->prng = mixed ? mixed : 0x12345;
}

/* --- the counter of cycles --- */

void csl_tsc_enable(pe *p)
{
    core_of(p)->tsc_base = 0;
    core_of(p)->frozen = 0;
}

void csl_tsc_disable(pe *p)
{
    core_of(p)->tsc_frozen = p->t - core_of(p)->tsc_base;
    core_of(p)->frozen = 1;
}

void csl_tsc_reset(pe *p) { core_of(p)->tsc_base = p->t; }

static int64_t counter(pe *p)
{
    core *c = core_of(p);
    return c->frozen ? c->tsc_frozen : p->t - c->tsc_base;
}

void csl_tsc_read(pe *p, int64_t addr)
{
    int64_t now = counter(p);
    check_range(p, addr, addr + 6);
    memcpy(p->mem + addr, &now, 6);
}

/* --- priorities --- */

/* Put a task before those of low priority, or back among them. */
void csl_task_priority(pe *p, int64_t is_data, int64_t number, int64_t high)
{
    core *c = core_of(p);
    uint64_t *urgent = is_data ? &c->urgent_colors : &c->urgent_tasks;
    if (is_data && c->kind->wse3)
        number = input_color(p, number);
    if (number < 0 || number >= 64)
        csl_fault(p, 0, "there is no task %lld", (long long)number);
    *urgent = high ? *urgent | 1ull << number : *urgent & ~(1ull << number);
}

/* Place code among the microthreads: from between low and medium to beside high. */
void csl_thread_priority(pe *p, int64_t level)
{
    static const int32_t ranks[] = {0, 1, 1, 2};
    core_of(p)->rank = ranks[level & 3];
}

/* --- registers of the router --- */

/* The router as the PE's own code sees it: with its changes that are still on their way. */
static router present(pe *p, int64_t color)
{
    router *r = router_for_code(p, (int)color), seen = *r;
    seen.filters = NULL; /* which nobody reads */
    for (int i = 0; i < r->pending_count; i++)
        router_change(&seen, &r->pending[i]);
    return seen;
}

/* The color whose register word is, in the two places where public programs write them. */
static int64_t color_of(int64_t word, int64_t first, int64_t second)
{
    if (word >= first && word < first + SPACE_COLORS)
        return word - first;
    return word >= second && word < second + SPACE_COLORS ? word - second : -1;
}

/* One bit per queue: empty ones in the low byte, full ones (none) in the high byte. */
static int64_t input_status(pe *p)
{
    int64_t busy = 0;
    for (int queue = 0; queue < QUEUES; queue++) {
        int color = core_of(p)->in_queue[queue];
        channel *c = color >= 0 && color < COLORS ? core_of(p)->routers[color]->channel : NULL;
        if (c && c->bursts.count)
            busy |= 1ll << queue;
    }
    return 0xff & ~busy;
}

/* A register by word address, or by byte address; those without a model keep what was written. */
int64_t csl_get_config(pe *p, int64_t word)
{
    word = word >= FIRST_BYTE ? word / 2 : word;
    int64_t color = color_of(word, COLOR_BASE_0, COLOR_BASE_1);
    int64_t of_switch = color_of(word, SWITCH_BASE_0, SWITCH_BASE_1);
    router seen;
    if (color >= 0) {
        seen = present(p, color);
        return router_color_word(&seen);
    }
    if (of_switch >= 0) {
        seen = present(p, of_switch);
        return router_switch_word(&seen);
    }
    if (word >= TIMESTAMP && word < TIMESTAMP_END)
        return counter(p) >> 16 * (word - TIMESTAMP) & 0xffff;
    if (word == INPUT_STATUS)
        return input_status(p);
    if (word == OUTPUT_STATUS)
        return 0xff;
    if (word >= TEARDOWN_PENDING && word < TEARDOWN_PENDING_END) {
        int64_t first = 16 * (word - TEARDOWN_PENDING), bits = 0;
        for (int64_t n = 0; n < min64(16, 24 - first); n++) {
            seen = present(p, first + n);
            bits |= (int64_t)seen.teardown << n;
        }
        return bits;
    }
    return *stored_register(p, word);
}

static void edit(pe *p, int64_t color, int kind, int64_t a, int64_t b, int64_t c);

void csl_set_config(pe *p, int64_t word, int64_t v)
{
    word = word >= FIRST_BYTE ? word / 2 : word;
    int64_t color = color_of(word, COLOR_BASE_0, COLOR_BASE_1);
    int64_t of_switch = color_of(word, SWITCH_BASE_0, SWITCH_BASE_1);
    if (color >= 0)
        edit(p, color, CHANGE_COLOR_WORD, v, 0, 0);
    else if (of_switch >= 0)
        edit(p, of_switch, CHANGE_SWITCH_WORD, v, 0, 0);
    else if (word >= FILTERS && word < FILTERS_END)
        edit(p, (word - FILTERS) / FILTER_WORDS, CHANGE_FILTER, (word - FILTERS) % FILTER_WORDS, v,
             0);
    else if (word == TIMESTAMP)
        csl_tsc_reset(p);
    else if (word == PERF_CONTROL && (v & 1))
        csl_tsc_enable(p);
    else if (word == PERF_CONTROL)
        csl_tsc_disable(p);
    else
        *stored_register(p, word) = v;
}

static void edit(pe *p, int64_t color, int kind, int64_t a, int64_t b, int64_t c)
{
    change what = {kind, (int32_t)a, (int32_t)b, (int32_t)c};
    configure_later(p, (int)color, &what);
}

void csl_reset_routes(pe *p, int64_t color, int64_t rx, int64_t tx)
{
    edit(p, color, CHANGE_ROUTES, rx, tx, 0);
}

void csl_switch_position(pe *p, int64_t color, int64_t position_)
{
    edit(p, color, CHANGE_POSITION, position_, 0, 0);
}

void csl_switch_invalid(pe *p, int64_t color) { edit(p, color, CHANGE_INVALID, 0, 0, 0); }

void csl_switch_set(pe *p, int64_t color, int64_t position_, int64_t direction, int64_t is_rx)
{
    edit(p, color, CHANGE_SWITCH, position_, direction, is_rx);
}

void csl_switch_both(pe *p, int64_t color, int64_t position_, int64_t rx, int64_t tx)
{
    edit(p, color, CHANGE_BOTH, position_, rx, tx);
}

void csl_teardown_exit(pe *p, int64_t color) { edit(p, color, CHANGE_EXIT, 0, 0, 0); }

void csl_teardown_toggle(pe *p, int64_t color) { edit(p, color, CHANGE_TOGGLE, 0, 0, 0); }

int64_t csl_teardown_pending(pe *p, int64_t color) { return present(p, color).teardown; }
