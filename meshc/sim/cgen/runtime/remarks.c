/* What is odd but does not stop a run. Python is told at once, or after the cycle where several
 * threads run, in the order of the PEs, as one thread would. */
#include <stdlib.h>

#include "machine.h"

static void tell(machine *m, const oddity *o)
{
    int32_t number = o->p->number;
    switch (o->kind) {
    case ODD_BOUNDS: m->python.bounds(number, o->a, o->b); break;
    case ODD_MICROTHREAD:
        m->python.microthread(number, (int32_t)o->a, (int32_t)o->b, (int32_t)o->c);
        break;
    case ODD_EDGE: m->python.edge(number, (int32_t)o->a, (int32_t)o->b); break;
    default: m->python.wrap(number, o->a, (int32_t)o->b); break;
    }
}

void remark(pe *p, int kind, int64_t a, int64_t b, int64_t c)
{
    machine *m = p->m;
    oddity new = {p, kind, p->current, a, b, c};
    if (!m->defers) {
        tell(m, &new);
        check_python(m);
        return;
    }
    m->odd = grown(m->odd, m->odd_count, sizeof *m->odd);
    m->odd[m->odd_count++] = new;
}

/* The part with the first of the remarks that were put off, in the order of the PEs. */
static machine *next_to_tell(simulation *s)
{
    machine *first = NULL;
    for (int i = 0; i < s->part_count; i++) {
        machine *m = s->parts[i];
        if (m->told < m->odd_count &&
            (!first || m->odd[m->told].p->number < first->odd[first->told].p->number))
            first = m;
    }
    return first;
}

/* Tell Python what was put off; the part where that failed. */
machine *tell_remarks(simulation *s)
{
    machine *failed = NULL;
    for (machine *m; !failed && (m = next_to_tell(s));) {
        const oddity *o = &m->odd[m->told++];
        int32_t current = o->p->current;
        if (o->kind == ODD_BOUNDS)
            core_of(o->p)->kind->remarked[o->c] = 1;
        o->p->current = o->current;
        tell(m, o);
        o->p->current = current;
        failed = m->failed ? m : NULL;
    }
    for (int i = 0; i < s->part_count; i++)
        s->parts[i]->odd_count = s->parts[i]->told = 0;
    return failed;
}
