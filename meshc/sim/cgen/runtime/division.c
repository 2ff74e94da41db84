/* The division of the PEs into parts, one for each thread, and what it takes that nobody sees it.
 *
 * Bands of PEs, by their numbers, are dealt to the parts in turn. What moves over a rectangle is at one
 * time in one region of it, which bands divide more evenly than halves, and links between bands, over
 * which wavelets are copied, are few where a band has several rows. */
#include <stdlib.h>

#include "machine.h"

enum { MOST_ROWS = 8, BANDS_OF_PART = 4 };

/* Choose the parts and the bands: at least some for each part, and whole rows where they are longer. */
void divide(simulation *s, int threads)
{
    s->part_count = (int32_t)max64(1, min64(threads, s->pe_count));
    int64_t most = s->pe_count / (BANDS_OF_PART * s->part_count);
    int64_t band = max64(1, min64(most, MOST_ROWS * s->width));
    s->band = (int32_t)(band > s->width ? band - band % s->width : band);
}

/* The part of a PE, by its number. */
int part_of(const simulation *s, int number) { return number / s->band % s->part_count; }

/* The place of a PE among those of its part, which are in the order of their numbers. */
int64_t place_in_part(const simulation *s, int number)
{
    return number / s->band / s->part_count * s->band + number % s->band;
}

/* The number of PEs of a part. */
int size_of_part(const simulation *s, int index)
{
    int round = s->band * s->part_count, rest = s->pe_count % round - index * s->band;
    return s->pe_count / round * s->band + (int)max64(0, min64(rest, s->band));
}

/* --- between parts --- */

/* Put what other parts have sent to this one into its events. Bursts are copied, so that no two
 * parts count references to one block. */
void take_parcels(machine *m, int parity)
{
    for (int i = 0; i < m->all->part_count; i++) {
        const outbox *from = &m->all->parts[i]->out[parity][m->index];
        const words *before = NULL;
        words *copy = NULL;
        for (int64_t k = 0; k < from->count; k++) {
            event e = from->items[k].what;
            const burst *b = e.argument;
            if (b->payload != before) {
                if (copy)
                    words_drop(m, copy);
                before = b->payload;
                copy = words_new(m, before->count);
                memcpy(copy->data, before->data, (size_t)before->count * 4);
            }
            burst *mine = burst_new(m, copy, b->first, b->count, b->t0, b->period, b->control,
                                    b->paid);
            mine->port = b->port;
            mine->color = b->color;
            e.argument = mine;
            put_event(core_of(from->items[k].to), &e);
        }
        if (copy)
            words_drop(m, copy);
    }
}

/* Forget what was sent to others and has been taken. */
void drop_parcels(machine *m, int parity)
{
    for (int i = 0; i < m->all->part_count; i++) {
        outbox *to = &m->out[parity][i];
        for (int64_t k = 0; k < to->count; k++)
            burst_drop(m, to->items[k].what.argument);
        to->count = 0;
    }
    m->earliest[parity] = FOREVER;
}

/* --- cycles that several threads do --- */

/* Note where the counters stand before the events of a PE. */
void note_tally(machine *m, int number)
{
    m->tallies[m->tally_count++] = (tally){number, m->events, m->tasks_run, m->last_time};
}

/* Take back what one thread would not have done, which stops at a fault of a PE. */
static void take_back(machine *m, int faulty)
{
    for (int64_t i = 0; i < m->tally_count; i++)
        if (m->tallies[i].number > faulty) {
            m->events = m->tallies[i].events;
            m->tasks_run = m->tallies[i].tasks_run;
            m->last_time = m->tallies[i].last_time;
            break;
        }
    while (m->odd_count && m->odd[m->odd_count - 1].p->number > faulty)
        m->odd_count--;
}

/* Tell what the threads found in the last cycle as one thread would have, PE by PE: of several faults
 * that of the first PE counts, and remarks come in the order of the PEs. 0 when there is a fault. */
int conclude(simulation *s)
{
    machine *faulty = NULL;
    for (int i = 0; i < s->part_count; i++) {
        machine *m = s->parts[i];
        if (m->fault != FAULT_NONE && (!faulty || m->fault_pe < faulty->fault_pe))
            faulty = m;
    }
    for (int i = 0; i < s->part_count; i++) {
        s->parts[i]->defers = 0;
        if (faulty)
            take_back(s->parts[i], faulty->fault_pe);
    }
    machine *failed = tell_remarks(s);
    if (failed)
        (faulty = failed)->fault = FAULT_PYTHON;
    if (faulty)
        s->faulty = faulty;
    return !faulty;
}
