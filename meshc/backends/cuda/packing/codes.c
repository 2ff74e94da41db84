/* Rows of codes, a byte each, as the lanes of a warp load them (library/mc_codes.cuh). */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8, SIDE = 16, QUARTERS = 4, WARP = 32 };
enum { E4M3 = 0 }; /* in the place of bits of whole numbers */

/* The addresses of sixteen rows for each group, ``blocks`` times ``span`` codes long. A block takes ``bytes``;
   two to the power ``together`` words of a lane lie side by side. */
typedef struct {
  const uint64_t* rows;
  size_t groups, blocks, span, bytes;
  int together, bits;
} Codes;

/* Where word ``number`` of lane ``lane`` lies in a plane. */
static inline size_t word_of(const Codes* of, size_t number, size_t lane) {
  const size_t whole = number >> of->together << of->together;
  return 4 * (whole * WARP + (lane << of->together) + number - whole);
}

/* What both rows have in a column, side by side. */
#define IN_PAIRS(TYPE, ...)                                  \
  TYPE pairs[SIDE];                                          \
  for (size_t column = 0; column < SIDE; ++column) {         \
    const uint8_t a = upper[column], b = lower[column];      \
    pairs[column] = (TYPE)(__VA_ARGS__);                     \
  }

/* The two words that a lane has of sixteen columns. */
static inline void put_words(
    const Codes* of, const uint16_t* pairs, size_t fragment, size_t lane, uint8_t* out) {
  for (size_t q = 0; q < QUARTERS; ++q)
    memcpy(out + word_of(of, 2 * fragment, lane + q), pairs + QUARTERS * q, 8);
}

/* All of 16 columns of two rows: the lanes from ``lane`` on. */
static inline void put(const Codes* of, const uint8_t* upper, const uint8_t* lower, size_t fragment,
                       size_t lane, uint8_t* out) {
  const size_t fragments = of->span / SIDE;
  if (of->bits == E4M3) {
    IN_PAIRS(uint16_t, (b & 0x80) << 8 | (a & 0x80) << 7 | (b & 0x7f) << 7 | (a & 0x7f))
    put_words(of, pairs, fragment, lane, out);
    return;
  }
  if (of->bits == 8) {
    IN_PAIRS(uint16_t, b << 8 | a)
    put_words(of, pairs, fragment, lane, out);
    return;
  }
  int at = 0;
  if (of->bits >= 4) {
    IN_PAIRS(uint8_t, (b & 15) << 4 | (a & 15))
    for (size_t q = 0; q < QUARTERS; ++q) {
      const uint8_t* own = pairs + QUARTERS * q;
      const uint8_t word[] = {own[0], own[2], own[1], own[3]};
      memcpy(out + word_of(of, fragment, lane + q), word, sizeof word);
    }
    out += 4 * WARP * fragments;
    at = 4;
  }
  if (of->bits & 2) {
    IN_PAIRS(uint8_t, (b >> at & 3) << 2 | (a >> at & 3))
    for (size_t q = 0; q < QUARTERS; ++q) {
      const uint8_t* own = pairs + QUARTERS * q;
      const uint8_t both[] = {(uint8_t)(own[0] | own[2] << 4), (uint8_t)(own[1] | own[3] << 4)};
      memcpy(out + 2 * (WARP * fragment + lane + q), both, sizeof both);
    }
    out += 2 * WARP * fragments;
    at += 2;
  }
  if (of->bits & 1) {
    IN_PAIRS(uint8_t, (b >> at & 1) << 1 | (a >> at & 1))
    for (size_t q = 0; q < QUARTERS; ++q) {
      const uint8_t* own = pairs + QUARTERS * q;
      out[WARP * fragment + lane + q] =
          (uint8_t)(own[0] | own[2] << 2 | own[1] << 4 | own[3] << 6);
    }
  }
}

/* Whether all codes of sixteen rows are some: below 2^bits, or numbers. */
static inline int are_codes(const uint64_t* rows, size_t count, int bits) {
  uint8_t found = 0;
  for (size_t row = 0; row < SIDE; ++row) {
    const uint8_t* codes = (const uint8_t*)(uintptr_t)rows[row];
    for (size_t n = 0; n < count; ++n)
      found |= (uint8_t)(bits == E4M3 ? (codes[n] & 0x7f) == 0x7f : codes[n] >> bits);
  }
  return !found;
}

#define ALL_OF(BITS)                                                                          \
  case BITS: {                                                                                \
    Codes own = *of;                                                                          \
    own.bits = BITS;                                                                          \
    for (size_t group = 0; group < of->groups; ++group) {                                     \
      if (!are_codes(of->rows + SIDE * group, of->blocks * of->span, BITS)) return 0;         \
      for (size_t block = 0; block < of->blocks; ++block, out += of->bytes)                   \
        for (size_t lane = 0; lane < LANES; ++lane) {                                         \
          const uint64_t* rows = of->rows + SIDE * group + lane;                              \
          const uint8_t* upper = (const uint8_t*)(uintptr_t)rows[0] + block * of->span;       \
          const uint8_t* lower = (const uint8_t*)(uintptr_t)rows[LANES] + block * of->span;   \
          for (size_t fragment = 0; fragment < of->span / SIDE; ++fragment)                   \
            put(&own, upper + SIDE * fragment, lower + SIDE * fragment, fragment,             \
                QUARTERS * lane, out);                                                        \
        }                                                                                     \
    }                                                                                         \
    return 1;                                                                                 \
  }

/* Writes the planes of each block to its first bytes. Returns 0 where some codes are none. */
__attribute__((visibility("default"))) int mc_codes(const Codes* of, uint8_t* out) {
  switch (of->bits) {
    ALL_OF(E4M3)
    ALL_OF(2)
    ALL_OF(3)
    ALL_OF(4)
    ALL_OF(5)
    ALL_OF(6)
    ALL_OF(8)
  }
  return 0;
}
