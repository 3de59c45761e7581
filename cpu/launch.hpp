// Launches of GPU kernels, prepared except for the addresses of their operands. The caller passes the addresses of the
// driver's functions, so that no part of CUDA is included or linked.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "array.hpp"

namespace pg {

// Functions of libcuda. Source: cuda.h, whose binary interface is stable.
struct Driver {
    using Status = int;     // CUresult
    using Handle = void *;  // CUfunction, CUstream
    struct Attribute {      // CUlaunchAttribute
        int id;
        char padding[4];
        int value;
        char rest[60];
    };
    struct Config {  // CUlaunchConfig
        unsigned grid[3], block[3], shared;
        Handle stream;
        Attribute *attributes;
        unsigned attribute_count;
    };

    struct KernelNode {  // CUDA_KERNEL_NODE_PARAMS
        Handle function;
        unsigned grid[3], block[3], shared;
        void **parameters, **extra;
        Handle kernel, context;
    };
    struct Edge {  // CUgraphEdgeData
        unsigned char from_port, to_port, type, reserved[5];
    };

    Status (*launch)(const Config *, Handle function, void **parameters, void **extra);  // cuLaunchKernelEx
    Status (*fill)(u64 address, unsigned word, size_t words, Handle stream);             // cuMemsetD32Async
    Status (*error_name)(Status, const char **);                                         // cuGetErrorName
    Status (*error_text)(Status, const char **);                                         // cuGetErrorString

    // Functions for graphs. All are null if the driver lacks any of them.
    Status (*get_context)(Handle *);                        // cuCtxGetCurrent
    Status (*set_context)(Handle);                          // cuCtxSetCurrent
    Status (*capture_mode)(int *mode);                      // cuThreadExchangeStreamCaptureMode
    Status (*create_graph)(Handle *graph, unsigned flags);  // cuGraphCreate
    Status (*add_kernel)(Handle *node, Handle graph, const Handle *earlier, size_t count,
                         const KernelNode *);  // cuGraphAddKernelNode_v2
    Status (*add_edges)(Handle graph, const Handle *from, const Handle *to, const Edge *,
                        size_t count);                                   // cuGraphAddDependencies_v2
    Status (*instantiate)(Handle *exec, Handle graph, u64 flags);        // cuGraphInstantiateWithFlags
    Status (*set_kernel)(Handle exec, Handle node, const KernelNode *);  // cuGraphExecKernelNodeSetParams_v2
    Status (*launch_graph)(Handle exec, Handle stream);                  // cuGraphLaunch
    Status (*destroy_exec)(Handle exec);                                 // cuGraphExecDestroy
    Status (*destroy_graph)(Handle graph);                               // cuGraphDestroy
};

// One kernel with its parameters, which begin with the addresses of operands.
struct Launch {
    std::string kernel;  // its name, for errors
    Driver::Handle function;
    unsigned grid[2], threads, shared;
    unsigned counters;  // how many 32-bit words of the last operand are set to 0 before the launch
    // Whether the kernel may start before earlier work on the stream has ended. Such a kernel waits for that work
    // itself (griddepcontrol.wait).
    bool early;
    std::vector<unsigned> operands;  // the index of the operand for each address
    std::vector<u64> offsets;        // bytes from the beginning of each operand
    std::string parameters;
};

struct DriverError : std::runtime_error {
    using std::runtime_error::runtime_error;
};
// This thread has no CUDA context, because it has not worked on the GPU before. Nothing was launched.
struct NoContext : DriverError {
    using DriverError::DriverError;
};

// All launches as one CUDA graph. Launching the graph takes as long as one launch, plus a tenth of that for each kernel
// whose addresses have changed since the last launch.
class LaunchGraph {
  public:
    // Makes the graph in the current context. ready() tells whether the driver could make it.
    LaunchGraph(const Driver &driver, const std::vector<Launch> &launches, const u64 *operands);
    LaunchGraph(const LaunchGraph &) = delete;
    ~LaunchGraph();

    bool ready() const { return exec_ != nullptr; }
    // Call this from one thread at a time, and only if the thread has a current context. If an error is returned,
    // nothing was launched. Then do not launch the graph again.
    Driver::Status launch(Driver::Handle stream, const u64 *operands);

  private:
    Driver::Status build(const u64 *operands);

    const Driver &driver_;
    const std::vector<Launch> &launches_;
    std::vector<Driver::Handle> nodes_;
    std::vector<u64> addresses_;  // the operands' addresses that are set in the graph, node by node
    Driver::Handle context_ = nullptr, graph_ = nullptr, exec_ = nullptr;
};

class Launches {
  public:
    static constexpr size_t MAX_BYTES = 4096;  // bytes of a launch's parameters; every GPU takes this many

    Launches(const Driver &driver, std::vector<Launch> launches);
    Launches(const Launches &) = delete;

    // One graph cannot run on two streams at once, so each stream has its own graph.
    struct OfStream {
        u64 stream;
        unsigned calls = 0;
        // in_use: whether a thread uses the graph. Meanwhile other threads launch without a graph.
        std::atomic_flag in_use = ATOMIC_FLAG_INIT;
        std::unique_ptr<LaunchGraph> graph;
    };

    // Launches all kernels in order. Throws NoContext or DriverError if the driver refuses one.
    void launch(u64 stream, const u64 *operands, size_t count) const;
    // Launches all kernels of a repeated call. After a few calls on a stream, a graph launches the kernels. own: the
    // result of of_stream(stream).
    void repeat(u64 stream, OfStream *own, const u64 *operands, size_t count) const;
    // Returns the OfStream of a stream, or null if calls on this stream use no graph. Must be called by one thread at a
    // time.
    OfStream *of_stream(u64 stream);

  private:
    bool launch_graph(OfStream &own, Driver::Handle stream, const u64 *operands) const;
    void launch(const Launch &launch, Driver::Handle stream, const u64 *operands) const;
    void check(Driver::Status status, const Launch &launch) const;

    Driver driver_;
    std::vector<Launch> launches_;
    size_t operands_ = 0;  // how many operands a call must pass
    bool graphs_ = false;  // whether repeated calls use graphs
    std::deque<OfStream> streams_;
};

}  // namespace pg
