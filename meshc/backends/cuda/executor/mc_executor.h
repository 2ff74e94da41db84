// mc_executor.h: the primitives of mc.cuh on a CPU, to run emitted kernels without a GPU.
//
// Every thread of a kernel is a fiber; all blocks of a cluster (or of the grid) are alive at once and
// a fiber runs until it waits. What real hardware leaves open is varied instead: the order in which
// threads run (Schedule) and when asynchronous copies happen (early: when issued; late: when
// somebody waits for them). Shared memory and the targets of copies under way hold NaNs. A wrong
// barrier, wait or byte count then shows as other numbers, as a report of who waits for what, or as
// a fault. With MC_RACES, accesses to shared memory that nothing puts in order are reported as well,
// see mc_races.h. Each concept is a header of its own: templates and what is short stand in it, so that
// kernels are compiled with them, all other functions in mc_*.cc, which are compiled once. docs/cuda.md lists what is not modelled.
#pragma once

#include "mc_gpus.h"
#include "mc_launch.h"
#include "mc_loads.h"
#include "mc_memory.h"
#include "mc_products.h"

// The symbol ``run_KERNEL`` of the compiled library. Arguments of several GPUs lie one behind the
// other.
#define MC_EXPORT(kernel)                                                                      \
    static void enter_##kernel(const void* arguments) {                                        \
        mc::call(kernel, (void* const*)arguments);                                             \
    }                                                                                          \
    extern "C" __attribute__((visibility("default"))) int run_##kernel(                        \
        const mc::Launch* launch, void** arguments, mc::Counts* counts, char* message,         \
        size_t message_bytes) {                                                                \
        return mc::run(*launch, enter_##kernel, arguments, mc::pointer_bytes(kernel), counts,  \
                       message, message_bytes);                                                \
    }
