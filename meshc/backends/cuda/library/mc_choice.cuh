// Tokens that a program chooses itself, and what its next step begins with.
#pragma once

namespace mc {

// The largest of some values, as NumPy has it: NaN where one is.
struct Largest {
    static MC_INLINE float start() { return -infinity(); }
    static MC_INLINE float combine(float a, float b) { return a >= b || a != a ? a : b; }
};

// ---- Draws ------------------------------------------------------------------------------------------------
//
// All is exact, so that a host that computes as this does has the same tokens: the products and sums of doubles are
// rounded one by one, and weights are added as whole numbers.

// What a score weighs beside the largest, 1: 2^(their difference times ``scale``), nothing below 2^-41. The exponent is
// n + f, n whole; 2^f is the square root of 2 times e^t with t = (f - 1/2) log(2), by a polynomial.
MC_INLINE float likelihood(float score, float top, float scale) {
    const double exponent = ((double)score - (double)top) * (double)scale;
    if (!(exponent > -41.0)) return 0.0f;
    int n = (int)exponent;
    if ((double)n > exponent) n -= 1;
    const double t = ((exponent - (double)n) - 0.5) * 0.6931471805599453;
    constexpr double TERMS[] = {2.755731922398589e-07, 2.7557319223985893e-06, 2.48015873015873e-05,
                                0.0001984126984126984, 0.001388888888888889,   0.008333333333333333,
                                0.041666666666666664,  0.16666666666666666,    0.5,
                                1.0,                   1.0};
    double sum = 0.0;
    for (double term : TERMS) {
        const double product = sum * t;
        sum = product + term;
    }
    // A power of two as a whole number over another one changes no bit of what it multiplies.
    return (float)(sum * 1.4142135623730951 * (double)(1ull << (n + 41)) * 4.547473508864641e-13);
}

// A weight in multiples of 2^-40, of which sums have no rounding.
MC_INLINE u64 units(float weight) { return (u64)(weight * 1099511627776.0f); }

// A number that is larger for larger scores, and the same for both zeros.
MC_INLINE u32 order_of(float score) {
    const u32 bits = bits_of(score + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// A number of 64 bits: word ``place`` mod 4 of Philox 4x64-10 (Salmon and others, SC 2011) at the counter
// ``place`` / 4 + 1.
MC_INLINE u64 philox(u64 key, u64 other, u32 place) {
    u64 c[4] = {place / 4 + 1ull, 0, 0, 0};
    for (int round = 0; round < 10; round++) {
        const u64 high = mul_high(0xD2E7470EE14C6C93ull, c[0]), low = 0xD2E7470EE14C6C93ull * c[0];
        const u64 higher = mul_high(0xCA5A826395121157ull, c[2]), lower = 0xCA5A826395121157ull * c[2];
        c[0] = higher ^ c[1] ^ key, c[1] = lower, c[2] = high ^ c[3] ^ other, c[3] = low;
        key += 0x9E3779B97F4A7C15ull, other += 0xBB67AE8584CAA73Bull;
    }
    return place % 4 == 0 ? c[0] : place % 4 == 1 ? c[1] : place % 4 == 2 ? c[2] : c[3];
}

// By all workers: the sum of each of N numbers over them. ``work`` has room for N numbers of each.
template <int N, int WORKERS>
MC_INLINE void add_up(u64 (&v)[N], u64* work, int me, u32 id) {
    constexpr int RUN = 16;
    for (int n = 0; n < N; n++) work[n * WORKERS + me] = v[n];
    group_sync(id, WORKERS);
    for (int n = 0; n < N && me % RUN == 0; n++) {
        u64* const run = work + n * WORKERS + me;
        for (int i = 1; i < RUN; i++) run[0] += run[i];
    }
    group_sync(id, WORKERS);
    for (int n = 0; n < N; n++) {
        v[n] = 0;
        for (int i = 0; i < WORKERS; i += RUN) v[n] += work[n * WORKERS + i];
    }
    group_sync(id, WORKERS);
}

// By all workers: the sum of what those in front of one have.
template <int WORKERS>
MC_INLINE u64 sum_before(u64 v, u64* work, int me, u32 id) {
    work[me] = v;
    group_sync(id, WORKERS);
    u64 sum = 0;
    for (int i = 0; i < me; i++) sum += work[i];
    group_sync(id, WORKERS);
    return sum;
}

// By all workers: the largest number that as much as ``wanted`` of COUNT is not below, two bits at a time.
template <int COUNT, int WORKERS, class Order, class Mass>
MC_INLINE u32 least_order(u64 wanted, u64* work, int me, u32 id, Order order, Mass mass) {
    u32 found = 0;
    for (int bit = 30; bit >= 0; bit -= 2) {
        u64 of[3] = {0, 0, 0};
        for (int i = me; i < COUNT; i += WORKERS) {
            const u32 own = order(i);
            const u64 more = mass(i);
            for (u32 j = 0; j < 3; j++) of[j] += own >= (found | (j + 1) << bit) ? more : 0;
        }
        add_up<3, WORKERS>(of, work, me, id);
        found |= (u32)((of[0] >= wanted) + (of[1] >= wanted) + (of[2] >= wanted)) << bit;
    }
    return found;
}

// By all workers: one of COUNT indices, drawn by their scores and by what these weigh, or the ``first`` of the largest
// where ``scale`` is 0 or there is none. Indices below the ``most`` largest are left out, of the others the least
// likely ones that have at most 1 - ``share`` together, and those that weigh less than ``least``. ``low`` .. ``place``
// say which number of 64 bits is taken. ``work`` has room for 3 numbers of each worker.
template <int COUNT, int WORKERS, class Score, class Weight>
MC_INLINE void draw(float* to, u64* work, int me, u32 id, float first, float scale, float most, float share,
                    float least, int low, int high, int other, int place, Score score, Weight weight) {
    const bool drawn = scale != 0.0f && first < infinity();
    if (me == 0) to[0] = drawn ? infinity() : first;
    if (!drawn) return;
    auto order = [&](int i) { return order_of(score(i)); };
    u32 bound = 0;
    u64 ties = COUNT;  // of those at the bound, by rising indices, so many stay
    if (most > 0.0f && most < (float)COUNT) {
        bound = least_order<COUNT, WORKERS>((u64)most, work, me, id, order, [](int) { return 1ull; });
    }
    if (share < 1.0f) {
        const u32 before = bound;
        auto mass = [&](int i) { return order(i) >= before ? units(weight(i)) : 0; };
        u64 all[1] = {0}, of[3] = {0, 0, 0};
        for (int i = me; i < COUNT; i += WORKERS) all[0] += mass(i);
        add_up<1, WORKERS>(all, work, me, id);
        if (all[0] == 0) return;  // beside an infinite score none weighs anything
        const u64 gone = (u64)((1.0 - (double)share) * (double)all[0]), wanted = all[0] > gone ? all[0] - gone : 1;
        bound = least_order<COUNT, WORKERS>(wanted, work, me, id, order, mass);
        for (int i = me; i < COUNT; i += WORKERS) {
            const u32 own = order(i);
            of[0] += own > bound ? mass(i) : 0;
            of[1] += own == bound ? mass(i) : 0;
            of[2] += own == bound;
        }
        add_up<3, WORKERS>(of, work, me, id);
        const u64 each = of[1] / of[2];
        ties = (wanted - of[0] + each - 1) / each;
    }
    const int begin = (int)((long long)COUNT * me / WORKERS), end = (int)((long long)COUNT * (me + 1) / WORKERS);
    u64 tied = 0, all[1] = {0};
    for (int i = begin; i < end; i++) tied += order(i) == bound;
    tied = sum_before<WORKERS>(tied, work, me, id);
    auto kept = [&](int i, u64& rank) -> u64 {
        const u32 own = order(i);
        if (own < bound || (own == bound && rank++ >= ties)) return 0;
        return weight(i) < least ? 0 : units(weight(i));
    };
    u64 rank = tied;
    for (int i = begin; i < end; i++) all[0] += kept(i, rank);
    const u64 mine = all[0], ahead = sum_before<WORKERS>(mine, work, me, id);
    add_up<1, WORKERS>(all, work, me, id);
    const u64 key = (u32)low | (u64)(u32)high << 32, target = mul_high(philox(key, (u32)other, (u32)place), all[0]);
    if (ahead <= target && target < ahead + mine) {
        u64 sum = ahead;
        rank = tied;
        int i = begin - 1;
        do {
            i++;
            sum += kept(i, rank);
        } while (sum <= target);
        to[0] = (float)i;
    }
    group_sync(id, WORKERS);
}

// ---- Steps that follow each other ---------------------------------------------------------------------------

constexpr int ENDED = -1;      // stands for the token of a request that goes on no more
constexpr int NO_LARGEST = -2;  // for that of logits that have no largest number, or one that is not finite

// ``token`` is chosen for a request by its ``logits``, and kept as ``chosen``. Where ``left`` says that more are to come, and it is none
// of ENDS that end a text, the next step reads it at the position behind the one before; a request that goes on no more
// stays where it is. The last word of ``stream`` says which number the next draw takes.
template <int ENDS>
MC_INLINE void go_on(float token, const float* logits, int* tokens, int* cached, int* left, int* stream,
                     const int* ends, int* chosen) {
    const float logit = token < infinity() ? logits[(int)token] : infinity();
    const bool there = left[0] > 0, known = logit < infinity() && logit > -infinity();
    const int found = known ? (int)token : NO_LARGEST;
    chosen[0] = there ? found : ENDED;
    if (!there) return;
    bool last = !known || left[0] == 1;
    for (int i = 0; i < ENDS; i++) last |= ends[i] == found;
    left[0] = last ? 0 : left[0] - 1;
    stream[3] += 1;
    if (last) return;
    tokens[0] = found;
    cached[0] += 1;
}

}  // namespace mc
