// Launches of a GPU's kernels that are ready but for the addresses of their operands. Addresses of the driver's
// functions come from the caller: nothing of CUDA is included or linked.
#pragma once
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "array.hpp"

namespace pg {

// Functions of libcuda. Source: cuda.h, whose binary interface stays the same
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
    unsigned counters;  // 32-bit words at the last operand that are set to 0 before
    // It may start before the work before it on the stream has ended, for which it waits by itself
    // (griddepcontrol.wait).
    bool early;
    std::vector<unsigned> operands;  // the number of the operand at each address
    std::vector<u64> offsets;        // bytes from the beginning of each operand
    std::string parameters;
};

struct DriverError : std::runtime_error {
    using std::runtime_error::runtime_error;
};
// This thread has not worked on the GPU before: nothing was launched.
struct NoContext : DriverError {
    using DriverError::DriverError;
};

class Launches {
  public:
    static constexpr size_t MAX_BYTES = 4096;  // of parameters; CUDA takes no more on any card

    Launches(const Driver &driver, std::vector<Launch> launches);

    // All of them, in their order. Throws NoContext or DriverError where the driver refuses one.
    void launch(u64 stream, const u64 *operands, size_t count) const;

  private:
    void launch(const Launch &launch, Driver::Handle stream, const u64 *operands) const;
    void check(Driver::Status status, const Launch &launch) const;

    Driver driver_;
    std::vector<Launch> launches_;
    size_t operands_ = 0;  // that a call needs
};

}  // namespace pg
