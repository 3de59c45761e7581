// Releases Python's global lock (GIL) for long work, takes it back, and handles Python's signals.
#pragma once
#include <nanobind/nanobind.h>
#include <unistd.h>

#include "threads.hpp"

namespace pg {

// Runs `take`, which waits for the GIL. A thread that asks for the GIL after the interpreter has ended never gets it.
// Python 3.14 puts such a thread to sleep. Older versions end it by pthread_exit, which unwinds its stack as an
// exception does. The unwinding would call destructors, go through noexcept functions, and leave a call of the core
// while other threads still work on the call's rows. So the thread sleeps here until the process ends.
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

    // Takes the GIL, calls f and returns its result. Must be called while this thread has a GilReleased.
    // PyGILState_Ensure is not used: after the interpreter has ended it crashes, since it looks up the thread's state
    // in memory that is freed.
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
