// mc_products.cc: products of warpgroups that happen early or late.
#include "mc_products.h"

#include <cmath>
#include <cstring>

#include "mc_races.h"

namespace mc {

constexpr u32 ROW_BYTES = 32, NO_GROUP = ~0u, GROUP_WARPS = 4;
static float (*widen_right)(u16);

static Warp& mine() { return here().warps[warp()]; }

// A row of 16 values of the columns that ``product`` reads.
static const unsigned char* row_of(const Product& product, u32 column) {
    return product.columns + column / 8 * product.eight_bytes + column % 8 * ROW_BYTES;
}

// By its descriptor (PTX ISA, matrix descriptor of wgmma): columns one behind the other in rows of 32 bytes.
static Product described(u64 columns) {
    if (columns >> 62 != 3) fail("columns whose halves are not exchanged in rows of 32 bytes");
    if (columns >> 49 & 7) fail("columns with a base offset");
    const u32 at = (u32)(columns & 0x3fff) << 4;
    if (at % 256) fail("columns at an address that is no multiple of 256");
    return {{}, {}, arena() + at, (u32)(columns >> 32 & 0x3fff) << 4, NO_GROUP, false};
}

static void multiply(Warp& w, Product& product) {
    static float right[16][256];
    const u32 columns = 2 * w.count;
    for (u32 n = 0; n < columns; n++) {
        const unsigned char* row = row_of(product, n);
        for (u32 k = 0; k < 16; k++) {
            // Tensor cores find eight values in the other half where the address says so.
            const u32 half = k / 8 ^ ((u32)(row - arena()) >> 7 & 1);
            u16 bits;
            memcpy(&bits, row + half * 16 + k % 8 * 2, sizeof bits);
            right[k][n] = widen_right(bits);
        }
    }
    for (u32 r = 0; r < 16; r++) {
        float sums[256];
        for (u32 n = 0; n < columns; n++) sums[n] = w.held[(r % 8 * 4 + n / 2 % 4) * w.count + n / 8 * 4 + r / 8 * 2 + n % 2];
        for (u32 k = 0; k < 16; k++) {
            const u32 word = product.left[r % 8 * 4 + k % 8 / 2][r / 8 + k / 8 * 2];
            const float factor = widen_right((u16)(word >> k % 2 * 16));
            for (u32 n = 0; n < columns; n++) sums[n] += factor * right[k][n];
        }
        for (u32 n = 0; n < columns; n++) w.held[(r % 8 * 4 + n / 2 % 4) * w.count + n / 8 * 4 + r / 8 * 2 + n % 2] = sums[n];
    }
    product.multiplied = true;
}

// A lane looks at every 32nd column.
static void look(const Warp& w, const Product& product, bool ended) {
    for (u32 n = lane(); n < 2 * w.count; n += WARP) {
        const unsigned char* row = row_of(product, n);
        if (!in_arena(row, ROW_BYTES)) fail("columns of products past the end of shared memory");
        MC_RACE(multiplied(row, ROW_BYTES, ended));
        (void)ended;
    }
}

static void know(const float* sums, u32 count) {
    mine().known_of[lane()] = sums;
    mine().known[lane()].assign(sums, sums + count);
}

void fence_products(const float* sums, u32 count) {
    mine().fenced[lane()] = true;
    know(sums, count);
}

void issue_product(float* sums, u32 count, const u32 (&left)[4], u64 columns, float (*widen)(u16), Site site) {
    Warp& own = mine();
    if (warp() / GROUP_WARPS * GROUP_WARPS + GROUP_WARPS > threads() / WARP) {
        fail("a product of a warpgroup that has no four warps");
    }
    if (!own.fenced[lane()]) fail("a product of registers without fence_products behind the loads of them");
    const Product product = described(columns);
    if (!own.arrived) {
        if (own.products.empty()) {
            own.count = count;
            own.held.assign((size_t)WARP * count, NAN);
        }
        own.products.push_back(product);
        own.issued++;
    }
    Product& found = own.products.back();
    if (found.columns != product.columns || found.eight_bytes != product.eight_bytes) {
        fail("lanes of a warp multiply other columns");
    }
    if (own.products.size() == 1) {
        if (own.known_of[lane()] == sums && memcmp(sums, own.known[lane()].data(), count * sizeof *sums)) {
            fail("sums of products that were written behind fence_products");
        }
        own.sums_of[lane()] = sums;
        memcpy(&own.held[lane() * count], sums, count * sizeof *sums);
        for (u32 i = 0; i < count; i++) sums[i] = NAN;
    } else if (own.sums_of[lane()] != sums || own.count != count) {
        fail("products of other sums while some are under way, which is not modelled");
    }
    memcpy(found.left[lane()], left, sizeof left);
    found.left_of[lane()] = left;
    look(own, found, false);
    gather_warp(
        site, [](Warp&, u32) {},
        [&](Warp& w, u32) {
            widen_right = widen;
            if (!machine.launch.late_copies) multiply(w, w.products.back());
        });
}

void commit_products(Site site) {
    gather_warp(
        site, [](Warp&, u32) {},
        [](Warp& w, u32) {
            for (Product& product : w.products) {
                if (product.group == NO_GROUP) product.group = w.groups;
            }
            w.groups++;
        });
}

void await_products(const float* sums, Site site) {
    if (machine.launch.late_copies) yield();
    Warp& own = mine();
    for (const Product& product : own.products) {
        if (product.group == NO_GROUP) fail("a wait for products that are in no group");
        look(own, product, true);
        if (memcmp(product.left_of[lane()], product.left[lane()], sizeof product.left[0])) {
            fail("a fragment that was written before its product has ended");
        }
    }
    const bool under_way = !own.products.empty();
    if (under_way && own.sums_of[lane()] != sums) fail("a wait for products of other sums");
    for (u32 i = 0; under_way && i < own.count; i++) {
        if (!std::isnan(sums[i])) fail("sums that were written before their products have ended");
    }
    gather_warp(
        site, [](Warp&, u32) {},
        [](Warp& w, u32) {
            for (Product& product : w.products) {
                if (!product.multiplied) multiply(w, product);
            }
            for (u32 l = 0; l < WARP && !w.products.empty(); l++) {
                memcpy(w.sums_of[l], &w.held[l * w.count], w.count * sizeof(float));
            }
            w.products.clear();
        });
    if (under_way) know(sums, own.count);
}

void end_products(const Warp& w) {
    if (!w.products.empty()) fail("a thread ends with products under way");
}

void end_products(const Block& block) {
    for (u32 n = 0; n < block.warps.size(); n++) {
        const u32 first = n / GROUP_WARPS * GROUP_WARPS;
        if (block.warps[n].issued == block.warps[first].issued) continue;
        fail("warps of a warpgroup issue %u and %u products", block.warps[first].issued, block.warps[n].issued);
    }
}

}  // namespace mc
