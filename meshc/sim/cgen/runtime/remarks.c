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

/* Tell Python what was put off in a part. */
void tell_remarks(machine *m)
{
    for (int64_t i = 0; i < m->odd_count; i++) {
        const oddity *o = &m->odd[i];
        int32_t current = o->p->current;
        if (o->kind == ODD_BOUNDS)
            core_of(o->p)->kind->remarked[o->c] = 1;
        o->p->current = o->current;
        tell(m, o);
        o->p->current = current;
    }
    m->odd_count = 0;
}
