#include "signals.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "scheduler.h"

namespace sim {

#if defined(CUDASIM_THREAD_SANITIZER) || defined(CUDASIM_ADDRESS_SANITIZER)
static constexpr bool kOwnFaults = false;  // the sanitizers report them, with the line
#else
static constexpr bool kOwnFaults = true;
#endif

static pthread_t launching;
static constexpr int kFaults[] = {SIGSEGV, SIGBUS, SIGFPE};

static void on_fault(int signal, siginfo_t *info, void *) {
    ThreadState *thread = self();
    if (!thread || !pthread_equal(pthread_self(), launching)) {  // not in a kernel: let it happen again, unhandled
        ::signal(signal, SIG_DFL);
        return;
    }
    if (signal == SIGFPE) fail("integer division by zero");
    if (thread->fiber.overran_to(info->si_addr)) fail("the stack of a CUDA thread overflowed");
    // A general protection fault carries no address: most often it is an aligned vector instruction.
    if (info->si_code == SI_KERNEL) fail("misaligned address of a vector access (or an impossible address)");
    fail("illegal address %p", info->si_addr);
}

static void on_timeout(int) {
    char text[256];
    const uint3 none = {0, 0, 0};
    const uint3 &t = current ? current->index : none, &b = current ? current->block->index : none;
    int length =
        snprintf(text, sizeof text,
                 "cudasim: a kernel runs for too long; now in thread (%u,%u,%u) of block (%u,%u,%u). A loop that "
                 "waits for other threads needs __nanosleep, an atomic or sim::load_acquire.\n",
                 t.x, t.y, t.z, b.x, b.y, b.z);
    if (write(STDERR_FILENO, text, size_t(length)) < 0) _exit(1);
    abort();
}

SignalWatch::SignalWatch() {
    launching = pthread_self();
    if (kOwnFaults) {
        // Faults are handled on a stack of their own: the fiber's may be the one that is full.
        static char stack[64 << 10];
        stack_t own = {};
        own.ss_sp = stack;
        own.ss_size = sizeof stack;
        sigaltstack(&own, &former_stack_);
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // NODEFER: fail() leaves the handler for good
        for (size_t i = 0; i < 3; i++) sigaction(kFaults[i], &action, &former_[i]);
    }
    const char *limit = getenv("CUDASIM_TIMEOUT");
    struct sigaction alarm = {};
    alarm.sa_handler = on_timeout;
    sigaction(SIGRTMIN + 4, &alarm, &former_alarm_);
    struct sigevent event = {};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGRTMIN + 4;
    timed_ = timer_create(CLOCK_MONOTONIC, &event, &timer_) == 0;
    struct itimerspec when = {};
    when.it_value.tv_sec = limit ? atol(limit) : 300;
    if (timed_) timer_settime(timer_, 0, &when, nullptr);
}

SignalWatch::~SignalWatch() {
    if (timed_) timer_delete(timer_);
    sigaction(SIGRTMIN + 4, &former_alarm_, nullptr);
    if (!kOwnFaults) return;
    for (size_t i = 0; i < 3; i++) sigaction(kFaults[i], &former_[i], nullptr);
    sigaltstack(&former_stack_, nullptr);
}

}  // namespace sim
