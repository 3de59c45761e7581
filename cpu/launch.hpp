// Launches of GPU kernels, prepared except for the addresses of their operands. The caller passes the addresses of the
// driver's functions, so that nothing of CUDA is included or linked.
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

    // Graphs. All are null where the driver has not got them all.
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
    unsigned counters;  // 32-bit words at the last operand that are set to 0 before the launch
    // The kernel may start before earlier work on the stream has ended; it waits for that work itself
    // (griddepcontrol.wait).
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

// Launches as one graph: the driver takes it in the time of one launch, plus a tenth of that for each kernel whose
// addresses are not those of the launch before.
class LaunchGraph {
  public:
    // Made in the current context. ready() tells whether the driver made it.
    LaunchGraph(const Driver &driver, const std::vector<Launch> &launches, const u64 *operands);
    LaunchGraph(const LaunchGraph &) = delete;
    ~LaunchGraph();

    bool ready() const { return exec_ != nullptr; }
    // One thread at a time, which has a context. After an error nothing was launched, and the graph is not to be
    // launched again.
    Driver::Status launch(Driver::Handle stream, const u64 *operands);

  private:
    Driver::Status build(const u64 *operands);

    const Driver &driver_;
    const std::vector<Launch> &launches_;
    std::vector<Driver::Handle> nodes_;
    std::vector<u64> addresses_;  // of all nodes, one after the other, as they are set
    Driver::Handle context_ = nullptr, graph_ = nullptr, exec_ = nullptr;
};

class Launches {
  public:
    static constexpr size_t MAX_BYTES = 4096;  // of parameters; every GPU takes as many

    Launches(const Driver &driver, std::vector<Launch> launches);
    Launches(const Launches &) = delete;

    // The driver runs the launches of one graph one after the other, so each stream has its own.
    struct OfStream {
        u64 stream;
        unsigned calls = 0;
        std::atomic_flag in_use = ATOMIC_FLAG_INIT;  // by a thread; others launch without the graph meanwhile
        std::unique_ptr<LaunchGraph> graph;
    };

    // Launches all kernels in order. Throws NoContext or DriverError where the driver refuses one.
    void launch(u64 stream, const u64 *operands, size_t count) const;
    // Does the same for a call that comes often: after some calls on a stream as a graph. own: of_stream(stream).
    void repeat(u64 stream, OfStream *own, const u64 *operands, size_t count) const;
    // What is kept of a stream; null where nothing is. One thread at a time.
    OfStream *of_stream(u64 stream);

  private:
    bool launch_graph(OfStream &own, Driver::Handle stream, const u64 *operands) const;
    void launch(const Launch &launch, Driver::Handle stream, const u64 *operands) const;
    void check(Driver::Status status, const Launch &launch) const;

    Driver driver_;
    std::vector<Launch> launches_;
    size_t operands_ = 0;  // how many a call must pass
    bool graphs_ = false;  // whether a graph serves
    std::deque<OfStream> streams_;
};

}  // namespace pg
