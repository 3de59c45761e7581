// Functions of libcuda.so, for launch code that finds them by their names: Python does the work (driver.py).
#include <stddef.h>
#include <stdint.h>

namespace {

struct Calls {
    int (*launch)(const void *config, void *function, void **parameters);
    int (*fill)(uint64_t address, unsigned word, size_t words, void *stream);
    int (*error)(int status, int text, const char **out);
    int (*graph_nodes)(void *graph, void **nodes, size_t *count);
    int (*node_type)(void *node, int *type);
    int (*get_params)(void *node, int type, void *params);
    int (*set_params)(void *exec, void *node, const void *params);
    int (*parameter)(void *function, size_t index, size_t *offset, size_t *size);
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
int cuGraphGetNodes(void *graph, void **nodes, size_t *count) { return calls.graph_nodes(graph, nodes, count); }
int cuGraphNodeGetType(void *node, int *type) { return calls.node_type(node, type); }
int cuGraphKernelNodeGetParams_v2(void *node, void *params) { return calls.get_params(node, 0, params); }
int cuGraphMemcpyNodeGetParams(void *node, void *params) { return calls.get_params(node, 1, params); }
int cuGraphMemsetNodeGetParams(void *node, void *params) { return calls.get_params(node, 2, params); }
int cuGraphExecKernelNodeSetParams_v2(void *exec, void *node, const void *params) {
    return calls.set_params(exec, node, params);
}
int cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *size) {
    return calls.parameter(function, index, offset, size);
}
int cuGetErrorName(int status, const char **out) { return calls.error(status, 0, out); }
int cuGetErrorString(int status, const char **out) { return calls.error(status, 1, out); }
}
