// Makes Launches from Python's description of them, in which handles and addresses are ints.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "gil.hpp"
#include "launch.hpp"

namespace pg {

template <class F> void set_function(F &function, const nanobind::dict &addresses, const char *name) {
    function = (F)nanobind::cast<uintptr_t>(addresses[name]);
}

// functions: addresses by name. launches: (kernel, function, grid, threads, shared, counters, early, operands, offsets,
// parameters)
inline void make_launches(Launches *self, const nanobind::dict &functions, const nanobind::list &launches) {
    Driver driver;
    set_function(driver.launch, functions, "cuLaunchKernelEx");
    set_function(driver.fill, functions, "cuMemsetD32Async");
    set_function(driver.error_name, functions, "cuGetErrorName");
    set_function(driver.error_text, functions, "cuGetErrorString");
    std::vector<Launch> ready;
    for (nanobind::handle item : launches) {
        const nanobind::tuple fields = nanobind::cast<nanobind::tuple>(item), grid(fields[2]);
        const nanobind::bytes parameters = nanobind::cast<nanobind::bytes>(fields[9]);
        ready.push_back({nanobind::cast<std::string>(fields[0]),
                         (Driver::Handle)nanobind::cast<uintptr_t>(fields[1]),
                         {nanobind::cast<unsigned>(grid[0]), nanobind::cast<unsigned>(grid[1])},
                         nanobind::cast<unsigned>(fields[3]),
                         nanobind::cast<unsigned>(fields[4]),
                         nanobind::cast<unsigned>(fields[5]),
                         nanobind::cast<bool>(fields[6]),
                         nanobind::cast<std::vector<unsigned>>(fields[7]),
                         nanobind::cast<std::vector<u64>>(fields[8]),
                         std::string(parameters.c_str(), parameters.size())});
    }
    new (self) Launches(driver, std::move(ready));
}

// Releases the GIL, because the driver waits where its queue is full, perhaps for work that needs the GIL.
inline void launch(const Launches &self, u64 stream, const nanobind::args &operands) {
    u64 addresses[16];
    const size_t count = operands.size();
    if (count > 16) throw nanobind::value_error("launch: at most 16 operands");
    for (size_t i = 0; i < count; ++i) addresses[i] = nanobind::cast<u64>(operands[i]);
    GilReleased released;
    self.launch(stream, addresses, count);
}

}  // namespace pg
