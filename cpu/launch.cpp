#include "launch.hpp"

#include <algorithm>
#include <cstring>

namespace pg {
namespace {

constexpr Driver::Status INVALID_CONTEXT = 201;       // a value of CUresult
constexpr int PROGRAMMATIC_STREAM_SERIALIZATION = 6;  // a value of CUlaunchAttributeID
static_assert(sizeof(Driver::Attribute) == 72 && sizeof(Driver::Config) == 56, "as in cuda.h");
static_assert(sizeof(Driver::KernelNode) == 72 && sizeof(Driver::Edge) == 8, "as in cuda.h");
constexpr unsigned char PROGRAMMATIC = 1;  // a value of CUgraphDependencyType, and of an edge's port
// A value of CUstreamCaptureMode: calls are allowed while another thread captures.
constexpr int RELAXED = 2;

constexpr unsigned FIRST_CALLS = 2;  // calls on a stream; the call after them makes a graph, which costs about 100 us
constexpr size_t MOST_STREAMS = 4;   // streams for which one record keeps graphs

// The parameters of a launch, with the addresses of this call filled in.
class Parameters {
  public:
    explicit Parameters(const Launch &one) { std::memcpy(bytes_, one.parameters.data(), one.parameters.size()); }
    void set(size_t i, u64 address) { std::memcpy(bytes_ + 8 * i, &address, 8); }
    void **pointers() { return &at_; }

  private:
    alignas(16) char bytes_[Launches::MAX_BYTES];
    void *at_ = bytes_;
};

u64 address_of(const Launch &one, size_t i, const u64 *operands) { return operands[one.operands[i]] + one.offsets[i]; }

Driver::KernelNode node_of(const Launch &one, Parameters &parameters) {
    return {one.function,
            {one.grid[0], one.grid[1], 1},
            {one.threads, 1, 1},
            one.shared,
            parameters.pointers(),
            nullptr,
            nullptr,
            nullptr};
}

}  // namespace

Launches::Launches(const Driver &driver, std::vector<Launch> launches)
    : driver_(driver), launches_(std::move(launches)) {
    for (const Launch &one : launches_) {
        require(one.parameters.size() <= MAX_BYTES && 8 * one.operands.size() <= one.parameters.size(),
                "Launches: parameters of at most 4096 bytes, which begin with the operands' addresses");
        require(one.offsets.size() == one.operands.size(), "Launches: one offset an operand");
        require(!one.counters || !one.operands.empty(), "Launches: counters are the last operand");
        for (unsigned operand : one.operands) operands_ = std::max<size_t>(operands_, operand + 1);
    }
    // A single launch needs no graph. The graph would not be cheaper, and without a graph the kernel may start before
    // the previous kernel ends.
    graphs_ = driver_.create_graph && launches_.size() > 1 &&
              std::none_of(launches_.begin(), launches_.end(), [](const Launch &one) { return one.counters; });
}

void Launches::launch(u64 stream, const u64 *operands, size_t count) const {
    require(count >= operands_, "Launches: as many addresses as operands");
    for (const Launch &one : launches_) launch(one, (Driver::Handle)stream, operands);
}

void Launches::launch(const Launch &one, Driver::Handle stream, const u64 *operands) const {
    Parameters parameters(one);
    for (size_t i = 0; i < one.operands.size(); ++i) parameters.set(i, address_of(one, i, operands));
    if (one.counters)
        check(driver_.fill(address_of(one, one.operands.size() - 1, operands), 0, one.counters, stream), one);
    Driver::Attribute attribute{PROGRAMMATIC_STREAM_SERIALIZATION, {}, 1, {}};
    const Driver::Config config{
        {one.grid[0], one.grid[1], 1}, {one.threads, 1, 1}, one.shared, stream, &attribute, one.early ? 1u : 0u};
    check(driver_.launch(&config, one.function, parameters.pointers(), nullptr), one);
}

void Launches::repeat(u64 stream, OfStream *own, const u64 *operands, size_t count) const {
    require(count >= operands_, "Launches: as many addresses as operands");
    if (own && !own->in_use.test_and_set(std::memory_order_acquire)) {
        struct Release {
            std::atomic_flag &flag;
            ~Release() { flag.clear(std::memory_order_release); }
        } release{own->in_use};
        if (launch_graph(*own, (Driver::Handle)stream, operands)) return;
    }
    launch(stream, operands, count);  // one by one, so that an error names the kernel that failed
}

bool Launches::launch_graph(OfStream &own, Driver::Handle stream, const u64 *operands) const {
    Driver::Handle context = nullptr;  // without a context, the driver's functions for graphs crash
    driver_.get_context(&context);
    check(context ? 0 : INVALID_CONTEXT, launches_.front());
    if (own.calls <= FIRST_CALLS && own.calls++ == FIRST_CALLS)
        own.graph = std::make_unique<LaunchGraph>(driver_, launches_, operands);
    if (!own.graph || !own.graph->ready()) return false;
    if (own.graph->launch(stream, operands) == 0) return true;
    own.graph.reset();
    own.calls = 0;
    return false;
}

Launches::OfStream *Launches::of_stream(u64 stream) {
    if (!graphs_) return nullptr;
    for (OfStream &one : streams_)
        if (one.stream == stream) return &one;
    if (streams_.size() == MOST_STREAMS) return nullptr;
    streams_.emplace_back();  // streams_ is a deque, so that entries do not move
    streams_.back().stream = stream;
    return &streams_.back();
}

void Launches::check(Driver::Status status, const Launch &one) const {
    if (status == 0) return;
    const char *name = nullptr, *text = nullptr;
    driver_.error_name(status, &name);
    driver_.error_text(status, &text);
    const std::string message = one.kernel + ": " + (name ? name : "CUDA error " + std::to_string(status)) +
                                (text ? ", " : "") + (text ? text : "");
    if (status == INVALID_CONTEXT) throw NoContext(message);
    throw DriverError(message);
}

// ---- graphs ----

LaunchGraph::LaunchGraph(const Driver &driver, const std::vector<Launch> &launches, const u64 *operands)
    : driver_(driver), launches_(launches) {
    int mode = RELAXED;
    if (driver_.get_context(&context_) != 0 || driver_.capture_mode(&mode) != 0) return;
    Driver::Handle exec = nullptr;
    if (build(operands) == 0 && driver_.instantiate(&exec, graph_, 0) == 0) exec_ = exec;
    driver_.capture_mode(&mode);
}

LaunchGraph::~LaunchGraph() {
    Driver::Handle current = nullptr;
    if (!graph_ || driver_.get_context(&current) != 0 || driver_.set_context(context_) != 0) return;  // CUDA has ended
    if (exec_) driver_.destroy_exec(exec_);
    driver_.destroy_graph(graph_);
    driver_.set_context(current);
}

Driver::Status LaunchGraph::build(const u64 *operands) {
    Driver::Status status = driver_.create_graph(&graph_, 0);
    for (const Launch &one : launches_) {
        if (status != 0) break;
        Parameters parameters(one);
        for (size_t i = 0; i < one.operands.size(); ++i) {
            addresses_.push_back(address_of(one, i, operands));
            parameters.set(i, addresses_.back());
        }
        const Driver::KernelNode node = node_of(one, parameters);
        Driver::Handle added = nullptr;
        status = driver_.add_kernel(&added, graph_, nullptr, 0, &node);
        if (status == 0 && !nodes_.empty()) {
            const Driver::Edge early{PROGRAMMATIC, 0, PROGRAMMATIC, {}}, complete{};
            status = driver_.add_edges(graph_, &nodes_.back(), &added, one.early ? &early : &complete, 1);
        }
        nodes_.push_back(added);
    }
    return status;
}

Driver::Status LaunchGraph::launch(Driver::Handle stream, const u64 *operands) {
    u64 *set = addresses_.data();
    for (size_t k = 0; k < launches_.size(); ++k) {
        const Launch &one = launches_[k];
        bool same = true;
        for (size_t i = 0; i < one.operands.size(); ++i) same &= set[i] == address_of(one, i, operands);
        if (!same) {
            Parameters parameters(one);
            for (size_t i = 0; i < one.operands.size(); ++i) {
                set[i] = address_of(one, i, operands);
                parameters.set(i, set[i]);
            }
            const Driver::KernelNode node = node_of(one, parameters);
            const Driver::Status status = driver_.set_kernel(exec_, nodes_[k], &node);
            if (status != 0) return status;
        }
        set += one.operands.size();
    }
    return driver_.launch_graph(exec_, stream);
}

}  // namespace pg
