// Values that are computed when they are first needed, once for all threads.
#pragma once
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace pg {

// A number of at least 1. fork() increases this number in the child, so that it differs from the number in the parent.
inline std::atomic<unsigned> fork_generation{1};
inline const int fork_generation_counts = pthread_atfork(nullptr, nullptr, [] { ++fork_generation; });

// The first thread that needs the value computes it, and others wait. A thread never sees a value before it is
// complete. A child of fork() does not wait for a thread of its parent: it computes the value anew.
template <class T> class Lazy {
  public:
    Lazy() = default;
    Lazy(const Lazy &) = delete;
    ~Lazy() { delete value_.load(); }

    template <class Make> const T &get(const Make &make) {
        for (;;) {
            if (const T *found = value_.load(std::memory_order_acquire)) return *found;
            const unsigned here = fork_generation;
            unsigned maker = maker_;
            if (maker == here) std::this_thread::sleep_for(std::chrono::microseconds(50));
            else if (maker_.compare_exchange_strong(maker, here)) break;
        }
        try {
            const T *const made = new T(make());
            value_.store(made, std::memory_order_release);
            return *made;
        } catch (...) {
            maker_ = 0;
            throw;
        }
    }

  private:
    std::atomic<const T *> value_{nullptr};
    std::atomic<unsigned> maker_{0};  // fork_generation of the thread that computes or computed the value, or 0
};

}  // namespace pg
