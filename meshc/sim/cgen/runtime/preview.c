/* Fetching ahead. A cycle goes over many PEs, and most of what their events touch is in no cache.
 * While the events of a PE are handled, what those of the next ones will touch is fetched: of the
 * farthest PE its state, of a nearer one what its first event is about, of the nearest one what that
 * points to. A guess may be wrong; nothing depends on it. */
#include "machine.h"

enum { LINE = 64, SUBJECT_BYTES = 3 * LINE };

static inline void fetch(const void *from, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += LINE)
        __builtin_prefetch((const char *)from + i);
}

static inline const event *first_of(const core *c)
{
    return c && c->events.count ? &c->events.items[0] : NULL;
}

/* Look at the PE behind those known of a cycle. */
void look_ahead(machine *m, preview *v, int64_t time)
{
    core *far = NULL;
    if (v->place >= 0 && (v->place = calendar_after(&m->calendar, time, v->place)) >= 0) {
        far = &m->all->pes[m->first + v->place];
        fetch(far, offsetof(core, lanes));
    }
    const event *middle = first_of(v->next[1]), *near = first_of(v->next[0]);
    if (middle) {
        fetch(middle->subject, SUBJECT_BYTES);
        fetch(middle->argument, LINE);
    }
    if (near && near->act == deliver) {
        const router *to = near->subject;
        fetch(core_of(to->p)->lanes[to->color].channel, LINE);
        fetch(((const burst *)near->argument)->payload, LINE);
    }
    v->next[0] = v->next[1];
    v->next[1] = v->next[2];
    v->next[2] = far;
}

/* What lies behind the first PE of a cycle. */
preview preview_of(machine *m, int64_t time)
{
    preview v = {.place = calendar_first(&m->calendar, time)};
    for (int i = 0; i < AHEAD; i++)
        look_ahead(m, &v, time);
    return v;
}
