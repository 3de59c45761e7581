// Python's global lock (GIL), given away for long work and taken back.
#pragma once
#include <Python.h>
#include <unistd.h>

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

}  // namespace pg
