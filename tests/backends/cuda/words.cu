// Values in words with tags, there and back.
#include "mc.cuh"

// words [blocks, 256]: of each value of x with the tag of the launch; y: what is read of them, by single words, by eights
// and whatever the tag is.
extern "C" __global__ void __launch_bounds__(256, 1) words(const float* x, float* words, float* y, int before) {
    const int at = mc::block() * 256 + mc::thread(), count = mc::blocks() * 256;
    const mc::u32 tag = mc::tag_of<4>(before);
    if (at < count / 2) {
        mc::give<4>(words + at, x[at], tag);
    } else if (at % 8 == 0) {
        float v[8];
        for (int i = 0; i < 8; i++) v[i] = x[at + i];
        mc::give8<4>(words + at, v, tag);
    }
    // Blocks read what others give, without meeting.
    const int other = count - 256 - mc::block() * 256 + mc::thread();
    y[other] = mc::Tagged<4>(tag).one(words + other);
    if (other % 8) return;
    float v[1][8];
    const float* const from[1] = {words + other};
    mc::Tagged<4>(tag).eights(from, 1, v);
    for (int i = 0; i < 8; i++) y[count + other + i] = v[0][i];
    mc::Tagged<4>(0).eights(from, 1, v);
    for (int i = 0; i < 8; i++) y[2 * count + other + i] = v[0][i];
}
MC_EXPORT(words)
