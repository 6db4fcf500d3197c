"""Owns the default thread count (what this process may use) and the threadpoolctl controller; must not contain the pool itself, which is C."""

import math
import os
from pathlib import Path

MOST_THREADS = 1024  # as in _kernels/threads.c


def quota(path, v2):
    """CPUs that one cgroup directory allows, or None for no limit, no such file, or a form we do not know."""
    try:
        if v2:
            most, period = (path / "cpu.max").read_text().split()
        else:
            most, period = (path / "cpu.cfs_quota_us").read_text(), (path / "cpu.cfs_period_us").read_text()
        cpus = float(most) / float(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
    return max(math.ceil(cpus), 1) if cpus > 0 else None


def cgroup_cpus(root=Path("/")):
    """The least quota of this process's control group and the groups above it (version 1 and 2), rounded up; None for no limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if not group.startswith("/"):
            continue
        if controllers == "":
            top, v2 = root / "sys/fs/cgroup", True
        elif "cpu" in controllers.split(","):
            top, v2 = root / "sys/fs/cgroup/cpu", False
        else:
            continue
        # In a container the path is the host's, while what is mounted is the container's own group: the top is read in any case.
        path = top / group.lstrip("/")
        found += [quota(p, v2) for p in (path, *path.parents) if p == top or top in p.parents]
    return min((cpus for cpus in found if cpus is not None), default=None)


def default_num_threads(environ=os.environ):
    """ONEMODEL_NUM_THREADS, or the CPUs this process may use: its affinity, bounded by its control group's quota."""
    wish = environ.get("ONEMODEL_NUM_THREADS", "")
    if wish:
        if not (wish.isdecimal() and len(wish) < 20 and 1 <= int(wish) <= MOST_THREADS):
            raise ValueError(f"ONEMODEL_NUM_THREADS: expected a whole number from 1 to {MOST_THREADS}, got {wish[:60]!r}; unset it for the default")
        return int(wish)
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cpus, cgroup_cpus() or cpus, MOST_THREADS)


def register_controller():
    """Lets threadpoolctl, if installed, list and limit our threads as it does those of BLAS and OpenMP."""
    try:
        import threadpoolctl
    except ImportError:
        return

    class OneModelController(threadpoolctl.LibController):
        user_api = "onemodel"
        internal_api = "onemodel"
        filename_prefixes = ("table.",)  # the extension that holds the pool; the symbols tell it from another library's table
        check_symbols = ("om_set_num_threads", "om_get_num_threads")

        def get_num_threads(self):
            return self.dynlib.om_get_num_threads()

        def set_num_threads(self, num_threads):
            self.dynlib.om_set_num_threads(num_threads)

        def get_version(self):
            return None  # the package's version would have to be imported from the package that is importing us

    threadpoolctl.register(OneModelController)
