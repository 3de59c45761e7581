// A fiber: a stack and a place to go on from. Switching saves the registers that a call preserves.
// The sanitizers are told of every switch: ThreadSanitizer takes each fiber for a thread of its own.
#pragma once
#include <stddef.h>

#if defined(CUDASIM_THREAD_SANITIZER)
extern "C" {
void *__tsan_get_current_fiber();
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_set_fiber_name(void *fiber, const char *name);
void __tsan_acquire(void *address);
void __tsan_release(void *address);
void __tsan_read_range(void *address, unsigned long size);
void __tsan_write_range(void *address, unsigned long size);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
}
#elif defined(CUDASIM_ADDRESS_SANITIZER)
extern "C" {
void __sanitizer_start_switch_fiber(void **fake_stack, const void *bottom, size_t size);
void __sanitizer_finish_switch_fiber(void *fake_stack, const void **bottom, size_t *size);
void __asan_poison_memory_region(const volatile void *address, size_t size);
void __asan_unpoison_memory_region(const volatile void *address, size_t size);
}
#endif

#if !defined(__x86_64__) || defined(CUDASIM_UCONTEXT)
#define CUDASIM_USES_UCONTEXT 1
#include <ucontext.h>
#endif

namespace sim {

// ---- what the sanitizers want to know; nothing without them ----

#if defined(CUDASIM_THREAD_SANITIZER)
constexpr bool kWatched = true;  // by ThreadSanitizer
inline void happens_before(const volatile void *token) { __tsan_release(const_cast<void *>(token)); }
inline void happens_after(const volatile void *token) { __tsan_acquire(const_cast<void *>(token)); }
inline void note_read(const void *p, size_t n) { __tsan_read_range(const_cast<void *>(p), n); }
inline void note_write(void *p, size_t n) { __tsan_write_range(p, n); }
#else
constexpr bool kWatched = false;
inline void happens_before(const volatile void *) {}
inline void happens_after(const volatile void *) {}
inline void note_read(const void *, size_t) {}
inline void note_write(void *, size_t) {}
#endif

// While one of these lives, ThreadSanitizer disregards what it would see of the runtime's own work: malloc, free and
// memmove. None lives across a switch.
class Quiet {
  public:
#if defined(CUDASIM_THREAD_SANITIZER)
    Quiet() {
        if (depth_++ == 0) AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
    ~Quiet() {
        if (--depth_ == 0) AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    }
    static void leave_all() {
        if (depth_) AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        depth_ = 0;
    }

  private:
    static unsigned depth_;
#else
    Quiet() {}
    ~Quiet() {}
    static void leave_all() {}
#endif
};

#if defined(CUDASIM_ADDRESS_SANITIZER)
inline void forbid(const void *p, size_t n) { __asan_poison_memory_region(p, n); }
inline void allow(const void *p, size_t n) { __asan_unpoison_memory_region(p, n); }
#else
inline void forbid(const void *, size_t) {}
inline void allow(const void *, size_t) {}
#endif

// ---- fibers ----

class Fiber {
  public:
    Fiber() = default;
    Fiber(const Fiber &) = delete;
    Fiber &operator=(const Fiber &) = delete;
    ~Fiber() { release(); }

    void adopt_caller();  // this object stands for the code that runs now, on its own stack
    // The next switch to this fiber starts entry(), which must never return.
    void prepare(void (*entry)());
    void set_name(const char *name);  // for reports
    // It was given up in the middle of its entry. What it did happens before whoever acquires the token.
    void give_up(const void *token);

    bool overran_to(const void *address) const;  // into the guard page below its stack

    static void jump(Fiber &from, Fiber &to);

    // A fence: what this fiber did so far can be handed on, by release_fenced(), whatever it does in between.
    void fence();
    void release_fenced(const volatile void *address);

  private:
    void release();
    void landed();
    static void start();

    char *stack_ = nullptr;
    void (*entry_)() = nullptr;
    void *tsan_ = nullptr;
    void *fenced_ =
        nullptr;  // to ThreadSanitizer a thread of its own, which knows what this one knew at its last fence
    char fence_token_;
    // Where AddressSanitizer believes the stack to be (found out for an adopted one).
    void *fake_stack_ = nullptr;
    const void *bottom_ = nullptr;
    size_t size_ = 0;
#ifdef CUDASIM_USES_UCONTEXT
    ucontext_t context_;
#else
    void *stack_pointer_ = nullptr;
#endif
};

}  // namespace sim
