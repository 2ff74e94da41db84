/* What a PE has of a color, and tables of which it uses a few rows: made when they are used. */
#include "machine.h"

router no_router;

/* The state of a color at a PE; exists says whether it has a route. */
router *router_at(pe *p, int64_t color)
{
    if (color < 0 || color >= COLORS)
        csl_fault(p, 0, "there is no color %lld", (long long)color);
    router **place = &core_of(p)->routers[color];
    if (*place == &no_router) {
        router *r = pool_keep(&p->m->pool, sizeof *r);
        r->p = p;
        r->color = (uint8_t)color;
        r->exit = -1;
        *place = r;
    }
    return *place;
}

/* The same, NULL without a route. */
router *existing(pe *p, int color)
{
    router *r = color >= 0 && color < COLORS ? core_of(p)->routers[color] : &no_router;
    return r->exists ? r : NULL;
}

channel *channel_of_color(pe *p, int64_t color)
{
    router *r = router_at(p, color);
    if (!r->channel) {
        core *c = core_of(p);
        r->channel = pool_keep(&p->m->pool, sizeof(channel));
        r->channel->p = p;
        r->channel->color = (int32_t)color;
        r->channel->blocked = 1;
        c->channel_order[c->channel_count++] = (uint8_t)color;
    }
    return r->channel;
}

/* The account of what a PE sends on a color. */
credit *credit_at(pe *p, int64_t color)
{
    router *r = router_at(p, color);
    if (!r->credit) {
        core *c = core_of(p);
        r->credit = pool_keep(&p->m->pool, sizeof(credit));
        r->credit->p = p;
        r->credit->color = (int32_t)color;
        c->credit_order[c->credit_count++] = (uint8_t)color;
    }
    return r->credit;
}

/* The place of a number in a table of pointers. */
void **place_in(pe *p, void ***rows, int64_t number)
{
    void ***found = &rows[number / ROW];
    if (!*found)
        *found = pool_keep(&p->m->pool, ROW * sizeof(void *));
    return &(*found)[number % ROW];
}
