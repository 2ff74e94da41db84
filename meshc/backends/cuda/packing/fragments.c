/* Rows of 16-bit words in the order of tensor cores (library/mc_fragments.cuh). */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8, PAIRS = 8 }; /* lanes above each other in a block; pairs of words of a row in it */

/* The pairs of words of a row that stand in a block, each word the one that ``table`` has for it. */
static void looked_up(uint32_t* pairs, const uint16_t* table) {
  for (size_t pair = 0; pair < PAIRS; ++pair)
    pairs[pair] = table[pairs[pair] & 0xffff] | (uint32_t)table[pairs[pair] >> 16] << 16;
}

/* ``rows`` has the addresses of sixteen rows for each group, ``blocks`` times sixteen words long.
   ``table`` may be missing. */
__attribute__((visibility("default"))) void mc_fragments(
    const uint64_t* rows, size_t groups, size_t blocks, const uint16_t* table, unsigned char* out) {
  for (size_t group = 0; group < groups; ++group, rows += 2 * LANES)
    for (size_t block = 0; block < blocks; ++block)
      for (size_t lane = 0; lane < LANES; ++lane) {
        uint32_t upper[PAIRS], lower[PAIRS], both[2 * PAIRS];
        memcpy(upper, (const char*)(uintptr_t)rows[lane] + block * sizeof upper, sizeof upper);
        memcpy(lower, (const char*)(uintptr_t)rows[lane + LANES] + block * sizeof lower, sizeof lower);
        if (table) {
          looked_up(upper, table);
          looked_up(lower, table);
        }
        for (size_t pair = 0; pair < PAIRS; ++pair) {
          both[2 * pair] = upper[pair];
          both[2 * pair + 1] = lower[pair];
        }
        memcpy(out, both, sizeof both);
        out += sizeof both;
      }
}
