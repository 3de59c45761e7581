// Releases Python's global lock (GIL) for long work, takes it back, and handles Python's signals.
#pragma once
#include <nanobind/nanobind.h>
#include <unistd.h>

#include "threads.hpp"

namespace pg {

// Runs `take`, which waits for the GIL. After the interpreter has ended, no thread gets the GIL. Python 3.14 puts the
// thread to sleep. Older versions call pthread_exit, which unwinds the stack like an exception, through noexcept
// functions and through calls of the core whose rows other threads still compute. Here the unwinding ends, and the
// thread sleeps until the process ends.
template <class F> auto take_gil(const F &take) {
    try {
        return take();
    } catch (...) {
        for (;;) pause();
    }
}

// Releases the GIL for the life of this object, except during `with_gil`.
class GilReleased {
  public:
    GilReleased() { release(), of_thread_ = this; }
    GilReleased(const GilReleased &) = delete;
    ~GilReleased() { of_thread_ = nullptr, take(); }

    // Takes the GIL, calls f and returns the result of f. Must be called while this thread has a GilReleased.
    // PyGILState_Ensure would crash after the interpreter has ended, because it reads freed memory.
    template <class F> static auto with_gil(const F &f) {
        of_thread_->take();
        const auto found = f();
        of_thread_->release();
        return found;
    }

  private:
    void release() { state_ = PyEval_SaveThread(); }
    void take() {
        take_gil([this] { PyEval_RestoreThread(state_); });
    }
    PyThreadState *state_;
    static inline thread_local GilReleased *of_thread_ = nullptr;
};

// Python as the caller of the core.
class Python final : public Caller {
  public:
    void without_lock(const std::function<void()> &work) const override {
        GilReleased released;
        work();
    }
    bool signal_raised() const override {
        return GilReleased::with_gil([] { return PyErr_CheckSignals() != 0; });
    }
    void throw_raised() const override { throw nanobind::python_error(); }
};

}  // namespace pg
