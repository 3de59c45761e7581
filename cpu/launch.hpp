// Launches of GPU kernels, prepared except for the addresses of their operands. The caller passes the addresses of the
// driver's functions, so that nothing of CUDA is included or linked.
#pragma once
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

    Status (*launch)(const Config *, Handle function, void **parameters, void **extra);  // cuLaunchKernelEx
    Status (*fill)(u64 address, unsigned word, size_t words, Handle stream);             // cuMemsetD32Async
    Status (*error_name)(Status, const char **);                                         // cuGetErrorName
    Status (*error_text)(Status, const char **);                                         // cuGetErrorString
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

class Launches {
  public:
    static constexpr size_t MAX_BYTES = 4096;  // of parameters; every GPU takes as many

    Launches(const Driver &driver, std::vector<Launch> launches);

    // Launches all kernels in order. Throws NoContext or DriverError where the driver refuses one.
    void launch(u64 stream, const u64 *operands, size_t count) const;

  private:
    void launch(const Launch &launch, Driver::Handle stream, const u64 *operands) const;
    void check(Driver::Status status, const Launch &launch) const;

    Driver driver_;
    std::vector<Launch> launches_;
    size_t operands_ = 0;  // how many a call must pass
};

}  // namespace pg
