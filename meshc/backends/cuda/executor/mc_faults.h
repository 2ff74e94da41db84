// mc_faults.h: global memory that a launch was not given, for the executor.
//
// The host puts each array of a launch between pages that nobody may touch (guarded_memory.py). A plain access
// that reaches one is a signal of the system, which ends the run with the array's number in words. Copies and
// prefetches, and with MC_RACES every plain access, are held against the arrays themselves.
#pragma once

#include "mc_fibers.h"

namespace mc {

// Fails unless ``bytes`` at ``p`` lie in one array of the launch; ``what`` is done with them.
void check_given(const void* p, size_t bytes, const char* what);

// Fails for a plain access to what lies around an array of the launch.
void check_around(const void* p, size_t bytes, bool write);

// Whether ``bytes`` at ``p`` lie in one array of the launch.
bool is_given(const void* p, size_t bytes);

// While one is alive, signals of fibers' accesses end the run.
class Faults {
public:
    Faults();
    ~Faults();
    Faults(const Faults&) = delete;
    Faults& operator=(const Faults&) = delete;
};

}  // namespace mc
