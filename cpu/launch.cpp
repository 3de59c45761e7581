#include "launch.hpp"

#include <algorithm>
#include <cstring>

namespace pg {
namespace {

constexpr Driver::Status INVALID_CONTEXT = 201;       // of CUresult
constexpr int PROGRAMMATIC_STREAM_SERIALIZATION = 6;  // of CUlaunchAttributeID
static_assert(sizeof(Driver::Attribute) == 72 && sizeof(Driver::Config) == 56, "as in cuda.h");

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
}

void Launches::launch(u64 stream, const u64 *operands, size_t count) const {
    require(count >= operands_, "Launches: as many addresses as operands");
    for (const Launch &one : launches_) launch(one, (Driver::Handle)stream, operands);
}

void Launches::launch(const Launch &one, Driver::Handle stream, const u64 *operands) const {
    alignas(16) char bytes[MAX_BYTES];
    std::memcpy(bytes, one.parameters.data(), one.parameters.size());
    for (size_t i = 0; i < one.operands.size(); ++i) {
        const u64 address = operands[one.operands[i]] + one.offsets[i];
        std::memcpy(bytes + 8 * i, &address, 8);
    }
    if (one.counters) {
        const u64 at = operands[one.operands.back()] + one.offsets.back();
        check(driver_.fill(at, 0, one.counters, stream), one);
    }
    Driver::Attribute attribute{PROGRAMMATIC_STREAM_SERIALIZATION, {}, 1, {}};
    const Driver::Config config{
        {one.grid[0], one.grid[1], 1}, {one.threads, 1, 1}, one.shared, stream, &attribute, one.early ? 1u : 0u};
    void *parameters[] = {bytes};
    check(driver_.launch(&config, one.function, parameters, nullptr), one);
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

}  // namespace pg
