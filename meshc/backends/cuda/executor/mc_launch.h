// mc_launch.h: grids of the executor, from the first block to the last.
#pragma once

#include <tuple>
#include <utility>

#include "mc_gpus.h"

namespace mc {

// Run ``kernel`` as a grid, on several GPUs as one on each, with arguments ``argument_bytes`` apart; what went
// wrong is in ``message``, and 1 returned.
int run(const Launch& launch, void (*kernel)(const void*), const void* arguments,
        size_t argument_bytes, Counts* counts, char* message, size_t message_bytes);

// A kernel with its arguments in an array of pointers to them, as drivers launch it; those of
// several GPUs one behind the other.
template <class... Arguments>
int run_kernel(void (*kernel)(Arguments...), const Launch* launch, void** arguments, Counts* counts,
               char* message, size_t message_bytes) {
    typedef std::tuple<void (*)(Arguments...), Arguments...> Call;
    std::vector<Call> calls;
    for (u32 gpu = 0; gpu < gpus::count(); gpu++, arguments += sizeof...(Arguments)) {
        calls.push_back([&]<size_t... N>(std::index_sequence<N...>) {
            return Call(kernel, *(std::remove_reference_t<Arguments>*)arguments[N]...);
        }(std::index_sequence_for<Arguments...>{}));
    }
    const auto enter = [](const void* held) {
        std::apply([](auto kernel, auto... values) { kernel(values...); }, *(const Call*)held);
    };
    return run(*launch, enter, calls.data(), sizeof(Call), counts, message, message_bytes);
}

}  // namespace mc
