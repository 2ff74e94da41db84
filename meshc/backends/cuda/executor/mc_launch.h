// mc_launch.h: grids of the executor, from the first block to the last.
#pragma once

#include <type_traits>
#include <utility>

#include "mc_gpus.h"

namespace mc {

// Run ``kernel`` as a grid, on several GPUs as one on each, with arguments ``argument_bytes`` apart; what went
// wrong is in ``message``, and 1 returned.
int run(const Launch& launch, void (*kernel)(const void*), const void* arguments,
        size_t argument_bytes, Counts* counts, char* message, size_t message_bytes);

// Call ``kernel`` with its arguments in an array of pointers to them, as drivers launch it.
template <class... Arguments>
void call(void (*kernel)(Arguments...), void* const* arguments) {
    [&]<size_t... N>(std::index_sequence<N...>) {
        kernel(*(std::remove_reference_t<Arguments>*)arguments[N]...);
    }(std::index_sequence_for<Arguments...>{});
}

// The size of such an array.
template <class... Arguments>
constexpr size_t pointer_bytes(void (*)(Arguments...)) {
    return sizeof...(Arguments) * sizeof(void*);
}

}  // namespace mc
