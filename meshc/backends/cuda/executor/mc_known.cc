// mc_known.cc: knowledge of accesses, put together.
#include "mc_known.h"

#include <algorithm>
#include <vector>

namespace mc::gpus {

static bool later(const Access& a, const Access& b) {
    return a.epoch != b.epoch ? a.epoch > b.epoch : a.count > b.count;
}

// Whether the barriers of its block, or of its group, that are known come behind ``access``.
static bool covers(const Known& known, const Access& access) {
    const u32 block = block_of(access.who);
    if (block < known.closed.size() && access.epoch < known.closed[block]) return true;
    return block < known.grouped.size() && in_group[access.who] && access.group < known.grouped[block];
}

bool holds(const Known& known, const Access& access) {
    if (access.who >= FRONTS) return known.fronts >> (access.who - FRONTS) & 1;
    if (covers(known, access)) return true;
    for (const Access& point : known.open) {
        if (point.who == access.who) return !later(access, point);
    }
    return false;
}

static bool within(const std::vector<u32>& from, const std::vector<u32>& to) {
    for (u32 block = 0; block < from.size(); block++) {
        if (from[block] > (to.empty() ? 0 : to[block])) return false;
    }
    return true;
}

// Whether all that is known is known there.
bool within(const Known& from, const Known& to) {
    if (from.fronts & ~to.fronts || !within(from.closed, to.closed) || !within(from.grouped, to.grouped)) {
        return false;
    }
    return std::all_of(from.open.begin(), from.open.end(), [&](const Access& point) { return holds(to, point); });
}

bool knows_nothing(const Known& known) {
    return known.closed.empty() && known.grouped.empty() && known.open.empty() && !known.fronts;
}

void know_barriers(std::vector<u32>& known, u32 block, u32 epoch) {
    if (known.empty()) known.assign(machine.launch.blocks * count(), 0);
    known[block] = std::max(known[block], epoch);
}

void know_point(Known& known, const Access& point) {
    for (Access& other : known.open) {
        if (other.who != point.who) continue;
        if (later(point, other)) other = point;
        return;
    }
    known.open.push_back(point);
}

void join(Known& to, const Known& from) {
    to.fronts |= from.fronts;
    for (u32 block = 0; block < from.closed.size(); block++) know_barriers(to.closed, block, from.closed[block]);
    for (u32 block = 0; block < from.grouped.size(); block++) know_barriers(to.grouped, block, from.grouped[block]);
    for (const Access& point : from.open) {
        if (!covers(to, point)) know_point(to, point);
    }
    std::erase_if(to.open, [&](const Access& point) { return covers(to, point); });
}

}  // namespace mc::gpus
