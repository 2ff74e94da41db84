// mc_gpu_words.cc: words with tags that GPUs give each other, which nobody meets for.
#include "mc_gpus.h"

#include <vector>

namespace mc {
namespace gpus {

struct Word {
    u32 *to, value;
};
static std::vector<Word> under_way;

bool words_come() {
    const bool some = !under_way.empty();
    for (const Word& word : under_way) *word.to = word.value;
    under_way.clear();
    if (some) tell_of_words();
    return some;
}

void forget_words() { under_way.clear(); }

// With late copies a word is under way until somebody waits for one.
static void store_word(const Place& at, u32 gpu, u32 v) {
    u32* const to = (u32*)(part_of(at, gpu).at + at.offset);
    if (!late()) {
        *to = v;
        tell_of_words();
        return;
    }
    under_way.push_back({to, v});
    if (tell_of_words()) words_come();
}

// Whether ``p`` is such a word, as others that a thread asks for with it need not be.
static bool holds_word(const void* p) {
    for (u32 memory = 0; memory < given->memory_count; memory++) {
        if (given->memories[memory].held != Held::WORDS) continue;
        for (u32 gpu = 0; gpu < count(); gpu++) {
            if ((u64)((const unsigned char*)p - given->memories[memory].parts[gpu]) < given->memories[memory].bytes) {
                return true;
            }
        }
    }
    return false;
}

}  // namespace gpus

void store_word_to_gpu(u32* p, u32 v) {
    const gpus::Place at = gpus::place(p, sizeof v, false, Held::WORDS, "store_word_to_gpu");
    gpus::count_bytes(sizeof v, at.gpu != here().gpu);
    gpus::store_word(at, at.gpu, v);
}

void store_word_to_gpus(u32* p, u32 v) {
    const gpus::Place at = gpus::place(p, sizeof v, true, Held::WORDS, "store_word_to_gpus");
    for (u32 gpu = 0; gpu < gpus::count(); gpu++) gpus::store_word(at, gpu, v);
    gpus::count_bytes(sizeof v, gpus::count() > 1);
}

u32 load_word_of_gpus(const u32* p) {
    if (!gpus::holds_word(p)) return load_word(p);
    const gpus::Place at = gpus::place(p, sizeof *p, false, Held::WORDS, "load_word_of_gpus");
    if (at.gpu != here().gpu) fail("a word of another GPU's memory is waited for");
    return *p;
}

void load_words_of_gpus(const u32* p, u32 (&v)[4]) {
    for (int i = 0; i < 4; i++) v[i] = load_word_of_gpus(p + i);
}

}  // namespace mc
