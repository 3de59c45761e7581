#include "threads.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "lazy.hpp"
#include "pool.hpp"

namespace pg {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<int> threads_allowed{1};

struct NoInterpreter final : Caller {};
const NoInterpreter no_interpreter;
const Caller *caller = &no_interpreter;

constexpr double THREAD_PAYS = 50e-6;  // seconds of work that are worth waking a thread, which takes about 20 us
constexpr double SHORT_CALL = 20e-6;   // seconds of work below which releasing the lock does not pay
constexpr double LONG_ROW = 50e-3;     // seconds; if rows take longer, the calling thread only handles signals
constexpr auto SIGNAL_PERIOD = std::chrono::milliseconds(50);
constexpr auto LAST_ROW = std::chrono::microseconds(30);  // time to spin: about as long as falling asleep and waking
constexpr size_t SCRATCH_KEPT = 16u << 20;                // bytes that a thread keeps between calls

// Scratch memory of one thread, mapped from the system. In the heap of malloc, freed blocks of changing sizes would
// leave gaps.
class Scratch {
  public:
    Scratch() = default;
    Scratch(const Scratch &) = delete;
    ~Scratch() { release(); }
    void *ensure(size_t bytes) {
        if (bytes > size_) {
            release();
            const auto map = [&] {
                return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            };
            void *memory = map();
            if (memory == MAP_FAILED) pool_release(), memory = map();
            if (memory == MAP_FAILED) throw OutOfMemory(bytes);
            memory_ = memory, size_ = bytes;
        }
        return memory_;
    }
    void trim() {
        if (size_ > SCRATCH_KEPT) release();
    }

  private:
    void release() {
        if (size_) munmap(memory_, size_);
        size_ = 0;
    }
    void *memory_ = nullptr;
    size_t size_ = 0;
};
thread_local Scratch scratch_of_thread;

struct Call {
    Call(size_t count, const std::function<void(size_t, const Worker &)> &work_on_row)
        : rows(count), body(work_on_row) {}
    const size_t rows;
    const std::function<void(size_t, const Worker &)> &body;
    std::atomic<size_t> next{0};
    int stop = 0;
    std::mutex mutex;
    std::condition_variable finished;
    std::atomic<int> running{0};
    std::exception_ptr failure;
    bool shared = false;  // whether other threads may join
    const unsigned generation = fork_generation;

    // Whether a signal handler called fork() during the call, and this process is the child. The child has no other
    // threads, so rows that they had begun stay unfinished.
    bool abandoned() const { return shared && fork_generation != generation; }
    bool stopped() const { return __atomic_load_n(&stop, __ATOMIC_RELAXED); }
    bool handed_out() const { return next >= rows || stopped(); }
    void request_stop() { __atomic_store_n(&stop, 1, __ATOMIC_RELAXED); }

    void work(bool answers_signals, bool &interrupted) {
        const Worker worker{&stop};
        auto checked = Clock::now();
        try {
            for (size_t i; !stopped() && (i = next.fetch_add(1)) < rows;) {
                body(i, worker);
                if (answers_signals && i + 1 < rows && Clock::now() - checked > SIGNAL_PERIOD) {
                    if (caller->signal_raised()) interrupted = true, request_stop();
                    if (abandoned()) request_stop();
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

    void join() {
        std::lock_guard<std::mutex> lock(mutex);
        ++running;
    }
    void leave() {
        std::lock_guard<std::mutex> lock(mutex);
        --running;
        finished.notify_one();
    }
};

// The cores on which threads may run. If the system cannot tell, all cores are treated as core 0.
#ifdef __linux__
using Cpus = cpu_set_t;
int current_cpu() { return sched_getcpu(); }
bool cpus_of_caller(Cpus &cpus) { return pthread_getaffinity_np(pthread_self(), sizeof cpus, &cpus) == 0; }
bool equal(const Cpus &a, const Cpus &b) { return CPU_EQUAL(&a, &b); }
Cpus without(Cpus cpus, int cpu) {
    CPU_CLR((size_t)cpu, &cpus);
    return cpus;
}
bool confine(pthread_t thread, const Cpus &to) { return pthread_setaffinity_np(thread, sizeof to, &to) == 0; }
#else
struct Cpus {};
int current_cpu() { return 0; }
bool cpus_of_caller(Cpus &) { return false; }
bool equal(const Cpus &, const Cpus &) { return true; }
Cpus without(Cpus cpus, int) { return cpus; }
bool confine(pthread_t, const Cpus &) { return false; }
#endif

// Threads that sleep between calls. A sleeping thread gets a core in microseconds. A new thread may wait milliseconds.
class Pool {
  public:
    // Returns the pool of this process. A child of fork() makes a new pool, because no thread of the parent exists in
    // the child.
    static Pool &get() {
        Pool *found = current_.load();
        if (!found) {
            auto made = std::make_unique<Pool>();
            if (current_.compare_exchange_strong(found, made.get())) found = made.release();
        }
        return *found;  // never destroyed: its threads end with the process
    }

    static void forget() { current_ = nullptr; }

    // Lets up to `wanted` threads of the pool join `call`, until close(call). Returns false if the pool has no thread
    // and cannot start one.
    bool open(Call &call, size_t wanted) {
        std::unique_lock<std::mutex> lock(mutex_);
        size_t offered = wanted;
        for (const Offer &offer : offers_) offered += offer.wanted;
        // The caller works too, so the pool needs one thread fewer than are allowed. A caller that only waits wants all
        // threads from the pool.
        const size_t most = std::max({(size_t)1, (size_t)threads_allowed.load() - 1, wanted});
        const int here = current_cpu();
        Cpus allowed{};
        const bool known = cpus_of_caller(allowed);
        while (threads_.size() < most && threads_.size() - working_ < offered && start(here, allowed)) {
        }
        for (Thread &thread : threads_)
            if (known && thread.cpu != WORKING) place(thread, here, allowed);
        if (threads_.empty()) return false;
        offers_.push_back({&call, wanted});
        lock.unlock();
        for (; wanted > 0; --wanted) offered_.notify_one();
        return true;
    }
    void close(Call &call) {
        std::lock_guard<std::mutex> lock(mutex_);
        for (size_t i = 0; i < offers_.size(); ++i)
            if (offers_[i].call == &call) return void(offers_.erase(offers_.begin() + (ptrdiff_t)i));
    }

  private:
    struct Offer {
        Call *call;
        size_t wanted;
    };
    static constexpr int WORKING = -1;
    struct Thread {
        pthread_t handle;
        int cpu;  // the core on which the thread fell asleep or was started, or WORKING
        Cpus allowed;
        bool confined;  // whether the thread may now use only some cores of `allowed`
    };
    // Returns false if the system starts no more threads.
    bool start(int here, const Cpus &allowed) {
        sigset_t all, before;  // signals are for the program's own threads
        sigfillset(&all);
        threads_.push_back({{}, here, allowed, false});
        pthread_sigmask(SIG_SETMASK, &all, &before);
        bool made = true;
        try {
            std::thread thread(&Pool::serve, this, std::ref(threads_.back()));
            threads_.back().handle = thread.native_handle();
            thread.detach();
        } catch (const std::exception &) {
            threads_.pop_back(), made = false;
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return made;
    }
    // On the caller's core, a woken thread would wait milliseconds for its turn, even with other cores idle. So the
    // thread wakes on another core. Later it may run on all cores of the caller.
    void place(Thread &thread, int here, const Cpus &allowed) {
        if (thread.cpu == here && confine(thread.handle, without(allowed, here))) thread.confined = true;
        else if (!thread.confined && !equal(thread.allowed, allowed)) confine(thread.handle, allowed);
        thread.allowed = allowed;
    }
    // Waits for an offer. Meanwhile one of the waiting threads trims the pool of results.
    void await_offer(std::unique_lock<std::mutex> &lock, Thread &own) {
        const auto offered = [this] { return !offers_.empty(); };
        own.cpu = current_cpu();
        if (watched_) return offered_.wait(lock, offered);
        watched_ = true;
        while (!offered_.wait_for(lock, pool_trim_period(), offered)) {
            lock.unlock();
            pool_trim();
            lock.lock();
            own.cpu = current_cpu();
        }
        watched_ = false;
    }
    void serve(Thread &own) {
        std::unique_lock<std::mutex> lock(mutex_);
        for (bool unused;;) {
            await_offer(lock, own);
            own.cpu = WORKING;
            if (own.confined) confine(own.handle, own.allowed), own.confined = false;
            Call &call = *offers_.front().call;
            if (--offers_.front().wanted == 0) offers_.erase(offers_.begin());
            call.join();
            ++working_;
            lock.unlock();
            call.work(false, unused);
            lock.lock();
            --working_;
            call.leave();
        }
    }

    static inline std::atomic<Pool *> current_{nullptr};
    std::mutex mutex_;
    std::condition_variable offered_;
    std::vector<Offer> offers_;
    std::deque<Thread> threads_;  // a deque, whose entries never move
    size_t working_ = 0;
    bool watched_ = false;  // whether a waiting thread looks for memory to give back
};

// The handler for fork is registered when the core is loaded. A static object inside a function would need a lock that
// another thread may hold at the moment of a fork.
const int registered = pthread_atfork(nullptr, nullptr, Pool::forget);

}  // namespace

void *Worker::scratch(size_t bytes) const { return scratch_of_thread.ensure(bytes); }

void set_caller(const Caller &calling) { caller = &calling; }

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
    caller->without_lock([&] {
        const auto wait_until = [&](const auto &done) {
            std::unique_lock<std::mutex> lock(call.mutex);
            while (!call.finished.wait_for(lock, SIGNAL_PERIOD, done)) {
                if (interrupted) continue;
                lock.unlock();
                if (caller->signal_raised()) interrupted = true, call.request_stop();
                if (call.abandoned()) return;  // a thread that is gone may hold the mutex
                lock.lock();
            }
        };
        const size_t wanted = workers - !caller_waits;
        const bool opened = call.shared = wanted > 0 && Pool::get().open(call, wanted);
        if (opened && caller_waits) wait_until([&] { return call.running == 0 && call.handed_out(); });
        else call.work(true, interrupted);
        if (opened && !call.abandoned()) {
            Pool::get().close(call);
            for (const auto began = Clock::now(); call.running && Clock::now() - began < LAST_ROW;) {
            }
            wait_until([&] { return call.running == 0; });
        }
    });
    if (interrupted) caller->throw_raised();
    if (call.abandoned())
        throw std::runtime_error(
            "a signal handler forked during this call, and the child lacks the threads that shared "
            "its work. Call it again in the child.");
    if (call.failure) std::rethrow_exception(call.failure);
}

}  // namespace pg
