"""Ctrl-C in a long call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time


def seconds_to_answer(prepare: str, call: str) -> float:
    """From the signal to the end of an interpreter that makes one call after the other."""
    code = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits none
{textwrap.dedent(prepare)}
print("ready", flush=True)
while True:
    {call}
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "POLYGPU_NUM_THREADS": "2"},
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline().strip() == "ready"
            time.sleep(1)  # amid a call
            sent = time.monotonic()
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=60)
            assert "KeyboardInterrupt" in error
            return time.monotonic() - sent
        finally:
            process.kill()
