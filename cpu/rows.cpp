#include "rows.hpp"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace pg {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<int> threads_allowed{1};

constexpr double THREAD_PAYS = 100e-6;  // seconds of work for which a thread is worth starting (about 30 us)
constexpr double SHORT_CALL = 20e-6;    // seconds of work for which giving the GIL away does not pay
constexpr double LONG_ROW = 50e-3;      // rows longer than this leave the calling thread free to answer signals
constexpr auto SIGNAL_PERIOD = std::chrono::milliseconds(50);
constexpr size_t SCRATCH_KEPT = 16u << 20;  // bytes a thread keeps between calls

struct Free {
    void operator()(void *p) const { std::free(p); }
};
struct Scratch {
    std::unique_ptr<void, Free> memory;
    size_t size = 0;
    void *ensure(size_t bytes) {
        if (bytes > size) {
            memory.reset();
            size = (bytes + 63) / 64 * 64;
            memory.reset(std::aligned_alloc(64, size));
            if (!memory) {
                size = 0;
                throw std::bad_alloc();
            }
        }
        return memory.get();
    }
    void trim() {
        if (size > SCRATCH_KEPT) memory.reset(), size = 0;
    }
};
thread_local Scratch scratch_of_thread;

struct GilReleased {
    PyThreadState *state = PyEval_SaveThread();
    ~GilReleased() { PyEval_RestoreThread(state); }
};

// True when a handler raised: the Python error is then set.
bool signal_raised() {
    PyGILState_STATE state = PyGILState_Ensure();
    bool raised = PyErr_CheckSignals() != 0;
    PyGILState_Release(state);
    return raised;
}

struct Call {
    Call(size_t count, const std::function<void(size_t, const Worker &)> &work_on_row)
        : rows(count), body(work_on_row) {}
    const size_t rows;
    const std::function<void(size_t, const Worker &)> &body;
    std::atomic<size_t> next{0};
    int stop = 0;
    std::mutex mutex;
    std::condition_variable finished;
    int running = 0;
    std::exception_ptr failure;

    bool stopped() const { return __atomic_load_n(&stop, __ATOMIC_RELAXED); }
    void request_stop() { __atomic_store_n(&stop, 1, __ATOMIC_RELAXED); }

    void work(bool answers_signals, bool &interrupted) {
        const Worker worker{&stop};
        auto checked = Clock::now();
        try {
            for (size_t i; !stopped() && (i = next.fetch_add(1)) < rows;) {
                body(i, worker);
                if (answers_signals && i + 1 < rows && Clock::now() - checked > SIGNAL_PERIOD) {
                    if (signal_raised()) interrupted = true, request_stop();
                    checked = Clock::now();
                }
            }
        } catch (...) {
            request_stop();
            std::lock_guard<std::mutex> lock(mutex);
            failure = std::current_exception();
        }
        scratch_of_thread.trim();
    }
};

}  // namespace

void *Worker::scratch(size_t bytes) const { return scratch_of_thread.ensure(bytes); }

void set_num_threads(int count) { threads_allowed = std::max(1, count); }
int num_threads() { return threads_allowed; }

void for_each_row(size_t rows, double seconds_per_row, const std::function<void(size_t, const Worker &)> &body) {
    const double seconds = rows * seconds_per_row;
    if (seconds < SHORT_CALL) {
        const int never = 0;
        for (size_t i = 0; i < rows; ++i) body(i, {&never});
        return;
    }
    const double paying = std::min(1e6, seconds / THREAD_PAYS);
    const size_t workers = std::max<size_t>(1, std::min({rows, (size_t)threads_allowed.load(), (size_t)paying}));
    const bool caller_waits = seconds_per_row > LONG_ROW;
    Call call(rows, body);
    bool interrupted = false;
    {
        GilReleased released;
        std::vector<std::thread> threads;
        threads.reserve(workers - !caller_waits);
        for (size_t k = caller_waits ? 0 : 1; k < workers; ++k) {
            {
                std::lock_guard<std::mutex> lock(call.mutex);
                ++call.running;
            }
            try {
                threads.emplace_back([&call] {
                    bool unused;
                    call.work(false, unused);
                    std::lock_guard<std::mutex> lock(call.mutex);
                    --call.running;
                    call.finished.notify_one();
                });
            } catch (const std::system_error &) {  // no thread to be had: fewer do the work
                std::lock_guard<std::mutex> lock(call.mutex);
                --call.running;
                break;
            }
        }
        if (!caller_waits || threads.empty()) call.work(true, interrupted);
        if (!threads.empty()) {
            std::unique_lock<std::mutex> lock(call.mutex);
            while (!call.finished.wait_for(lock, SIGNAL_PERIOD, [&call] { return call.running == 0; })) {
                if (interrupted) continue;
                lock.unlock();
                if (signal_raised()) interrupted = true, call.request_stop();
                lock.lock();
            }
            lock.unlock();
            for (auto &thread : threads) thread.join();
        }
    }
    if (interrupted) throw nanobind::python_error();
    if (call.failure) std::rethrow_exception(call.failure);
}

}  // namespace pg
