/* One router's state for one color: routes, switch positions, filter. Mirrors machine/router.py. */
#include <stdlib.h>

#include "machine.h"

enum { NO_POP, ALWAYS_POP, POP_ON_ADVANCE, POP_ON_ADVANCE_NOP };

static const uint8_t register_order[PORTS] = {WEST, EAST, SOUTH, NORTH, RAMP};

/* --- routes: each position replaces the input or the output of the one before --- */

directions router_rx(const router *r)
{
    for (int i = r->at; i > 0; i--)
        if (r->positions[i - 1].present && r->positions[i - 1].has_rx)
            return r->positions[i - 1].rx;
    return r->rx;
}

directions router_tx(const router *r)
{
    for (int i = r->at; i > 0; i--)
        if (r->positions[i - 1].present && r->positions[i - 1].has_tx)
            return r->positions[i - 1].tx;
    return r->tx;
}

static uint32_t mask_of(const directions *set)
{
    uint32_t mask = 0;
    for (int i = 0; i < set->count; i++)
        mask |= 1u << set->d[i];
    return mask;
}

/* Outputs other than the RAMP at any position. */
uint32_t router_outputs(const router *r)
{
    uint32_t found = mask_of(&r->tx);
    for (int i = 0; i < 3; i++)
        if (r->positions[i].present && r->positions[i].has_tx)
            found |= mask_of(&r->positions[i].tx);
    return found & ~(1u << RAMP);
}

/* Run one command of a control wavelet; whether it is popped. */
int router_execute(router *r, int command)
{
    int advanced = 0;
    if (command == 1) {
        if (r->at < 3 && r->positions[r->at].present) {
            r->at++;
            advanced = 1;
        } else if (r->ring && r->at) {
            r->at = 0;
            advanced = 1;
        }
    } else if (command == 2) {
        r->at = 0;
    }
    if (r->pop == ALWAYS_POP)
        return 1;
    if (r->pop == POP_ON_ADVANCE)
        return advanced;
    return r->pop == POP_ON_ADVANCE_NOP && (advanced || command == 0);
}

/* --- two inputs at a time --- */

static int meets(const passing *a, const burst *b)
{
    int64_t first = max64(a->t0, b->t0), end = min64(a->end, burst_end(b));
    while (first < end) {
        int64_t rest_a = (first - a->t0) % a->period, rest_b = (first - b->t0) % b->period;
        if (!rest_a && !rest_b)
            return 1;
        first += max64((a->period - rest_a) % a->period, (b->period - rest_b) % b->period);
    }
    return 0;
}

/* An input other than port with a wavelet in a cycle of b; -1 for none. */
int router_meeting(router *r, int port, const burst *b)
{
    int kept = 0, met = -1;
    directions rx = router_rx(r);
    uint32_t accepted = mask_of(&rx);
    for (int i = 0; i < r->recent_count; i++)
        if (r->recent[i].end > b->t0)
            r->recent[kept++] = r->recent[i];
    for (int i = 0; (accepted >> port & 1) && met < 0 && i < kept; i++) {
        int other = r->recent[i].port;
        if (other != port && (accepted >> other & 1) && meets(&r->recent[i], b))
            met = other;
    }
    if (kept == r->recent_room) {
        r->recent_room = 2 * kept + 4;
        r->recent = realloc(r->recent, (size_t)r->recent_room * sizeof(passing));
        if (!r->recent)
            abort();
    }
    r->recent[kept] = (passing){port, b->t0, burst_end(b), b->period};
    r->recent_count = kept + 1;
    return met;
}

/* --- filters --- */

/* One wavelet at a counter filter; whether it passes. */
static int count_one(filtering *f)
{
    if (f->stage == 2)
        return 1;
    int passes = f->counter <= f->rule.max_counter;
    if (f->counter >= f->limit) {
        f->counter = 0;
        if (f->rule.kind == FILTER_SPARSE) {
            f->stage++;
            f->limit = f->rule.limit2;
        }
    } else {
        f->counter++;
    }
    return passes;
}

static int passes(filtering *f, uint32_t word)
{
    int64_t high = word >> 16;
    if (f->rule.kind == FILTER_RANGE)
        return high >= f->rule.low && high <= f->rule.high;
    return count_one(f);
}

/* Replace b, which it owns, by the parts that pass the filter in front of the RAMP. */
int64_t router_filter(machine *m, router *r, burst *b, burst ***parts)
{
    filtering *f = r->filters;
    m->one[0] = b;
    *parts = m->one;
    if (!f || (b->control && !(f->rule.count_control || f->rule.filter_control)))
        return 1;
    uint8_t *keep = pool_get(&m->pool, (size_t)b->count);
    int64_t kept = 0, count = b->count;
    for (int64_t i = 0; i < count; i++)
        kept += keep[i] = (uint8_t)passes(f, burst_data(b)[i]);
    if (kept < count) {
        dropped(m, b, count - kept);
        burst **found = (burst **)scratch(m, 0, 2 * (kept + 1));
        kept = 0;
        for (int64_t i = 0; i < count; i++)
            if (keep[i])
                found[kept++] = burst_new(m, b->payload, b->first + i, 1, b->t0 + i * b->period, 1,
                                          b->control, b->paid);
        burst_drop(m, b);
        *parts = found;
    } else {
        kept = 1;
    }
    pool_put(&m->pool, keep, (size_t)count);
    return kept;
}

/* --- registers (WSE-2) --- */

int router_color_word(const router *r)
{
    int word = r->pop << 12 | r->teardown << 14;
    uint32_t rx = mask_of(&r->rx), tx = mask_of(&r->tx);
    for (int i = 0; i < PORTS; i++) {
        word |= (int)(tx >> register_order[i] & 1) << i;
        word |= (int)(rx >> register_order[i] & 1) << (i + 5);
    }
    return word;
}

static directions from_bits(int bits, const uint8_t *order)
{
    directions set = {0};
    for (int i = 0; i < PORTS; i++)
        if (bits >> i & 1)
            set.d[set.count++] = order ? order[i] : (uint8_t)i;
    return set;
}

static int register_number(const directions *set)
{
    for (int i = 0; i < PORTS; i++)
        if (register_order[i] == set->d[0])
            return i;
    return 0;
}

int router_switch_word(const router *r)
{
    int word = r->ring << 12 | r->at << 13;
    for (int i = 0; i < 3; i++) {
        const position *p = &r->positions[i];
        if (!p->present)
            word |= (5 | r->selects[i] << 3) << 4 * i;
        else if (p->has_rx)
            word |= (register_number(&p->rx) | 8) << 4 * i;
        else if (p->has_tx)
            word |= register_number(&p->tx) << 4 * i;
    }
    return word;
}

static position single(int direction, int is_rx)
{
    directions set = {1, {(uint8_t)direction}};
    position p = {1, (uint8_t)is_rx, (uint8_t)!is_rx, set, set};
    return p;
}

static void set_switch_word(router *r, int word)
{
    for (int i = 0; i < 3; i++) {
        int field = word >> 4 * i & 15, where = field & 7;
        r->selects[i] = field >> 3;
        if (where > 4)
            r->positions[i].present = 0;
        else
            r->positions[i] = single(register_order[where], field >> 3);
    }
    r->ring = word >> 12 & 1;
    r->at = word >> 13 & 3;
}

/* Carry out a change that code of the PE asked for. */
void router_change(router *r, const change *what)
{
    switch (what->kind) {
    case CHANGE_ROUTES:
        r->rx = from_bits(what->a, NULL);
        r->tx = from_bits(what->b, NULL);
        break;
    case CHANGE_POSITION:
        r->at = what->a & 3;
        break;
    case CHANGE_INVALID:
        for (int i = 0; i < 3; i++)
            r->positions[i].present = 0;
        break;
    case CHANGE_SWITCH:
        if (what->a >= 1 && what->a <= 3) {
            r->positions[what->a - 1] = single(what->b % PORTS, what->c != 0);
            r->selects[what->a - 1] = what->c != 0;
        }
        break;
    case CHANGE_BOTH:
        if (what->a >= 1 && what->a <= 3) {
            r->positions[what->a - 1] = single(what->b % PORTS, 1);
            r->positions[what->a - 1].has_tx = 1;
            r->positions[what->a - 1].tx.d[0] = (uint8_t)(what->c % PORTS);
            r->selects[what->a - 1] = 1;
        }
        break;
    case CHANGE_FILTER:
        if (r->filters && what->a == 0)
            r->filters->limit = what->b;
        else if (r->filters && what->a == 1)
            r->filters->rule.max_counter = what->b;
        else if (r->filters && what->a == 2)
            r->filters->counter = what->b;
        break;
    case CHANGE_EXIT:
        r->teardown = 0;
        break;
    case CHANGE_TOGGLE:
        r->teardown = !r->teardown;
        break;
    case CHANGE_COLOR_WORD:
        r->tx = from_bits(what->a, register_order);
        r->rx = from_bits(what->a >> 5, register_order);
        r->pop = what->a >> 12 & 3;
        r->teardown = what->a >> 14 & 1;
        break;
    default:
        set_switch_word(r, what->a);
        break;
    }
}
