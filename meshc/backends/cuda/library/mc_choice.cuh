// Tokens that a program chooses itself, and what its next step begins with.
#pragma once

namespace mc {

// The largest of some values, as NumPy has it: NaN where one is.
struct Largest {
    static MC_INLINE float start() { return -infinity(); }
    static MC_INLINE float combine(float a, float b) { return a >= b || a != a ? a : b; }
};

constexpr int ENDED = -1;      // stands for the token of a request that goes on no more
constexpr int NO_LARGEST = -2;  // for that of logits that have no largest number, or one that is not finite

// ``token`` is chosen for a request by its ``logits``, and kept as ``chosen``. Where ``left`` says that more are to come, and it is none
// of ENDS that end a text, the next step reads it at the position behind the one before; a request that goes on no more
// stays where it is.
template <int ENDS>
MC_INLINE void go_on(float token, const float* logits, int* tokens, int* cached, int* left, const int* ends,
                     int* chosen) {
    const bool there = left[0] > 0, known = token < infinity() && logits[(int)token] < infinity() && logits[(int)token] > -infinity();
    const int found = known ? (int)token : NO_LARGEST;
    chosen[0] = there ? found : ENDED;
    if (!there) return;
    bool last = !known || left[0] == 1;
    for (int i = 0; i < ENDS; i++) last |= ends[i] == found;
    left[0] = last ? 0 : left[0] - 1;
    if (last) return;
    tokens[0] = found;
    cached[0] += 1;
}

}  // namespace mc
