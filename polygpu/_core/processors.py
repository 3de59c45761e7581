"""The number of processors this process may use: its affinity mask and the quotas of its control groups."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator


def available_processors() -> int:
    """Return the lesser of the affinity mask's size and the control groups' CPU quota, rounded up."""
    allowed, quota = allowed_processors(), processor_quota()
    return allowed if quota is None else min(allowed, math.ceil(quota))


def allowed_processors() -> int:
    """Return the size of the affinity mask. On macOS, which has no masks, return the number of processors."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_quota(root: str = "") -> float | None:
    """Return the quota of this process's control groups, in processors, or None without a limit.

    The process belongs to a group, which can have parent groups. The result is the least quota of all these
    groups. A file that cannot be read or parsed sets no limit.

    root: the folder that contains the folders proc and sys.
    """
    quotas = [quota for folder in _groups(root) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _groups(root: str) -> Iterator[str]:
    """Yield the folders of the control groups that limit this process's processors, outer groups first."""
    paths = {}
    for line in _lines(f"{root}/proc/self/cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]  # such as 0::/a/b or 3:cpu,cpuacct:/a/b
        if not controllers:
            paths["cgroup2"] = path
        elif "cpu" in controllers.split(","):
            paths["cgroup"] = path
    for line in _lines(f"{root}/proc/self/mountinfo"):
        place, _, system = line.partition(" - ")  # 31 23 0:28 / /sys/fs/cgroup rw - cgroup cgroup rw,cpu
        try:
            _, _, _, top, mount, *_ = place.split()
            kind, _, options = system.split()
        except ValueError:
            continue
        if kind not in paths or (kind == "cgroup" and "cpu" not in options.split(",")):
            continue
        # In a container, `top` may be the container's control group, and `path` may lie outside this group.
        # Then yield only the folder of the mount.
        path, top = paths[kind], top.rstrip("/")
        inside = path[len(top) :].split("/") if f"{path}/".startswith(f"{top}/") else []
        folder = root + mount
        for name in ["", *inside] if ".." not in inside else [""]:
            folder = os.path.join(folder, name)
            yield folder


def _quota(folder: str) -> float | None:
    """Return the quota of one control group, in processors, or None if the group has no quota."""
    words = " ".join(_lines(f"{folder}/cpu.max")).split()  # control groups, version 2
    if not words:
        words = [*_lines(f"{folder}/cpu.cfs_quota_us"), *_lines(f"{folder}/cpu.cfs_period_us")]
    try:
        quota, period = map(int, words)  # no limit: "max" in version 2, -1 in version 1
        return quota / period if quota > 0 and period > 0 else None
    except (ValueError, OverflowError):
        return None


def _lines(path: str) -> list[str]:
    try:
        with open(path, errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
