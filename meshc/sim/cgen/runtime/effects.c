/* Effects of code on its own PE: gates, the counter, random numbers, FIFOs, router registers.
 * Mirrors machine/registers.py and the effects of machine/runtime.py. */
#include "machine.h"

void csl_unblock_cmd_stream(pe *p)
{
    if (++p->unblocked == p->m->wanted)
        p->m->lagging--;
}

void csl_queue_flush(pe *p, int64_t queue)
{
    int handler = queue >= 0 && queue < QUEUES ? core_of(p)->kind->empty_handler[queue] : 0;
    if (handler)
        launch_function(p, p->t, handler, NULL);
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

void csl_tsc_read(pe *p, int64_t addr)
{
    core *c = core_of(p);
    p->t += p->m->costs.timestamp;
    int64_t now = c->frozen ? c->tsc_frozen : p->t - c->tsc_base;
    check_range(p, addr, addr + 6);
    memcpy(p->mem + addr, &now, 6);
}

/* --- registers of the router --- */

enum { COLOR_WORDS = 0x7f20, SWITCH_WORDS = 0x7f40, END_WORDS = 0x7f60 };

/* The router as the PE's own code sees it: with its changes that are still on their way. */
static router present(pe *p, int64_t color)
{
    router *r = router_for_code(p, (int)color), seen = *r;
    for (int i = 0; i < r->pending_count; i++)
        router_change(&seen, &r->pending[i]);
    return seen;
}

int64_t csl_get_config(pe *p, int64_t word)
{
    router seen;
    if (word < COLOR_WORDS || word >= END_WORDS)
        return 0;
    seen = present(p, (word - COLOR_WORDS) & 31);
    return word < SWITCH_WORDS ? router_color_word(&seen) : router_switch_word(&seen);
}

void csl_set_config(pe *p, int64_t word, int64_t v)
{
    if (word < COLOR_WORDS || word >= END_WORDS)
        return;
    change what = {word < SWITCH_WORDS ? CHANGE_COLOR_WORD : CHANGE_SWITCH_WORD, (int32_t)v, 0, 0};
    configure_later(p, (int)(word - COLOR_WORDS) & 31, &what);
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

void csl_teardown_exit(pe *p, int64_t color) { edit(p, color, CHANGE_EXIT, 0, 0, 0); }

void csl_teardown_toggle(pe *p, int64_t color) { edit(p, color, CHANGE_TOGGLE, 0, 0, 0); }

int64_t csl_teardown_pending(pe *p, int64_t color) { return present(p, color).teardown; }
