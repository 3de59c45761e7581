#include "available.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace pg {
namespace {

// Reads the number after `key` in the first line of file folder/name that begins with `key`. Returns false if the file,
// the line or the number is missing. Must not allocate: pool.cpp calls this function while it frees memory.
bool number_in(const char *folder, const char *name, const char *key, size_t &number) {
    char path[512], text[8192];
    if (std::snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return false;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    size_t size = 0;
    for (ssize_t got; (got = read(file, text + size, sizeof text - 1 - size)) > 0;) size += (size_t)got;
    close(file);
    text[size] = 0;
    for (const char *line = text; line; line = std::strchr(line, '\n')) {
        line += *line == '\n';
        if (std::strncmp(line, key, std::strlen(key))) continue;
        const char *begin = line + std::strlen(key);
        begin += std::strspn(begin, " \t");
        if (*begin < '0' || *begin > '9') return false;  // such a file may also say "max"
        number = std::strtoull(begin, nullptr, 10);
        return true;
    }
    return false;
}

size_t less(size_t limit, size_t held) { return limit > held ? limit - held : 0; }

}  // namespace

size_t available_memory(const char *proc, const char *cgroup) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t available = (size_t)sysconf(_SC_PHYS_PAGES) * page, limit = 0, held = 0, files = 0;
    if (number_in(proc, "meminfo", "MemAvailable:", limit)) available = std::min(available, limit * 1024);
    if (number_in(cgroup, "memory.max", "", limit)) {
        // The system can take back inactive pages of files.
        if (number_in(cgroup, "memory.current", "", held) && number_in(cgroup, "memory.stat", "inactive_file ", files))
            held = less(held, files);
        else held = 0;
        available = std::min(available, less(limit, held));
    }
    rlimit addresses{};
    if (getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY &&
        number_in(proc, "self/statm", "", held))
        available = std::min(available, less((size_t)addresses.rlim_cur, held * page));
    return available;
}

}  // namespace pg
