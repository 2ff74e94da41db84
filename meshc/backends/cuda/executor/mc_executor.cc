// mc_executor.cc: the functions of the executor that kernels are linked with, in one translation unit,
// so that short ones are inlined into each other.
#include "mc_barriers.cc"
#include "mc_faults.cc"
#include "mc_fibers.cc"
#include "mc_gpus.cc"
#include "mc_gpu_words.cc"
#include "mc_known.cc"
#include "mc_launch.cc"
#include "mc_loads.cc"
#include "mc_memory.cc"
#include "mc_products.cc"
#ifdef MC_RACES
#include "mc_races.cc"
#include "mc_proxies.cc"
#endif
