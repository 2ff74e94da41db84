/* Rows of what 16-bit words are made of, in the order of tensor cores (library/mc_fragments.cuh). */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8, SIDE = 16 }; /* lanes above each other in a block; words of a row in it */
enum { AHEAD = 16 * SIDE };    /* elements of a row that are asked for before it is their turn */
/* What becomes of words: nothing, or those of the other type; of floats of 32 bits; of codes in e4m3. */
enum { AS_THEY_ARE, TO_F16, TO_BF16, F32_TO_F16, F32_TO_BF16, E4M3_TO_F16, E4M3_TO_BF16 };

/* The addresses of sixteen rows for each group, ``blocks`` times sixteen elements long, and of codes those
   of each row's scales, of which ``of_scale`` blocks have one in common. */
typedef struct {
  const uint64_t *rows, *scales;
  size_t of_scale, groups, blocks;
} Matrix;

/* For each row of TYPE and the one eight rows below, what is done with what stands of both in a block. */
#define FOR_ALL(TYPE, ...)                                                                 \
  for (size_t first = 0; first < SIDE * of.groups; first += SIDE)                          \
    for (size_t block = 0; block < of.blocks; ++block)                                     \
      for (size_t row = first; row < first + LANES; ++row, out += 2 * SIDE) {              \
        const TYPE* upper = (const TYPE*)(uintptr_t)of.rows[row] + block * SIDE;           \
        const TYPE* lower = (const TYPE*)(uintptr_t)of.rows[row + LANES] + block * SIDE;   \
        __builtin_prefetch(upper + AHEAD);                                                 \
        __builtin_prefetch(lower + AHEAD);                                                 \
        __VA_ARGS__                                                                        \
      }

#if defined(__x86_64__)
#include <immintrin.h>

#define WITH_F16C __attribute__((target("avx2,f16c")))
typedef __m128i Words; /* eight of them */

static inline Words at(const uint16_t* words) { return _mm_loadu_si128((const Words*)words); }

/* Two words of the one row and two of the other, in turn. */
static inline void put_words(Words upper, Words lower, uint16_t* out) {
  _mm_storeu_si128((Words*)out, _mm_unpacklo_epi32(upper, lower));
  _mm_storeu_si128((Words*)(out + 8), _mm_unpackhi_epi32(upper, lower));
}

WITH_F16C static inline void put_f16(__m256 upper, __m256 lower, uint16_t* out) {
  put_words(_mm256_cvtps_ph(upper, _MM_FROUND_TO_NEAREST_INT),
            _mm256_cvtps_ph(lower, _MM_FROUND_TO_NEAREST_INT), out);
}

/* To the nearest, of two equally near ones to the even one, each in 32 bits. */
WITH_F16C static inline __m256i rounded_to_bf16(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd);
  return _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
}

/* What is no number stays none. */
WITH_F16C static inline __m256i or_none(__m256 values, __m256i rounded) {
  const __m256i none = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fff), none);
}

WITH_F16C static inline void put_bf16(__m256 upper, __m256 lower, uint16_t* out) {
  __m256i above = rounded_to_bf16(upper), below = rounded_to_bf16(lower);
  if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(upper, lower, _CMP_UNORD_Q)), 0)) {
    above = or_none(upper, above);
    below = or_none(lower, below);
  }
  const __m256i in_turn = _mm256_shuffle_epi32(_mm256_packus_epi32(above, below), 0xd8);
  _mm256_storeu_si256((__m256i*)out, in_turn);
}

WITH_F16C static inline __m256 of_bf16(const uint16_t* words) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(at(words)), 16));
}

WITH_F16C static inline __m256 of_f16(const uint16_t* words) { return _mm256_cvtph_ps(at(words)); }

WITH_F16C static inline __m256 of_f32(const float* values) { return _mm256_loadu_ps(values); }

/* But for where its exponent begins, 2^8 times lower, a code is a f16 of fewer bits. */
WITH_F16C static inline __m256 of_e4m3(const uint8_t* codes, __m256 scale) {
  const Words wide = _mm_cvtepu8_epi16(_mm_loadl_epi64((const Words*)codes));
  const Words sign = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x80)), 8);
  const Words size = _mm_and_si128(wide, _mm_set1_epi16(0x7f));
  const Words none = _mm_cmpeq_epi16(size, _mm_set1_epi16(0x7f));
  const Words half = _mm_or_si128(sign, _mm_slli_epi16(size, 7));
  const __m256 values = _mm256_cvtph_ps(_mm_blendv_epi8(half, _mm_set1_epi16(0x7e00), none));
  return _mm256_mul_ps(_mm256_mul_ps(values, _mm256_set1_ps(256)), scale);
}

static inline float scale_of(Matrix of, size_t row, size_t block) {
  return ((const float*)(uintptr_t)of.scales[row])[block / of.of_scale];
}

#define BOTH(PUT, OF)            \
  PUT(OF(upper), OF(lower), out); \
  PUT(OF(upper + 8), OF(lower + 8), out + SIDE);
#define BOTH_SCALED(PUT)                                                \
  const __m256 scale = _mm256_set1_ps(scale_of(of, row, block));        \
  const __m256 below = _mm256_set1_ps(scale_of(of, row + LANES, block)); \
  PUT(of_e4m3(upper, scale), of_e4m3(lower, below), out);               \
  PUT(of_e4m3(upper + 8, scale), of_e4m3(lower + 8, below), out + SIDE);
#define PUT_AS_THEY_ARE BOTH(put_words, at)
#define CONVERSION WITH_F16C static void

CONVERSION to_f16(Matrix of, uint16_t* out) { FOR_ALL(uint16_t, BOTH(put_f16, of_bf16)) }
CONVERSION to_bf16(Matrix of, uint16_t* out) { FOR_ALL(uint16_t, BOTH(put_bf16, of_f16)) }
CONVERSION f32_to_f16(Matrix of, uint16_t* out) { FOR_ALL(float, BOTH(put_f16, of_f32)) }
CONVERSION f32_to_bf16(Matrix of, uint16_t* out) { FOR_ALL(float, BOTH(put_bf16, of_f32)) }
CONVERSION e4m3_to_f16(Matrix of, uint16_t* out) { FOR_ALL(uint8_t, BOTH_SCALED(put_f16)) }
CONVERSION e4m3_to_bf16(Matrix of, uint16_t* out) { FOR_ALL(uint8_t, BOTH_SCALED(put_bf16)) }

static void (*const CONVERSIONS[])(Matrix, uint16_t*) = {
    [TO_F16] = to_f16,           [TO_BF16] = to_bf16,           [F32_TO_F16] = f32_to_f16,
    [F32_TO_BF16] = f32_to_bf16, [E4M3_TO_F16] = e4m3_to_f16, [E4M3_TO_BF16] = e4m3_to_bf16};

static int converts(void) {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
}
#else
#define PUT_AS_THEY_ARE                             \
  for (size_t pair = 0; pair < SIDE; pair += 2) {   \
    memcpy(out + 2 * pair, upper + pair, sizeof(uint32_t));     \
    memcpy(out + 2 * pair + 2, lower + pair, sizeof(uint32_t)); \
  }
#endif

/* Returns 0 where the processor does not convert elements as asked for. */
__attribute__((visibility("default"))) int mc_fragments(const Matrix* matrix, int how, uint16_t* out) {
  const Matrix of = *matrix;
  if (how == AS_THEY_ARE) {
    FOR_ALL(uint16_t, PUT_AS_THEY_ARE)
    return 1;
  }
#if defined(__x86_64__)
  if (converts()) {
    CONVERSIONS[how](of, out);
    return 1;
  }
#endif
  return 0;
}
