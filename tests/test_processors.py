"""The default number of threads: affinity mask, cgroup quotas and POLYGPU_NUM_THREADS."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polygpu import _cpu
from polygpu._backends import cpu
from polygpu._core import processors
from polygpu._core.processors import processor_quota

V1 = "31 23 0:28 {top} /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
V2 = "41 31 0:38 {top} /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
OTHERS = (
    "23 1 8:1 / / rw - ext4 /dev/sda rw\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "36 31 0:33 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
)
# The lines of /proc/self/cgroup, of /proc/self/mountinfo, and files below /sys/fs/cgroup; then the quota.
CASES: dict[str, tuple[str, str, dict[str, str], float | None]] = {
    "v2": ("0::/a", V2.format(top="/"), {"unified/a/cpu.max": "150000 100000\n"}, 1.5),
    "v2, a parent": (
        "0::/a/b/c",
        V2.format(top="/"),
        {"unified/a/cpu.max": "300000 100000", "unified/a/b/c/cpu.max": "900000 100000"},
        3.0,
    ),
    "v2, a namespace": ("0::/", V2.format(top="/"), {"unified/cpu.max": "50000 100000"}, 0.5),
    "v2, another group": ("0::/a", V2.format(top="/"), {"unified/b/cpu.max": "50000 100000"}, None),
    "v2, outside": ("0::/../a", V2.format(top="/"), {"a/cpu.max": "50000 100000"}, None),
    "v2, no limit": ("0::/a", V2.format(top="/"), {"unified/a/cpu.max": "max 100000\n"}, None),
    "v1": (
        "4:memory:/x\n3:cpu,cpuacct:/a\n1:name=systemd:/y",
        V1.format(top="/"),
        {"cpu,cpuacct/a/cpu.cfs_quota_us": "250000\n", "cpu,cpuacct/a/cpu.cfs_period_us": "50000\n"},
        5.0,
    ),
    "v1, a container that sees the host's path": (
        "3:cpu,cpuacct:/docker/1f/job",
        V1.format(top="/docker/1f"),
        {
            "cpu,cpuacct/job/cpu.cfs_quota_us": "-1",
            "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
            "cpu,cpuacct/cpu.cfs_quota_us": "200000",
            "cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
        2.0,
    ),
    "v1, a path that begins alike": (
        "3:cpu,cpuacct:/docker/1f2",
        V1.format(top="/docker/1f"),
        {"cpu,cpuacct/cpu.cfs_quota_us": "70000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
        0.7,
    ),
    "both, v1 has the processors": (
        "3:cpu,cpuacct:/a\n0::/a",
        V1.format(top="/") + V2.format(top="/"),
        {"cpu,cpuacct/a/cpu.cfs_quota_us": "100000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
        1.0,
    ),
    "v1, no limit": (
        "3:cpu,cpuacct:/",
        V1.format(top="/"),
        {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
        None,
    ),
    "v1, no period": ("3:cpu:/", V1.format(top="/"), {"cpu,cpuacct/cpu.cfs_quota_us": "100000"}, None),
    "no files": ("", "", {}, None),
    "odd lines": ("0\n::\n0:\n:cpu", "\n - \nx - cgroup2\n1 2 3 / - cgroup2 x y\n", {}, None),
}
for odd in (
    "",
    "x",
    "0 100000",
    "100000 0",
    "-5 100000",
    "1e5 100000",
    "1",
    "1 2 3",
    "9" * 5000 + " 1",
    "9" * 4000 + " 1",
    "\xff",
):
    CASES[f"odd limit {odd[:9]!r} of {len(odd)}"] = (
        "0::/a",
        V2.format(top="/"),
        {"unified/a/cpu.max": odd},
        None,
    )


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str], str]:
    """Writes the files of a case, and returns the folder that has them."""

    def write(name: str) -> str:
        groups, mounts, files, _ = CASES[name]
        texts = {"proc/self/cgroup": groups, "proc/self/mountinfo": OTHERS + mounts}
        for path, text in (texts | {f"sys/fs/cgroup/{at}": text for at, text in files.items()}).items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(text.encode("latin-1"))
        return str(tmp_path)

    return write


@pytest.mark.parametrize("name", CASES)
def test_processor_quota_is_the_least_of_the_groups(name: str, machine: Any) -> None:
    assert processor_quota(machine(name)) == CASES[name][3]


def test_processor_quota_with_a_folder_in_place_of_a_file(machine: Any) -> None:
    root = Path(machine("v2"))
    (root / "sys/fs/cgroup/unified/a/cpu.max").unlink()
    (root / "sys/fs/cgroup/unified/a/cpu.max").mkdir()
    assert processor_quota(str(root)) is None
    (root / "proc/self/cgroup").unlink()
    assert processor_quota(str(root)) is None


@pytest.mark.parametrize(
    "quota, variable, expected",
    [
        (None, None, 8),
        (1.5, None, 2),
        (0.01, None, 1),
        (3.0, None, 3),
        (64.0, None, 8),
        (1.5, "5", 5),
        (1.5, "", 2),
    ],
)
def test_processor_quota_bounds_the_default_number_of_threads(
    quota: float | None, variable: str | None, expected: int, monkeypatch: pytest.MonkeyPatch, threads: Any
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(processors, "processor_quota", lambda: quota)
    monkeypatch.delenv("POLYGPU_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("POLYGPU_NUM_THREADS", variable)
    cpu.configure()
    assert _cpu.num_threads() == expected
