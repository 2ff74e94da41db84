// mc_proxies.cc: copies of global memory that a thread of the same grid has written, for the executor.
#include "mc_proxies.h"
#include "mc_races.h"

#include <unordered_map>
#include <vector>

namespace mc::races {

constexpr size_t PAGE = 1024;  // cells of a page

// What a thread knew, and what was fenced by whoever wrote it, when it released for the n-th time.
struct Known {
    std::vector<u32> seen, told;
};

struct Proxies {
    std::unordered_map<size_t, std::vector<Access>> pages;  // writes of this grid; ``who`` is a thread of it
    std::unordered_map<const void*, Clock> counters;
    std::unordered_map<u32, u32> numbers;  // of threads that release, in the order in which they did so first
    std::vector<u32> clusters;  // of these
    std::vector<std::vector<Known>> releases;  // by number
};
static Proxies proxies;

static void start_proxies() { proxies = {}; }

static void next_epoch(Clock& mine) { mine.seen[place()]++; }

void wrote(const void* p, size_t bytes) {
    if (!machine.given || !is_given(p, bytes)) return;
    const size_t first = (size_t)p / GRAIN, end = ((size_t)p + bytes + GRAIN - 1) / GRAIN;
    for (size_t cell = first; cell < end; cell++) {
        std::vector<Access>& page = proxies.pages[cell / PAGE];
        if (page.empty()) page.resize(PAGE);
        page[cell % PAGE] = {me(), state.threads[me()].seen[place()]};
    }
}

void global_copy_fence() {
    Clock& mine = state.threads[me()];
    const u32 first = place() / threads() * threads();  // of the block
    if (mine.told.empty()) mine.told.assign(cluster_threads(), 0);
    for (u32 n = first; n < first + threads(); n++) mine.told[n] = mine.seen[n];
    mine.taken.assign(mine.seen.begin(), mine.seen.begin() + cluster_threads());
    mine.far_taken = mine.far;
    next_epoch(mine);
}

void release_by(const void* counter) {
    Clock& mine = state.threads[me()];
    const auto [found, fresh] = proxies.numbers.try_emplace(me(), (u32)proxies.releases.size());
    if (fresh) {
        proxies.clusters.push_back(me() / cluster_threads());
        proxies.releases.emplace_back();
    }
    std::vector<Known>& own = proxies.releases[found->second];
    own.push_back({mine.seen, mine.told});
    Clock& to = proxies.counters[counter];
    raise(to.far, mine.far);
    if (to.far.size() <= found->second) to.far.resize(found->second + 1);
    to.far[found->second] = (u32)own.size();
    next_epoch(mine);
}

void acquire_by(const void* counter) { raise(state.threads[me()].far, proxies.counters[counter].far); }

static bool holds(const std::vector<u32>& known, const Access& access) {
    return access.when <= (known.empty() ? 0 : known[access.who]);
}

// Whether what other clusters released, as often as ``far`` says, holds ``access``, of ``cluster``.
template <class Part>
static bool released(const std::vector<u32>& far, u32 cluster, const Access& access, Part part) {
    for (u32 n = 0; n < far.size(); n++) {
        if (far[n] && proxies.clusters[n] == cluster && holds(part(proxies.releases[n][far[n] - 1]), access)) return true;
    }
    return false;
}

static void check_fences(const Access& write, size_t offset) {
    const Clock& mine = state.threads[me()];
    const u32 cluster = write.who / cluster_threads(), block = write.who / threads();
    const Access own{write.who % cluster_threads(), write.when};
    if (block == me() / threads()) return;
    const auto seen = [](const Known& known) -> const std::vector<u32>& { return known.seen; };
    const auto fenced = [](const Known& known) -> const std::vector<u32>& { return known.told; };
    const bool near = cluster == me() / cluster_threads();
    if (!(near && holds(mine.seen, own)) && !released(mine.far, cluster, own, seen)) return;
    const bool told = (near && holds(mine.told, own)) || released(mine.far, cluster, own, fenced);
    const bool taken = (near && holds(mine.taken, own)) || released(mine.far_taken, cluster, own, seen);
    if (told && taken) return;
    fail("a copy by thread %u of block %u of global memory that thread %u of block %u wrote, without global_copy_fence"
         " of the block that %s (byte %zu of the copy)", thread(), here().index,
         write.who % threads(), block, told ? "copies" : "writes", offset);
}

void copied(const void* p, size_t bytes) {
    Access last;
    const size_t first = (size_t)p / GRAIN;
    for (size_t cell = first; cell < ((size_t)p + bytes) / GRAIN; cell++) {
        const auto page = proxies.pages.find(cell / PAGE);
        if (page == proxies.pages.end()) continue;
        const Access& write = page->second[cell % PAGE];
        if (write.who == NOBODY || (write.who == last.who && write.when == last.when)) continue;
        check_fences(write, (cell - first) * GRAIN);
        last = write;
    }
}

}  // namespace mc::races
