// How much memory this process can still get from the system.
#pragma once
#include <cstddef>

namespace pg {

// Returns how many bytes the machine has left, or fewer if a container (cgroup v2) or this process (ulimit -v) has a
// lower limit. Takes about 0.1 ms. proc, cgroup: folders to read; only tests pass other folders.
size_t available_memory(const char *proc = "/proc", const char *cgroup = "/sys/fs/cgroup");

}  // namespace pg
