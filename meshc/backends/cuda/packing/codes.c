/* Rows of codes, a byte each, as the lanes of a warp load them (library/mc_codes.cuh), and of what there is once for
   a group of them. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8, SIDE = 16, QUARTERS = 4, WARP = 32, MOST_SPAN = 256 };
/* in the place of bits of whole numbers */
enum { E4M3_AS_F16 = 0, E4M3_AS_BF16 = 1, E2M1_AS_F16 = 9, E2M1_AS_BF16 = 10 };
enum { F32 = 0, F16 = 1, BF16 = 2, U8 = 3 };
enum { REFUSED = 0, DONE = 1, NOT_HERE = 2 };

/* The addresses of sixteen rows for each group, ``blocks`` times ``span`` codes long. A block takes ``bytes``;
   two to the power ``together`` words of a lane lie side by side. */
typedef struct {
  const uint64_t* rows;
  size_t groups, blocks, span, bytes;
  int together, bits;
} Codes;

/* The addresses of sixteen rows of floats for each group, of which each of the ``blocks`` has ``each``. They become
   elements of a ``kind``, at byte ``at`` of blocks of so many ``bytes``. */
typedef struct {
  const uint64_t* rows;
  size_t groups, blocks, each, bytes, at;
  int kind;
} Numbers;

static inline uint32_t load(const uint8_t* from) {
  uint32_t four;
  memcpy(&four, from, sizeof four);
  return four;
}

/* Two bytes, as the bytes 0 and 2 of a word. */
static inline uint32_t two_of(const uint8_t* from) {
  uint16_t two;
  memcpy(&two, from, sizeof two);
  return (two & 0xffu) | (uint32_t)(two & 0xff00) << 8;
}

/* Of each four columns of two rows BITS bits from bit ``AT`` on, side by side. */
#define PAIRS(BITS, AT, n) \
  ((load(a + 4 * (n)) >> (AT) & OF_BYTES(BITS)) | (load(b + 4 * (n)) >> (AT) & OF_BYTES(BITS)) << (BITS))
#define OF_BYTES(BITS) (((1u << (BITS)) - 1) * 0x01010101u)

/* What lanes have of ``fragments``, ``size`` bytes each, so many of them side by side: of lane 4 g + q those at q,
   q + 4, .. */
static inline void put_units(const void* units, size_t size, size_t fragments, size_t together, size_t lane,
                             uint8_t* out) {
  for (size_t first = 0; first < fragments; first += together) {
    uint8_t* const to = out + size * (first * WARP + lane * together);
    for (size_t q = 0; q < QUARTERS; ++q)
      for (size_t n = 0; n < together; ++n)
        memcpy(to + size * (q * together + n), (const uint8_t*)units + size * (QUARTERS * (first + n) + q), size);
  }
}

/* Floats of ``bits`` bits at the place of floats of 16 bits whose fraction has ``at`` bits more. */
static inline uint32_t placed(uint32_t two, int bits, int at) {
  const uint32_t sign = 0x00010001u << (bits - 1);
  return (two & sign) << (16 - bits) | (two & (sign - 0x00010001u)) << at;
}

/* Four pairs of floats of four bits, the first pair in its place, and the others where shifts of the word have them. */
static inline uint32_t mixed(uint32_t codes, int as_bf16) {
  const int at = as_bf16 ? 6 : 9;
  const uint32_t zero = placed(codes, 4, at), one = placed(codes >> 4, 4, at);
  uint32_t two = placed(codes >> 8, 4, at), three = placed(codes >> 12, 4, at), found;
  if (!as_bf16) {
    found = zero | one >> 3;
    two ^= (found << 1 ^ found << 6) & 0x8e008e00;
    three ^= (found << 2 ^ found << 9) & 0x8e008e00;
    return found | (two & 0x80008000) >> 1 | (three & 0x80008000) >> 2 | (two & 0x0e000e00) >> 6 |
           (three & 0x0e000e00) >> 9;
  }
  found = zero | one >> 6;
  const uint32_t left = three ^ found << 2 ^ found << 5;
  found |= (left >> 2 & 0x00300030) | (left >> 5 & 0x00080008);
  two ^= found << 4 ^ found >> 6;
  found |= (two << 6 & 0x70007000) | (two >> 4 & 0x08000800);
  return found | ((three ^ found << 2) >> 5 & 0x04000400);
}

/* Codes of four bits, floats of as many, and the lowest four bits of more. */
static inline void put_fours(const uint8_t* a, const uint8_t* b, size_t fragments, int together, int bits, size_t lane,
                             uint8_t* out) {
  uint32_t units[MOST_SPAN / QUARTERS];
  for (size_t n = 0; n < QUARTERS * fragments; ++n) {
    const uint32_t pairs = PAIRS(4, 0, n);
    const uint32_t codes = (pairs & 0xff0000ffu) | (pairs & 0xff00u) << 8 | (pairs >> 8 & 0xff00u);
    units[n] = bits >= E2M1_AS_F16 ? mixed(codes, bits == E2M1_AS_BF16) : codes;
  }
  if (together == 0) put_units(units, sizeof *units, fragments, 1, lane, out);
  if (together == 1) put_units(units, sizeof *units, fragments, 2, lane, out);
  if (together == 2) put_units(units, sizeof *units, fragments, 4, lane, out);
}

/* Codes of eight bits. */
static inline void put_eights(const uint8_t* a, const uint8_t* b, size_t fragments, int together, size_t lane,
                              uint8_t* out) {
  uint16_t halves[MOST_SPAN];
  for (size_t n = 0; n < SIDE * fragments; ++n) halves[n] = (uint16_t)(b[n] << 8 | a[n]);
  if (together == 1) put_units(halves, QUARTERS * sizeof *halves, fragments, 1, lane, out);
  if (together == 2) put_units(halves, QUARTERS * sizeof *halves, fragments, 2, lane, out);
}

/* The second floats in their place, and in the bits left what makes of two shifts of the word the first ones. */
static inline uint32_t joined(uint32_t first, uint32_t second, int as_bf16) {
  if (!as_bf16) {
    const uint32_t left = first ^ ((second << 8 ^ second << 1) & 0xbf80bf80);
    return second | (left >> 8 & 0x003f003f) | (left >> 1 & 0x40404040);
  }
  const uint32_t left = first ^ ((second << 4 ^ second >> 4) & 0x87f087f0);
  uint32_t twice = left >> 4 & 0x08080808; /* what both shifts bring somewhere */
  twice ^= twice >> 8;
  twice ^= twice >> 16;
  return second | twice | (left << 4 & 0x70007000) | (left >> 4 & 0x00070007);
}

/* Floats of eight bits. Returns bits where some are no number. */
static inline uint16_t put_floats(const uint8_t* a, const uint8_t* b, size_t fragments, int together, int as_bf16,
                                  size_t lane, uint8_t* out) {
  uint32_t words[MOST_SPAN / 2], wrong = 0;
  for (size_t n = 0; n < SIDE / 2 * fragments; ++n) {
    const uint32_t first = two_of(a + 2 * n), second = two_of(b + 2 * n);
    const int at = as_bf16 ? 4 : 7;
    words[n] = joined(placed(first, 8, at), placed(second, 8, at), as_bf16);
    wrong |= ((first & 0x007f007f) + 0x00010001) | ((second & 0x007f007f) + 0x00010001);
  }
  if (together == 1) put_units(words, 2 * sizeof *words, fragments, 1, lane, out);
  if (together == 2) put_units(words, 2 * sizeof *words, fragments, 2, lane, out);
  return (uint16_t)((wrong >> 16 | wrong) & 0x80);
}

/* All of a block of two rows: the lanes from ``lane`` on. Returns bits where some floats are no number. */
static inline uint16_t put(const Codes* of, const uint8_t* a, const uint8_t* b, size_t lane, uint8_t* out) {
  const size_t fragments = of->span / SIDE;
  if (of->bits <= E4M3_AS_BF16) return put_floats(a, b, fragments, of->together, of->bits, lane, out);
  if (of->bits == 8) return put_eights(a, b, fragments, of->together, lane, out), 0;
  const int floats = of->bits >= E2M1_AS_F16, four = floats ? 4 : of->bits & 4, two = floats ? 0 : of->bits & 2;
  if (four) {
    put_fours(a, b, fragments, of->together, of->bits, lane, out);
    out += 4 * WARP * fragments;
  }
  if (two) {
    uint16_t units[MOST_SPAN / QUARTERS];
    for (size_t n = 0; n < QUARTERS * fragments; ++n) {
      const uint32_t pairs = PAIRS(2, four, n);
      units[n] = (uint16_t)(pairs | pairs >> 12);
    }
    for (size_t n = 0; n < fragments; ++n) memcpy(out + 2 * (WARP * n + lane), units + QUARTERS * n, 8);
    out += 2 * WARP * fragments;
  }
  if (!floats && of->bits & 1) {
    uint8_t units[MOST_SPAN / QUARTERS];
    for (size_t n = 0; n < QUARTERS * fragments; ++n) {
      const uint32_t pairs = PAIRS(1, four + two, n), both = pairs | pairs >> 14;
      units[n] = (uint8_t)(both | both >> 4);
    }
    for (size_t n = 0; n < fragments; ++n) memcpy(out + WARP * n + lane, units + QUARTERS * n, 4);
  }
  return 0;
}

/* Whether all codes of sixteen rows are below 2^bits. */
static inline int are_codes(const uint64_t* rows, size_t count, int bits) {
  uint8_t found = 0;
  for (size_t row = 0; row < SIDE; ++row) {
    const uint8_t* codes = (const uint8_t*)(uintptr_t)rows[row];
    for (size_t n = 0; n < count; ++n) found |= codes[n];
  }
  return !(found >> bits);
}

#define ALL_OF(BITS)                                                                           \
  case BITS: {                                                                                 \
    Codes own = *of;                                                                           \
    own.bits = BITS;                                                                           \
    for (size_t group = 0; group < of->groups; ++group) {                                      \
      const uint64_t* rows = of->rows + SIDE * group;                                          \
      uint16_t wrong = BITS > E4M3_AS_BF16 && BITS != 8 &&                                     \
                       !are_codes(rows, of->blocks * of->span, BITS < 8 ? BITS : 4);                           \
      for (size_t block = 0; block < of->blocks; ++block, out += of->bytes)                    \
        for (size_t lane = 0; lane < LANES; ++lane) {                                          \
          const uint8_t* upper = (const uint8_t*)(uintptr_t)rows[lane] + block * of->span;     \
          const uint8_t* lower = (const uint8_t*)(uintptr_t)rows[lane + LANES] + block * of->span; \
          wrong |= put(&own, upper, lower, QUARTERS * lane, out);                              \
        }                                                                                      \
      if (wrong) return REFUSED;                                                               \
    }                                                                                          \
    return DONE;                                                                               \
  }

#define CODES_OF(NAME, WITH)                          \
  WITH static int NAME(const Codes* of, uint8_t* out) { \
    switch (of->bits) {                               \
      ALL_OF(E4M3_AS_F16)                             \
      ALL_OF(E4M3_AS_BF16)                            \
      ALL_OF(2)                                       \
      ALL_OF(3)                                       \
      ALL_OF(4)                                       \
      ALL_OF(5)                                       \
      ALL_OF(6)                                       \
      ALL_OF(8)                                       \
      ALL_OF(E2M1_AS_F16)                             \
      ALL_OF(E2M1_AS_BF16)                            \
    }                                                 \
    return NOT_HERE;                                  \
  }

/* Sixteen floats as elements of a kind that is not F16. Returns bits where these are other numbers. */
static inline uint32_t put_numbers(const float* from, int kind, uint8_t* to) {
  uint32_t wrong = 0, bits;
  if (kind == F32) memcpy(to, from, SIDE * sizeof *from);
  if (kind == BF16)
    for (size_t n = 0; n < SIDE; ++n) {
      memcpy(&bits, from + n, sizeof bits);
      const uint16_t half = (uint16_t)(bits >> 16);
      memcpy(to + 2 * n, &half, sizeof half);
      wrong |= bits & 0xffff;
    }
  if (kind == U8)
    for (size_t n = 0; n < SIDE; ++n) {
      const int code = from[n] >= 0 && from[n] < 256 ? (int)from[n] : 0;
      to[n] = (uint8_t)code;
      wrong |= (float)code != from[n];
    }
  return wrong;
}

/* All numbers, those of F16 by ``HALVES``. */
#define NUMBERS_OF(NAME, WITH, HALVES)                                                                      \
  WITH static int NAME(const Numbers* of, uint8_t* out) {                                                   \
    const size_t size = SIDE * (of->kind == F32 ? 4 : of->kind == U8 ? 1 : 2);                              \
    uint32_t wrong = 0;                                                                                     \
    for (size_t group = 0; group < of->groups; ++group)                                                     \
      for (size_t block = 0; block < of->blocks; ++block, out += of->bytes)                                 \
        for (size_t n = 0; n < of->each; ++n) {                                                             \
          const uint64_t* rows = of->rows + SIDE * group;                                                   \
          float column[SIDE];                                                                               \
          for (size_t row = 0; row < SIDE; ++row)                                                           \
            column[row] = ((const float*)(uintptr_t)rows[row])[block * of->each + n];                       \
          uint8_t* const to = out + of->at + n * size;                                                      \
          if (of->kind == F16)                                                                              \
            HALVES(column, to);                                                                             \
          else                                                                                              \
            wrong |= put_numbers(column, of->kind, to);                                                     \
        }                                                                                                   \
    return wrong ? REFUSED : DONE;                                                                          \
  }

/* Nobody asks for halves where no instruction makes them. */
static void no_halves_of(const float* from, uint8_t* to) { (void)from, (void)to; }

CODES_OF(codes_anywhere, )
NUMBERS_OF(numbers_anywhere, , no_halves_of)

#if defined(__x86_64__)
#include <immintrin.h>

#define WITH_AVX2 __attribute__((target("avx2,f16c")))

/* Sixteen floats in sixteen bits, rounded to the nearest. */
WITH_AVX2 static void halves_of(const float* from, uint8_t* to) {
  for (size_t n = 0; n < SIDE; n += 8)
    _mm_storeu_si128((__m128i*)(to + 2 * n), _mm256_cvtps_ph(_mm256_loadu_ps(from + n), 0));
}

CODES_OF(codes_with_avx2, WITH_AVX2)
NUMBERS_OF(numbers_with_avx2, WITH_AVX2, halves_of)

static int has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }
#else
#define codes_with_avx2 codes_anywhere
#define numbers_with_avx2 numbers_anywhere
static int has_avx2(void) { return 0; }
#endif

/* Writes the planes of each block to its first bytes. REFUSED where some codes are none. */
__attribute__((visibility("default"))) int mc_codes(const Codes* of, uint8_t* out) {
  return has_avx2() ? codes_with_avx2(of, out) : codes_anywhere(of, out);
}

/* Writes what there is once for a group of codes, that of each row side by side. REFUSED where some are no codes,
   which they should be. */
__attribute__((visibility("default"))) int mc_numbers(const Numbers* of, uint8_t* out) {
  if (of->kind == F16 && !has_avx2()) return NOT_HERE;
  return has_avx2() ? numbers_with_avx2(of, out) : numbers_anywhere(of, out);
}
