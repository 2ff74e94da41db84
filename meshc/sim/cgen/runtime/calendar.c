/* Which PEs of a part have events, by cycle: a ring of sets for the next cycles, and a heap for what
 * comes later. A PE may be in a set without having an event left there. */
#include <stdlib.h>

#include "machine.h"

static int64_t blocks(int64_t bits) { return (bits + 63) / 64; }

void calendar_start(calendar *c, int64_t places)
{
    c->words = blocks(places);
    c->heads = blocks(c->words);
    c->sets = calloc((size_t)(RING * (c->heads + c->words)), sizeof(uint64_t));
    if (!c->sets)
        abort();
}

static inline uint64_t *set_of(const calendar *c, int64_t time)
{
    return c->sets + time % RING * (c->heads + c->words);
}

static void put(calendar *c, int64_t time, int64_t place)
{
    uint64_t *set = set_of(c, time);
    int64_t word = place / 64, slot = time % RING;
    set[word / 64] |= 1ull << word % 64;
    set[c->heads + word] |= 1ull << place % 64;
    c->used[slot / 64] |= 1ull << slot % 64;
}

static void put_far(calendar *c, int64_t time, int64_t place)
{
    if (c->far_count == c->far_room) {
        c->far_room = c->far_room ? 2 * c->far_room : 64;
        c->far = realloc(c->far, (size_t)c->far_room * sizeof(late));
        if (!c->far)
            abort();
    }
    int64_t i = c->far_count++;
    for (int64_t parent; i > 0 && time < c->far[parent = (i - 1) / 2].time; i = parent)
        c->far[i] = c->far[parent];
    c->far[i] = (late){time, (int32_t)place};
}

static late take_far(calendar *c)
{
    late first = c->far[0], last = c->far[--c->far_count];
    int64_t i = 0, child;
    while ((child = 2 * i + 1) < c->far_count) {
        child += child + 1 < c->far_count && c->far[child + 1].time < c->far[child].time;
        if (c->far[child].time >= last.time)
            break;
        c->far[i] = c->far[child];
        i = child;
    }
    c->far[i] = last;
    return first;
}

/* The PE at a place has an event at a time, which is not before now. */
void calendar_note(calendar *c, int64_t now, int64_t time, int64_t place)
{
    if (time < now + RING)
        put(c, time, place);
    else
        put_far(c, time, place);
}

/* Time has come to now: what lay behind the ring may lie in it. */
void calendar_turn(calendar *c, int64_t now)
{
    while (c->far_count && c->far[0].time < now + RING) {
        late next = take_far(c);
        put(c, next.time, next.place);
    }
}

/* The first cycle from now on with an event, or FOREVER. */
int64_t calendar_next(const calendar *c, int64_t now)
{
    int64_t far = c->far_count ? c->far[0].time : FOREVER, slot = now % RING;
    for (int64_t i = 0; i <= RING / 64; i++) {
        int64_t word = (slot / 64 + i) % (RING / 64);
        uint64_t bits = c->used[word];
        if (i == 0)
            bits &= ~0ull << slot % 64;
        if (bits)
            return min64(far, now + (word * 64 + __builtin_ctzll(bits) - slot + RING) % RING);
    }
    return far;
}

/* The first place in the set of a cycle; -1 when it is empty. */
int64_t calendar_first(const calendar *c, int64_t now)
{
    const uint64_t *set = set_of(c, now);
    for (int64_t head = 0; head < c->heads; head++)
        if (set[head]) {
            int64_t word = 64 * head + __builtin_ctzll(set[head]);
            return 64 * word + __builtin_ctzll(set[c->heads + word]);
        }
    return -1;
}

/* The first place behind another one in the set of a cycle; -1 when there is none. */
int64_t calendar_after(const calendar *c, int64_t now, int64_t place)
{
    const uint64_t *set = set_of(c, now);
    int64_t word = (place + 1) / 64;
    if (word >= c->words)
        return -1;
    uint64_t bits = set[c->heads + word] & ~0ull << (place + 1) % 64;
    if (bits)
        return 64 * word + __builtin_ctzll(bits);
    for (int64_t head = ++word / 64; head < c->heads; head++, word = 64 * head) {
        uint64_t words = set[head] & ~0ull << word % 64;
        if (words) {
            word = 64 * head + __builtin_ctzll(words);
            return 64 * word + __builtin_ctzll(set[c->heads + word]);
        }
    }
    return -1;
}

/* Take a place out of the set of a cycle. */
void calendar_strike(calendar *c, int64_t now, int64_t place)
{
    uint64_t *set = set_of(c, now);
    int64_t word = place / 64, slot = now % RING;
    set[c->heads + word] &= ~(1ull << place % 64);
    if (set[c->heads + word])
        return;
    set[word / 64] &= ~(1ull << word % 64);
    for (int64_t head = 0; head < c->heads; head++)
        if (set[head])
            return;
    c->used[slot / 64] &= ~(1ull << slot % 64);
}

void calendar_end(calendar *c)
{
    free(c->sets);
    free(c->far);
}
