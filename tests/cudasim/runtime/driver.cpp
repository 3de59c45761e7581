// Functions of libcuda.so, for launch code that finds them by their names: Python does the work (driver.py).
#include <stddef.h>
#include <stdint.h>

namespace {

struct Calls {
    int (*launch)(const void *config, void *function, void **parameters);
    int (*fill)(uint64_t address, unsigned word, size_t words, void *stream);
    int (*error)(int status, int text, const char **out);
    int (*set_params)(void *exec, void *node, const void *params);
    int (*create_graph)(void **graph);
    int (*add_kernel)(void **node, void *graph, const void *params);
    int (*add_edge)(void *graph, void *from, void *to, int type);
    int (*instantiate)(void **exec, void *graph);
    int (*launch_graph)(void *exec, void *stream);
    int (*destroy)(void *graph);
} calls;

// CUgraphEdgeData.
struct Edge {
    unsigned char from_port, to_port, type, reserved[5];
};

constexpr int INVALID_VALUE = 1, DEINITIALIZED = 4;  // of CUresult

}  // namespace

extern "C" {

// Without `python`, which has ended, the driver has ended too.
void sim_set_driver(const Calls *python) { calls = python ? *python : Calls{}; }

int cuLaunchKernelEx(const void *config, void *function, void **parameters, void **) {
    return calls.launch(config, function, parameters);
}
int cuMemsetD32Async(uint64_t address, unsigned word, size_t words, void *stream) {
    return calls.fill(address, word, words, stream);
}
int cuGraphExecKernelNodeSetParams_v2(void *exec, void *node, const void *params) {
    return calls.set_params(exec, node, params);
}
int cuCtxGetCurrent(void **context) {
    static int one;
    *context = &one;
    return calls.destroy ? 0 : DEINITIALIZED;
}
int cuCtxSetCurrent(void *) { return 0; }
int cuThreadExchangeStreamCaptureMode(int *) { return 0; }
int cuGraphCreate(void **graph, unsigned) { return calls.create_graph(graph); }
int cuGraphAddKernelNode_v2(void **node, void *graph, const void *const *, size_t count, const void *params) {
    return count ? INVALID_VALUE : calls.add_kernel(node, graph, params);
}
int cuGraphAddDependencies_v2(void *graph, void *const *from, void *const *to, const Edge *edges, size_t count) {
    int status = 0;
    for (size_t i = 0; i < count && status == 0; ++i) {
        const Edge edge = edges ? edges[i] : Edge{};
        // A programmatic edge begins at the port of launch_dependents.
        if (edge.from_port != edge.type || edge.to_port) return INVALID_VALUE;
        status = calls.add_edge(graph, from[i], to[i], edge.type);
    }
    return status;
}
int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long) { return calls.instantiate(exec, graph); }
int cuGraphLaunch(void *exec, void *stream) { return calls.launch_graph(exec, stream); }
int cuGraphExecDestroy(void *exec) { return calls.destroy(exec); }
int cuGraphDestroy(void *graph) { return calls.destroy(graph); }
int cuGetErrorName(int status, const char **out) { return calls.error(status, 0, out); }
int cuGetErrorString(int status, const char **out) { return calls.error(status, 1, out); }
}
