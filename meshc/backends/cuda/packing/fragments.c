/* Rows of 16-bit words in the order of tensor cores (library/mc_fragments.cuh). */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8, SIDE = 16 }; /* lanes above each other in a block; words of a row in it */
enum { AS_THEY_ARE, TO_F16, TO_BF16 }; /* what becomes of words: nothing, or those of the other type */

/* Calls PUT(upper, lower, out) for what stands of each row and the one eight rows below in a block. */
#define FOR_ALL(PUT)                                                                               \
  for (size_t group = 0; group < groups; ++group, rows += 2 * LANES)                               \
    for (size_t block = 0; block < blocks; ++block)                                                \
      for (size_t lane = 0; lane < LANES; ++lane, out += 2 * SIDE)                                 \
        PUT((const uint16_t*)(uintptr_t)rows[lane] + block * SIDE,                                 \
            (const uint16_t*)(uintptr_t)rows[lane + LANES] + block * SIDE, out);

/* Two words of the one row and two of the other, in turn. */
static inline void put(const uint16_t* upper, const uint16_t* lower, uint16_t* out) {
  for (size_t pair = 0; pair < SIDE; pair += 2) {
    memcpy(out + 2 * pair, upper + pair, 2 * sizeof *out);
    memcpy(out + 2 * pair + 2, lower + pair, 2 * sizeof *out);
  }
}

#if defined(__x86_64__)
#include <immintrin.h>

#define WITH_F16C __attribute__((target("avx2,f16c")))
typedef __m128i Words; /* eight of them */

static inline Words at(const uint16_t* words) { return _mm_loadu_si128((const Words*)words); }

static inline void put_words(Words upper, Words lower, uint16_t* out) {
  _mm_storeu_si128((Words*)out, _mm_unpacklo_epi32(upper, lower));
  _mm_storeu_si128((Words*)(out + 8), _mm_unpackhi_epi32(upper, lower));
}

WITH_F16C static inline Words f16_of(Words bf16) {
  const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(bf16), 16);
  return _mm256_cvtps_ph(_mm256_castsi256_ps(bits), _MM_FROUND_TO_NEAREST_INT);
}

/* To the nearest, of two equally near ones to the even one; what is no number stays none. */
WITH_F16C static inline Words bf16_of(Words f16) {
  const __m256 values = _mm256_cvtph_ps(f16);
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd);
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  const __m256i none = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  const __m256i found = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fff), none);
  return _mm_packus_epi32(_mm256_castsi256_si128(found), _mm256_extracti128_si256(found, 1));
}

#define PUT_AS(CONVERT, upper, lower, out)                                    \
  do {                                                                        \
    put_words(CONVERT(at(upper)), CONVERT(at(lower)), out);                   \
    put_words(CONVERT(at((upper) + 8)), CONVERT(at((lower) + 8)), (out) + 16); \
  } while (0)
#define PUT_F16(upper, lower, out) PUT_AS(f16_of, upper, lower, out)
#define PUT_BF16(upper, lower, out) PUT_AS(bf16_of, upper, lower, out)
#define PUT_WORDS(upper, lower, out) PUT_AS(, upper, lower, out)

WITH_F16C static void to_f16(const uint64_t* rows, size_t groups, size_t blocks, uint16_t* out) {
  FOR_ALL(PUT_F16)
}

WITH_F16C static void to_bf16(const uint64_t* rows, size_t groups, size_t blocks, uint16_t* out) {
  FOR_ALL(PUT_BF16)
}

static int converts(void) {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
}
#else
#define PUT_WORDS(upper, lower, out) put(upper, lower, out)
#endif

/* ``rows`` has the addresses of sixteen rows for each group, ``blocks`` times sixteen words long.
   Returns 0 where the processor does not convert words as asked for. */
__attribute__((visibility("default"))) int mc_fragments(
    const uint64_t* rows, size_t groups, size_t blocks, int how, uint16_t* out) {
  if (how == AS_THEY_ARE) {
    FOR_ALL(PUT_WORDS)
    return 1;
  }
#if defined(__x86_64__)
  if (converts()) {
    (how == TO_F16 ? to_f16 : to_bf16)(rows, groups, blocks, out);
    return 1;
  }
#endif
  return 0;
}
