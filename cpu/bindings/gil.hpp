// Python's global lock (GIL), given away for long work and taken back; Python's signals.
#pragma once
#include <nanobind/nanobind.h>
#include <unistd.h>

#include "threads.hpp"

namespace pg {

// Runs `take`, which waits for the GIL. A thread that asks for it once the interpreter has ended never gets it:
// Python 3.14 puts such a thread to sleep, older ones end it by pthread_exit, which unwinds its stack as an
// exception does. The unwinding would meet destructors, functions that are noexcept, and rows of the call that
// other threads still work on. So the thread sleeps here, until the process ends.
template <class F> auto take_gil(const F &take) {
    try {
        return take();
    } catch (...) {
        for (;;) pause();
    }
}

// The GIL is another thread's to take while this object lives.
class GilReleased {
  public:
    GilReleased() : state_(PyEval_SaveThread()) {}
    GilReleased(const GilReleased &) = delete;
    ~GilReleased() {
        take_gil([this] { PyEval_RestoreThread(state_); });
    }

  private:
    PyThreadState *state_;
};

// Where the core's calls come from.
class Python final : public Caller {
  public:
    void without_lock(const std::function<void()> &work) const override {
        GilReleased released;
        work();
    }
    bool signal_raised() const override {
        PyGILState_STATE state = take_gil(PyGILState_Ensure);
        bool raised = PyErr_CheckSignals() != 0;
        PyGILState_Release(state);
        return raised;
    }
    void throw_raised() const override { throw nanobind::python_error(); }
};

}  // namespace pg
