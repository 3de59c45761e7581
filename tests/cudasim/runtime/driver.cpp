// Functions of libcuda.so, for launch code that finds them by their names: Python does the work (driver.py).
#include <stddef.h>
#include <stdint.h>

namespace {

struct Calls {
    int (*launch)(const void *config, void *function, void **parameters);
    int (*fill)(uint64_t address, unsigned word, size_t words, void *stream);
    int (*error)(int status, int text, const char **out);
} calls;

}  // namespace

extern "C" {

void sim_set_driver(const Calls *python) { calls = *python; }

int cuLaunchKernelEx(const void *config, void *function, void **parameters, void **) {
    return calls.launch(config, function, parameters);
}
int cuMemsetD32Async(uint64_t address, unsigned word, size_t words, void *stream) {
    return calls.fill(address, word, words, stream);
}
int cuGetErrorName(int status, const char **out) { return calls.error(status, 0, out); }
int cuGetErrorString(int status, const char **out) { return calls.error(status, 1, out); }
}
