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
    function = (F)(addresses.contains(name) ? nanobind::cast<uintptr_t>(addresses[name]) : 0);
}

// Initialises `self`. functions: addresses by name. launches: tuples (kernel, function, grid, threads, shared,
// counters, early, operands, offsets, parameters).
inline void make_launches(Launches *self, const nanobind::dict &functions, const nanobind::list &launches) {
    Driver driver;
    set_function(driver.launch, functions, "cuLaunchKernelEx");
    set_function(driver.fill, functions, "cuMemsetD32Async");
    set_function(driver.error_name, functions, "cuGetErrorName");
    set_function(driver.error_text, functions, "cuGetErrorString");
    set_function(driver.get_context, functions, "cuCtxGetCurrent");
    set_function(driver.set_context, functions, "cuCtxSetCurrent");
    set_function(driver.capture_mode, functions, "cuThreadExchangeStreamCaptureMode");
    set_function(driver.create_graph, functions, "cuGraphCreate");
    set_function(driver.add_kernel, functions, "cuGraphAddKernelNode_v2");
    set_function(driver.add_edges, functions, "cuGraphAddDependencies_v2");
    set_function(driver.instantiate, functions, "cuGraphInstantiateWithFlags");
    set_function(driver.set_kernel, functions, "cuGraphExecKernelNodeSetParams_v2");
    set_function(driver.launch_graph, functions, "cuGraphLaunch");
    set_function(driver.destroy_exec, functions, "cuGraphExecDestroy");
    set_function(driver.destroy_graph, functions, "cuGraphDestroy");
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

// Launches the kernels without the GIL: when its queue is full, the driver waits, perhaps for work that needs the GIL.
inline void launch(const Launches &self, u64 stream, const nanobind::args &operands) {
    const size_t count = operands.size();
    u64 few[16];
    std::vector<u64> many(count > 16 ? count : 0);
    u64 *const addresses = count > 16 ? many.data() : few;
    for (size_t i = 0; i < count; ++i) addresses[i] = nanobind::cast<u64>(operands[i]);
    GilReleased released;
    self.launch(stream, addresses, count);
}

// Names of attributes; make_names sets them while the module is imported.
inline PyObject *data_name = nullptr, *ptr_name = nullptr;
inline void make_names() {
    data_name = PyUnicode_InternFromString("data");
    ptr_name = PyUnicode_InternFromString("ptr");
    if (!data_name || !ptr_name) throw nanobind::python_error();
}

// Returns x.data.ptr of a CuPy array x.
inline u64 address_of(nanobind::handle x) {
    const nanobind::object memory = nanobind::steal(PyObject_GetAttr(x.ptr(), data_name));
    if (!memory.is_valid()) throw nanobind::python_error();
    const nanobind::object address = nanobind::steal(PyObject_GetAttr(memory.ptr(), ptr_name));
    if (!address.is_valid()) throw nanobind::python_error();
    return nanobind::cast<u64>(address);
}

// Launches the kernels of a record (cuda/records.py). room: the address of memory for temporary arrays. If the address
// of an operand or of the result is not a multiple of 16, launches nothing and returns false.
inline bool launch_on(Launches &self, u64 stream, const nanobind::tuple &operands, nanobind::handle result, u64 room) {
    const size_t arrays = operands.size(), count = arrays + 3;
    u64 few[16], bits = 0;
    std::vector<u64> many(count > 16 ? count : 0);
    u64 *const addresses = count > 16 ? many.data() : few;
    for (size_t i = 0; i < arrays; ++i) bits |= addresses[i] = address_of(operands[i]);
    bits |= addresses[arrays] = address_of(result);
    if (bits % 16) return false;
    addresses[arrays + 1] = 0;
    addresses[arrays + 2] = room;
    Launches::OfStream *const own = self.of_stream(stream);  // needs the GIL, which the next line releases
    GilReleased released;
    self.repeat(stream, own, addresses, count);
    return true;
}

}  // namespace pg
