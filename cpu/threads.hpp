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

// What is passed to the work on a row.
struct Worker {
    const int *stop;                    // for stopped(): the caller was interrupted, or another row failed
    void *scratch(size_t bytes) const;  // page-aligned memory of this thread, valid until its next request
};

// The caller of the core. An interpreter has a lock, which its calls hold, and signals to handle; this default caller
// has neither.
class Caller {
  public:
    // Runs the work with the lock released.
    virtual void without_lock(const std::function<void()> &work) const { work(); }
    // Handles signals; called without the lock. Returns whether a handler raised.
    virtual bool signal_raised() const { return false; }
    // Throws what the handler raised; called with the lock, on the thread that handled the signal.
    virtual void throw_raised() const {}

  protected:
    ~Caller() = default;
};

// Must be called before the first call of the core. The object must live until the process ends.
void set_caller(const Caller &caller);

// Runs body(0) ... body(rows - 1), each once, on as many threads as the work pays for. Must be called with the caller's
// lock held. While the bodies run, this function releases the lock, unless the work takes less than 20 us, and handles
// signals about every 50 ms. Throws what a signal handler raised (the rows are then unspecified) and what a body threw.
// Afterwards the threads of the pool wait for the next call; a child of fork() makes threads of its own.
void for_each_row(size_t rows, double seconds_per_row, const std::function<void(size_t, const Worker &)> &body);

void set_num_threads(int count);
int num_threads();

}  // namespace pg
