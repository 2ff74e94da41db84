// The meeting of several GPUs, over the primitives of mc.cuh.
#pragma once

namespace mc {

// The same block of all GPUs meets: what one has done before and knows of, all know behind. ``signals`` are
// those of each GPU, a word for each block and sender, and this is GPU ``rank`` of ``gpus``. Called by all
// threads of a block. Blocks that wait keep their multiprocessors, so all of the grids are resident.
MC_INLINE void meet_gpus(u32* const* signals, u32 rank, u32 gpus) {
    block_sync();
    const u32 peer = thread();
    if (peer < gpus) {
        put_signal(signals[peer] + block() * gpus + rank);
        wait_signal(signals[rank] + block() * gpus + peer);
    }
    block_sync();
}

}  // namespace mc
