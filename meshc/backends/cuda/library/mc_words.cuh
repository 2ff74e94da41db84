// Words that blocks exchange without meeting: a float, and in low bits that it does without which of the values it is
// that lie there one after the other. Who needs a value reads its word until the tag is the one that it wants, and then
// has the value too.
#pragma once

namespace mc {

#ifndef MC_EXECUTOR

// A word is whole for whoever reads it; stores and loads make nothing else visible.
MC_INLINE void store_word(u32* p, u32 v) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// Four of them, on a 16-byte address.
MC_INLINE void store_words(u32* p, const u32 (&v)[4]) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v[0]), "r"(v[1]), "r"(v[2]),
                 "r"(v[3])
                 : "memory");
}

MC_INLINE u32 load_word(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

MC_INLINE void load_words(const u32* p, u32 (&v)[4]) {
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "l"(p)
                 : "memory");
}

// The same of words that other GPUs store too.
MC_INLINE u32 load_word_of_gpus(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

MC_INLINE void load_words_of_gpus(const u32* p, u32 (&v)[4]) {
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "l"(p)
                 : "memory");
}

// A word of the memory of one GPU, or of all at a multicast address.
MC_INLINE void store_word_to_gpu(u32* p, u32 v) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

MC_INLINE void store_word_to_gpus(u32* p, u32 v) {
    asm volatile("multimem.st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// Words were not there yet; that they are not ``left`` more times is a fault, of a grid whose blocks are missing.
MC_INLINE void wait_for_words(u32& left) {
    if (!left--) __trap();
}

MC_INLINE u32 bits_of(float v) { return __float_as_uint(v); }
MC_INLINE float float_of(u32 bits) { return __uint_as_float(bits); }

#endif

constexpr u32 MOST_POLLS = 1u << 26;  // a minute or so while the grid runs
constexpr bool OF_GPUS = true;        // of words that the GPUs of all ranks store

// The tag of the value behind ``before`` others of its word: 1, 2, .. and 1 again; 0 is that of memory that is fresh.
template <int BITS>
MC_INLINE u32 tag_of(u32 before) {
    return 1 + before % ((1u << BITS) - 1);
}

// The nearest value that leaves BITS bits free, and finite where ``v`` is; with ``tag`` in them.
template <int BITS>
MC_INLINE u32 tagged(float v, u32 tag) {
    constexpr u32 STEP = 1u << BITS, ENDLESS = 0x7f800000u;
    const u32 bits = bits_of(v), below = bits / STEP * STEP;
    const u32 nearest = (bits + (STEP / 2 - 1) + bits / STEP % 2) / STEP * STEP;
    return ((bits & 0x7fffffffu) >= ENDLESS - STEP ? below : nearest) | tag;
}

// ---- Who gives ------------------------------------------------------------------------------------------

template <int BITS>
MC_INLINE void give(float* p, float v, u32 tag) {
    store_word((u32*)p, tagged<BITS>(v, tag));
}

// Eight, on a 16-byte address.
template <int BITS>
MC_INLINE void give8(float* p, const float (&v)[8], u32 tag) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        const u32 words[4] = {tagged<BITS>(v[i], tag), tagged<BITS>(v[i + 1], tag), tagged<BITS>(v[i + 2], tag),
                              tagged<BITS>(v[i + 3], tag)};
        store_words((u32*)p + i, words);
    }
}

// To the memory of all GPUs, by its multicast address or where it is on each.
template <int GPUS, int BITS>
MC_INLINE void gpus_give(float* all, size_t at, float v, u32 tag) {
    store_word_to_gpus((u32*)all + at, tagged<BITS>(v, tag));
}

template <int GPUS, int BITS>
MC_INLINE void gpus_give(float* const* each, size_t at, float v, u32 tag) {
    const u32 word = tagged<BITS>(v, tag);
#pragma unroll
    for (int gpu = 0; gpu < GPUS; gpu++) store_word_to_gpu((u32*)each[gpu] + at, word);
}

// ---- Who needs --------------------------------------------------------------------------------------------

template <bool GPUS>
MC_INLINE u32 word_at(const float* p) {
    if constexpr (GPUS) return load_word_of_gpus((const u32*)p);
    else return load_word((const u32*)p);
}

template <bool GPUS>
MC_INLINE void words_at(const float* p, u32 (&v)[4]) {
    if constexpr (GPUS) load_words_of_gpus((const u32*)p, v);
    else load_words((const u32*)p, v);
}

template <int N>
MC_INLINE void clear(float (&v)[N][8]) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[n][i] = 0.0f;
    }
}

// Floats as they are, which blocks have met to exchange.
struct Plain {
    static constexpr int MOST = 6;  // eights of a thread that its registers have room for

    // Eight neighbours from each of N places whose bit ``wanted`` has, and zeros of the others: registers that may or
    // may not be given would keep what they had since the layer before.
    template <int N>
    MC_INLINE void eights(const float* const (&from)[N], u32 wanted, float (&v)[N][8]) const {
        clear(v);
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (!(wanted >> n & 1)) continue;
            const float4 low = *(const float4*)from[n], high = *(const float4*)(from[n] + 4);
            v[n][0] = low.x, v[n][1] = low.y, v[n][2] = low.z, v[n][3] = low.w;
            v[n][4] = high.x, v[n][5] = high.y, v[n][6] = high.z, v[n][7] = high.w;
        }
    }

    // The same, and the two at ``pair`` of each of N records.
    template <int N>
    MC_INLINE void records(const float* const (&from)[N], int lane, int pair, float (&v)[N][8], float2 (&two)[N]) const {
        const float* at[N];
#pragma unroll
        for (int n = 0; n < N; n++) at[n] = from[n] + lane;
        eights(at, ~0u, v);
#pragma unroll
        for (int n = 0; n < N; n++) two[n] = *(const float2*)(from[n] + pair);
    }
};

// Words with tags; with 0 as the tag whatever lies there, which was waited for before. All are asked for at once; while
// some are not there, all are asked for again, or, of many, first one of these alone.
template <int BITS, bool GPUS = false>
struct Tagged {
    static constexpr int MOST = 4;
    static constexpr int AT_ONCE = 2;  // eights that are asked for again and again
    u32 tag;

    MC_INLINE explicit Tagged(u32 tag) : tag(tag) {}

    static MC_INLINE float value(u32 word) { return float_of(word >> BITS << BITS); }

    MC_INLINE bool there(u32 word) const { return tag == 0 || (word & ((1u << BITS) - 1)) == tag; }

    MC_INLINE float one(const float* from) const {
        u32 left = MOST_POLLS, word = word_at<GPUS>(from);
        while (!there(word)) {
            wait_for_words(left);
            word = word_at<GPUS>(from);
        }
        return value(word);
    }

    template <int N>
    MC_INLINE void eights(const float* const (&from)[N], u32 wanted, float (&v)[N][8]) const {
        clear(v);
        for (u32 left = MOST_POLLS;;) {
            const float* missing = nullptr;
#pragma unroll
            for (int n = 0; n < N; n++) {
                if (wanted >> n & 1) load(from[n], v[n]);
            }
#pragma unroll
            for (int n = 0; n < N; n++) {
                if (wanted >> n & 1 && !all(v[n])) missing = from[n];
            }
            if (!missing) break;
            if (N > AT_ONCE) wait_for(missing, left);
            else wait_for_words(left);
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (wanted >> n & 1) keep(v[n]);
        }
    }

    template <int N>
    MC_INLINE void records(const float* const (&from)[N], int lane, int pair, float (&v)[N][8], float2 (&two)[N]) const {
        for (u32 left = MOST_POLLS;;) {
            const float* missing = nullptr;
#pragma unroll
            for (int n = 0; n < N; n++) {
                load(from[n] + lane, v[n]);
                two[n].x = float_of(word_at<GPUS>(from[n] + pair));
                two[n].y = float_of(word_at<GPUS>(from[n] + pair + 1));
            }
#pragma unroll
            for (int n = 0; n < N; n++) {
                if (!all(v[n]) || !there(bits_of(two[n].x)) || !there(bits_of(two[n].y))) missing = from[n] + lane;
            }
            if (!missing) break;
            wait_for_words(left);
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            keep(v[n]);
            two[n].x = value(bits_of(two[n].x)), two[n].y = value(bits_of(two[n].y));
        }
    }

private:
    // Eight words, with their tags.
    static MC_INLINE void load(const float* from, float (&v)[8]) {
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            u32 words[4];
            words_at<GPUS>(from + i, words);
#pragma unroll
            for (int j = 0; j < 4; j++) v[i + j] = float_of(words[j]);
        }
    }

    // Until the first word there has its tag, as then the others are likely to have theirs.
    MC_INLINE void wait_for(const float* from, u32& left) const {
        do {
            wait_for_words(left);
        } while (!there(word_at<GPUS>(from)));
    }

    MC_INLINE bool all(const float (&v)[8]) const {
        bool found = true;
#pragma unroll
        for (int i = 0; i < 8; i++) found = found && there(bits_of(v[i]));
        return found;
    }

    static MC_INLINE void keep(float (&v)[8]) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = value(bits_of(v[i]));
    }
};

// One word from each of N places whose bit ``wanted`` has, each with a tag of its own, and zeros of the others.
template <int BITS, bool GPUS = false, int N>
MC_INLINE void need(const float* const (&from)[N], const u32 (&tags)[N], u32 wanted, float (&v)[N]) {
    u32 left = MOST_POLLS;
#pragma unroll
    for (int n = 0; n < N; n++) v[n] = 0.0f;
    for (u32 missing = wanted; missing;) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (missing >> n & 1) v[n] = float_of(word_at<GPUS>(from[n]));
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (missing >> n & 1 && Tagged<BITS>(tags[n]).there(bits_of(v[n]))) missing &= ~(1u << n);
        }
        if (missing) wait_for_words(left);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (wanted >> n & 1) v[n] = Tagged<BITS>::value(bits_of(v[n]));
    }
}

}  // namespace mc
