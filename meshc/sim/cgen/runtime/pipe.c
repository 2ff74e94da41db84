/* What passes one item per cycle and is shared. Mirrors machine/pipe.py. */
#include <stdlib.h>

#include "machine.h"

int64_t pipe_share(const pipe_ *pipe, int64_t t, int64_t n)
{
    if (t >= pipe->last)
        return n;
    int64_t flows = 0;
    for (int i = 0; i < pipe->count; i++)
        flows += pipe->ends[i] > t;
    return min64(max64(pipe->free_at - t, 0) + n, (flows + 1) * n);
}

void pipe_claim(pipe_ *pipe, int64_t t, int64_t n, int64_t span)
{
    int kept = 0;
    if (t < pipe->last)
        for (int i = 0; i < pipe->count; i++)
            if (pipe->ends[i] > t)
                pipe->ends[kept++] = pipe->ends[i];
    if (kept == pipe->room)
        pipe->ends = longer(pipe->ends, pipe->first, FEW, &pipe->room, sizeof(int64_t));
    pipe->ends[kept] = t + span;
    pipe->count = kept + 1;
    pipe->free_at = max64(pipe->free_at, t) + n;
    pipe->last = max64(pipe->last, t + span);
}

int64_t pipe_reserve(pipe_ *pipe, int64_t t, int64_t n, int64_t span)
{
    int64_t cycles = max64(span, pipe_share(pipe, t, n));
    pipe_claim(pipe, t, n, cycles);
    return cycles;
}

/* b as it leaves the pipe when its first wavelet arrives at t; changed in place. */
void pipe_carry(pipe_ *pipe, burst *b, int64_t t)
{
    int64_t n = b->count, span = (n - 1) * b->period + 1;
    int64_t cycles = pipe_reserve(pipe, t, n, span);
    if (cycles == span) {
        b->t0 = t;
        return;
    }
    b->period = max64(b->period, cycles / n);
    b->t0 = t + cycles - ((n - 1) * b->period + 1);
}

void pipe_end(pipe_ *pipe)
{
    if (pipe->ends != pipe->first)
        free(pipe->ends);
}

static int64_t between(int64_t n, int64_t busy, int64_t window)
{
    int64_t gaps = window - busy;
    return n <= gaps ? ceil_div(n * window, gaps) : busy + n;
}

int64_t issue_low(issue *slots, int64_t t, int64_t n, int64_t span)
{
    int64_t cycles = pipe_share(&slots->pipe, t, n);
    int64_t start = slots->main_start, end = slots->main_end;
    if (t < end) {
        int64_t window = end - t, busy = slots->main_steps * min64(window, end - start);
        cycles = between(cycles, busy / (end - start), window);
    }
    cycles = max64(span, cycles);
    pipe_claim(&slots->pipe, t, n, cycles);
    return cycles;
}

int64_t issue_high(issue *slots, int64_t t, int64_t n, int64_t span)
{
    pipe_claim(&slots->pipe, t, n, span);
    slots->stolen += n;
    return span;
}
