// What a kernel can do to the process, turned into reports while a launch runs.
#pragma once
#include <signal.h>
#include <stddef.h>
#include <time.h>

namespace sim {

// Faults of the kernel (a wild pointer, a full stack, a division by zero) become errors of the launch; a kernel that
// runs for longer than $CUDASIM_TIMEOUT seconds (default 300) ends the process with a message.
class SignalWatch {
  public:
    SignalWatch();
    ~SignalWatch();
    SignalWatch(const SignalWatch &) = delete;
    SignalWatch &operator=(const SignalWatch &) = delete;

  private:
    struct sigaction former_[3];
    struct sigaction former_alarm_;
    stack_t former_stack_;
    timer_t timer_;
    bool timed_;
};

}  // namespace sim
