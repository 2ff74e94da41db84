/* Rows of 16-bit words in the order of tensor cores (library/mc_fragments.cuh). */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8, SIDE = 16 }; /* lanes above each other in a block; words of a row in it */
/* What becomes of words: nothing, or those of the other type; and of floats of 32 bits. */
enum { AS_THEY_ARE, TO_F16, TO_BF16, F32_TO_F16, F32_TO_BF16 };

/* Calls PUT(upper, lower, out) for what stands of each row of TYPE and the one eight rows below in a block. */
#define FOR_ALL(TYPE, PUT)                                                                         \
  for (size_t group = 0; group < groups; ++group, rows += 2 * LANES)                               \
    for (size_t block = 0; block < blocks; ++block)                                                \
      for (size_t lane = 0; lane < LANES; ++lane, out += 2 * SIDE)                                 \
        PUT((const TYPE*)(uintptr_t)rows[lane] + block * SIDE,                                     \
            (const TYPE*)(uintptr_t)rows[lane + LANES] + block * SIDE, out);

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

WITH_F16C static inline Words rounded_to_f16(__m256 values) {
  return _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
}

/* To the nearest, of two equally near ones to the even one; what is no number stays none. */
WITH_F16C static inline Words rounded_to_bf16(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd);
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  const __m256i none = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  const __m256i found = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fff), none);
  return _mm_packus_epi32(_mm256_castsi256_si128(found), _mm256_extracti128_si256(found, 1));
}

WITH_F16C static inline Words f16_of(const uint16_t* bf16) {
  const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(at(bf16)), 16);
  return rounded_to_f16(_mm256_castsi256_ps(bits));
}

WITH_F16C static inline Words bf16_of(const uint16_t* f16) {
  return rounded_to_bf16(_mm256_cvtph_ps(at(f16)));
}

WITH_F16C static inline Words f16_of_f32(const float* values) {
  return rounded_to_f16(_mm256_loadu_ps(values));
}

WITH_F16C static inline Words bf16_of_f32(const float* values) {
  return rounded_to_bf16(_mm256_loadu_ps(values));
}

#define PUT_AS(CONVERT, upper, lower, out)                                    \
  do {                                                                        \
    put_words(CONVERT(upper), CONVERT(lower), out);                           \
    put_words(CONVERT((upper) + 8), CONVERT((lower) + 8), (out) + 16);        \
  } while (0)
#define PUT_F16(upper, lower, out) PUT_AS(f16_of, upper, lower, out)
#define PUT_BF16(upper, lower, out) PUT_AS(bf16_of, upper, lower, out)
#define PUT_F16_OF_F32(upper, lower, out) PUT_AS(f16_of_f32, upper, lower, out)
#define PUT_BF16_OF_F32(upper, lower, out) PUT_AS(bf16_of_f32, upper, lower, out)
#define PUT_WORDS(upper, lower, out) PUT_AS(at, upper, lower, out)

WITH_F16C static void to_f16(const uint64_t* rows, size_t groups, size_t blocks, uint16_t* out) {
  FOR_ALL(uint16_t, PUT_F16)
}

WITH_F16C static void to_bf16(const uint64_t* rows, size_t groups, size_t blocks, uint16_t* out) {
  FOR_ALL(uint16_t, PUT_BF16)
}

WITH_F16C static void f32_to_f16(const uint64_t* rows, size_t groups, size_t blocks, uint16_t* out) {
  FOR_ALL(float, PUT_F16_OF_F32)
}

WITH_F16C static void f32_to_bf16(const uint64_t* rows, size_t groups, size_t blocks, uint16_t* out) {
  FOR_ALL(float, PUT_BF16_OF_F32)
}

static void (*const CONVERSIONS[])(const uint64_t*, size_t, size_t, uint16_t*) = {
    [TO_F16] = to_f16, [TO_BF16] = to_bf16, [F32_TO_F16] = f32_to_f16, [F32_TO_BF16] = f32_to_bf16};

static int converts(void) {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
}
#else
#define PUT_WORDS(upper, lower, out) put(upper, lower, out)
#endif

/* ``rows`` has the addresses of sixteen rows for each group, ``blocks`` times sixteen words, or floats,
   long. Returns 0 where the processor does not convert words as asked for. */
__attribute__((visibility("default"))) int mc_fragments(
    const uint64_t* rows, size_t groups, size_t blocks, int how, uint16_t* out) {
  if (how == AS_THEY_ARE) {
    FOR_ALL(uint16_t, PUT_WORDS)
    return 1;
  }
#if defined(__x86_64__)
  if (converts()) {
    CONVERSIONS[how](rows, groups, blocks, out);
    return 1;
  }
#endif
  return 0;
}
