#include "fiber.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef CUDASIM_USES_UCONTEXT
// void sim_switch_stack(void **save, void *load): pushes the registers that a call preserves, swaps stacks.
extern "C" void sim_switch_stack(void **save, void *load);
asm(R"(
    .text
    .p2align 4
    .globl sim_switch_stack
    .hidden sim_switch_stack
    .type sim_switch_stack, @function
sim_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size sim_switch_stack, .-sim_switch_stack
)");
#endif

namespace sim {

static constexpr size_t kStackBytes = 256 << 10, kGuardBytes = 4096;

#ifdef CUDASIM_THREAD_SANITIZER
unsigned Quiet::depth_;
#endif

static Fiber *departed;  // who switched last
static Fiber *arriving;  // to whom

void Fiber::adopt_caller() {
#ifdef CUDASIM_THREAD_SANITIZER
    tsan_ = __tsan_get_current_fiber();
#endif
}

void Fiber::prepare(void (*entry)()) {
    if (!stack_) {
        // The lowest page allows no access: a stack that runs over faults instead of corrupting its neighbour.
        void *memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            perror("cudasim: no memory for the stack of a CUDA thread");
            abort();
        }
        mprotect(memory, kGuardBytes, PROT_NONE);
        stack_ = static_cast<char *>(memory) + kGuardBytes;
    }
    allow(stack_, kStackBytes);  // frames of a kernel that was given up may still be marked
    entry_ = entry;
    bottom_ = stack_;
    size_ = kStackBytes;
    fake_stack_ = nullptr;
#ifdef CUDASIM_THREAD_SANITIZER
    if (!tsan_) tsan_ = __tsan_create_fiber(0);
#endif
#ifdef CUDASIM_USES_UCONTEXT
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_;
    context_.uc_stack.ss_size = kStackBytes;
    context_.uc_link = nullptr;
    makecontext(&context_, &Fiber::start, 0);
#else
    // Six registers, the address to return to, and padding: on entry the stack pointer is 8 past a multiple of 16.
    void **top = reinterpret_cast<void **>(stack_ + kStackBytes) - 8;
    memset(top, 0, 8 * sizeof *top);
    top[6] = reinterpret_cast<void *>(&Fiber::start);
    stack_pointer_ = top;
#endif
}

#ifdef CUDASIM_THREAD_SANITIZER

// Speaks to ThreadSanitizer in the name of another fiber.
template <class Action> static void as_fiber(void *fiber, Action action) {
    void *self = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber, 1);
    action();
    __tsan_switch_to_fiber(self, 1);
}

void Fiber::set_name(const char *name) { __tsan_set_fiber_name(tsan_, name); }

void Fiber::give_up(const void *token) {
    // ThreadSanitizer believes it to be deep in calls that will never return: a new one takes its place.
    if (!tsan_) return;
    as_fiber(tsan_, [=] { happens_before(token); });
    release();
}

void Fiber::fence() {
    if (!fenced_) fenced_ = __tsan_create_fiber(0);
    happens_before(&fence_token_);
    as_fiber(fenced_, [this] { happens_after(&fence_token_); });
}

void Fiber::release_fenced(const volatile void *address) {
    as_fiber(fenced_, [=] { happens_before(address); });
}

#else

void Fiber::set_name(const char *) {}
void Fiber::give_up(const void *) {}
void Fiber::fence() {}
void Fiber::release_fenced(const volatile void *) {}

#endif

void Fiber::release() {
    if (!stack_) return;
#ifdef CUDASIM_THREAD_SANITIZER
    __tsan_destroy_fiber(tsan_);
    if (fenced_) __tsan_destroy_fiber(fenced_);
    tsan_ = fenced_ = nullptr;
#endif
    allow(stack_, kStackBytes);
    munmap(stack_ - kGuardBytes, kGuardBytes + kStackBytes);
    stack_ = nullptr;
}

bool Fiber::overran_to(const void *address) const {
    const char *p = static_cast<const char *>(address);
    return stack_ && p >= stack_ - kGuardBytes && p < stack_;
}

void Fiber::landed() {
#ifdef CUDASIM_ADDRESS_SANITIZER
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(fake_stack_, &bottom, &size);
    departed->bottom_ = bottom;
    departed->size_ = size;
#endif
}

void Fiber::start() {
    arriving->landed();
    arriving->entry_();
    abort();
}

void Fiber::jump(Fiber &from, Fiber &to) {
    departed = &from;
    arriving = &to;
#if defined(CUDASIM_THREAD_SANITIZER)
    __tsan_switch_to_fiber(to.tsan_, 1);  // 1: a switch orders nothing
#elif defined(CUDASIM_ADDRESS_SANITIZER)
    __sanitizer_start_switch_fiber(&from.fake_stack_, to.bottom_, to.size_);
#endif
#ifdef CUDASIM_USES_UCONTEXT
    swapcontext(&from.context_, &to.context_);
#else
    sim_switch_stack(&from.stack_pointer_, to.stack_pointer_);
#endif
    from.landed();
}

}  // namespace sim
