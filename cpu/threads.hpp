// Work on many rows: threads, interruption, scratch memory; and what the core needs from its caller.
#pragma once
#include <cstddef>
#include <functional>
#include <new>

namespace pg {

// The system cannot provide `bytes` bytes of memory.
struct OutOfMemory : std::bad_alloc {
    explicit OutOfMemory(size_t count) : bytes(count) {}
    const char *what() const noexcept override { return "out of memory"; }
    const size_t bytes;
};

// What for_each_row() passes to the function that works on a row.
struct Worker {
    const int *stop;                    // for stopped(): the caller was interrupted, or another row failed
    void *scratch(size_t bytes) const;  // page-aligned memory of this thread, valid until its next request
};

// The caller of the core. This default caller has no lock and no signals. The bindings override the functions, and hold
// Python's lock when they call the core.
class Caller {
  public:
    // Releases the caller's lock while the work runs.
    virtual void without_lock(const std::function<void()> &work) const { work(); }
    // Handles signals; called without the lock. Returns whether a handler raised.
    virtual bool signal_raised() const { return false; }
    // Throws what the handler raised. Called with the lock held, on the thread that handled the signal.
    virtual void throw_raised() const {}

  protected:
    ~Caller() = default;
};

// Must be called before the first call of the core. The object must live until the process ends.
void set_caller(const Caller &caller);

// Calls body(row, worker) once for each row, on several threads if the work pays for them. Must be called with the
// caller's lock held. If the work is estimated at 20 us or more, the lock is released meanwhile, and signals are
// handled about every 50 ms. Throws what a body threw, or what a signal handler raised; the rows are then unspecified.
void for_each_row(size_t rows, double seconds_per_row, const std::function<void(size_t, const Worker &)> &body);

void set_num_threads(int count);
int num_threads();

}  // namespace pg
