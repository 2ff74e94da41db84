// mc_products.h: products of warpgroups, for the executor.
//
// They happen when they are issued, or, where copies are late, not before somebody waits for them. In between the
// sums are NaNs. Registers that something writes behind the fence, or before the products have ended, are told by other
// values than they had. What columns they read is looked at when they are issued and when they have ended (mc_races.h).
#pragma once

#include "mc_barriers.h"

namespace mc {

// Where ``p`` lies in the block's shared memory.
inline u32 shared_address(const void* p) { return (u32)((const unsigned char*)p - arena()); }

void issue_product(float* sums, u32 count, const u32 (&left)[4], u64 columns, float (*widen)(u16), Site site);
void commit_products(Site site = Site::current());
void fence_products(const float* sums, u32 count);
void await_products(const float* sums, Site site);

// A thread ends, or the last one of a block.
void end_products(const Warp& w);
void end_products(const Block& block);

template <int N>
inline void fence_products(float (&c)[N]) {
    fence_products(c, N);
}

template <int N>
inline void wait_for_products(float (&c)[N], Site site = Site::current()) {
    await_products(c, site);
}

template <int N, class T>
inline void multiply_64x16(float (&c)[N], const u32 (&a)[4], u64 columns, T, Site site = Site::current()) {
    static_assert(N == 32 || N == 64 || N == 128);
    issue_product(c, N, a, columns, [](u16 bits) { return widen(T{bits}); }, site);
}

}  // namespace mc
