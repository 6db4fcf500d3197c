"""The thread pool: forks, callers at once, nested calls, counts, the default count and threadpoolctl; results that cannot depend on any of it.

Must not contain kernels' own tests.
"""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import onemodel as om
from onemodel import threads as defaults
from onemodel._kernels import gemm, table

A = np.random.default_rng(1).standard_normal((200, 150), dtype=np.float32)
B = np.random.default_rng(2).standard_normal((150, 180), dtype=np.float32)


def product():
    return gemm.matmul_arrays(A, B, None, 1)


@pytest.fixture(autouse=True)
def small_pieces():
    table.set_smallest_piece(16)  # the fixture of conftest.py puts it back
    table.set_num_threads(1)


def until_threads(count, seconds=20):
    """Products until `count` threads took part in one: on a busy machine a worker may be late for a single one."""
    end = time.monotonic() + seconds
    while True:
        product()
        if table.last_threads() >= count:
            return
        assert time.monotonic() < end, f"never {count} threads: {table.last_threads()}"


def test_counts_are_bounded_and_kept():
    for n in (1, 2, 7):
        table.set_num_threads(n)
        assert table.get_num_threads() == n
    table.set_num_threads(1)
    product()
    assert table.last_threads() == 1


@pytest.mark.parametrize("count", [2, 3, 8])
def test_every_count_gives_the_same_bits(count):
    expected = product().tobytes()
    table.set_num_threads(count)
    for _ in range(50):
        assert product().tobytes() == expected
        assert 1 <= table.last_threads() <= count
    until_threads(2)


def test_lowering_the_count_leaves_workers_idle():
    table.set_num_threads(4)
    until_threads(2)
    table.set_num_threads(1)
    for _ in range(20):
        product()
        assert table.last_threads() == 1


def test_threads_that_go_backward_into_one_leaf_lose_nothing():
    """Whole numbers, whose sums are exact in any order."""
    rng = np.random.default_rng(0)
    w, parts = om.ones((200, 100), requires_grad=True), [om.tensor(rng.integers(-3, 4, (150, 200)).astype(np.float32)) for _ in range(6)]

    def work(x):
        for _ in range(20):
            (x @ w).sum().backward()

    callers = [threading.Thread(target=work, args=(x,)) for x in parts]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    expected = 20 * sum(x.numpy().sum(0) for x in parts)
    assert np.array_equal(w.grad.numpy(), np.repeat(expected[:, None], 100, 1))


def test_callers_at_once():
    """Python threads multiply at the same time (the lock is released): one gets the workers, the others run alone; all are right."""
    expected = product().tobytes()
    table.set_num_threads(3)
    wrong, start = [], threading.Barrier(4)

    def run():
        start.wait()
        for _ in range(100):
            if product().tobytes() != expected:
                wrong.append(1)

    callers = [threading.Thread(target=run) for _ in range(4)]
    for t in callers:
        t.start()
    for t in callers:
        t.join(60)
    assert not any(t.is_alive() for t in callers) and not wrong


def child(work, seconds=60):
    """Runs work() in a forked child; its exit code, or a failure when it hangs."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    pytest.fail("the forked child hangs")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_fork():
    """Parent and child both go on with several threads, and so does a grandchild."""
    expected = product().tobytes()
    table.set_num_threads(3)
    until_threads(2)

    def grandchild():
        until_threads(2)
        return product().tobytes() == expected

    def work():
        until_threads(2)
        return product().tobytes() == expected and child(grandchild) == 0

    for _ in range(3):
        assert child(work) == 0
        until_threads(2)
    assert product().tobytes() == expected


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_fork_while_another_thread_multiplies():
    expected = product().tobytes()
    table.set_num_threads(2)
    stop = threading.Event()

    def run():
        while not stop.is_set():
            product()

    caller = threading.Thread(target=run)
    caller.start()
    try:
        for _ in range(10):
            assert child(lambda: all(product().tobytes() == expected for _ in range(10))) == 0
    finally:
        stop.set()
        caller.join(60)


def test_a_short_lived_caller_thread_leaves_the_pool_usable():
    table.set_num_threads(2)
    for _ in range(20):
        t = threading.Thread(target=product)
        t.start()
        t.join(60)
    until_threads(2)


def test_exit_with_idle_and_busy_workers():
    """The interpreter ends while workers sleep, and while another thread is in a product: no hang, no crash."""
    code = """
import threading, numpy as np
from onemodel._kernels import gemm, table
table.set_num_threads(4); table.set_smallest_piece(16)
a = np.ones((300, 300), np.float32)
for _ in range(10): gemm.matmul_arrays(a, a)
def run():
    while True: gemm.matmul_arrays(a, a)
threading.Thread(target=run, daemon=True).start()
gemm.matmul_arrays(a, a)
"""
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def run_python(code, **env):
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, timeout=60)
    return done.stdout.strip(), done.stderr, done.returncode


def test_default_count_comes_from_the_environment():
    code = "from onemodel._kernels import table; print(table.get_num_threads())"
    assert run_python(code, ONEMODEL_NUM_THREADS="3")[0] == "3"
    for wrong in ("many", "0", "1025", "9" * 5000):
        out, err, status = run_python(code, ONEMODEL_NUM_THREADS=wrong)
        assert status != 0 and "ONEMODEL_NUM_THREADS: expected a whole number from 1 to 1024" in err and wrong[:60] in err
    assert run_python(code, ONEMODEL_NUM_THREADS="")[0] == str(defaults.default_num_threads({}))


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("files, expected", [
    ({"proc/self/cgroup": "0::/box\n", "sys/fs/cgroup/box/cpu.max": "150000 100000\n"}, 2),
    ({"proc/self/cgroup": "0::/box/inner\n", "sys/fs/cgroup/box/cpu.max": "100000 100000\n", "sys/fs/cgroup/box/inner/cpu.max": "max 100000\n"}, 1),
    ({"proc/self/cgroup": "0::/box\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
    ({"proc/self/cgroup": "0::/\n"}, None),
    ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
    ({"proc/self/cgroup": "4:cpu,cpuacct:/job\n0::/\n", "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "300000\n",
      "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n"}, 3),
    ({"proc/self/cgroup": "4:cpu:/job\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, None),
    ({"proc/self/cgroup": "4:cpu:/job\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 3),
    ({"proc/self/cgroup": "nonsense\n"}, None),
    ({}, None),
])
def test_cgroup_quota(tmp_path, files, expected):
    """Both versions of the interface, a limit at any level, none, and files of no known form; a part of a CPU counts as one."""
    for name, text in files.items():
        write(tmp_path, name, text)
    assert defaults.cgroup_cpus(tmp_path) == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity on this system")
def test_affinity_bounds_the_default():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); from onemodel._kernels import table; print(table.get_num_threads())"
    assert run_python(code, ONEMODEL_NUM_THREADS="")[0] == "1"


@pytest.mark.skipif(not os.path.exists("/proc/self/task") or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two CPUs")
def test_workers_leave_the_callers_cpu_when_they_may_again():
    """Masks that change under a caller that stays on its CPU: narrowed to that one, workers share it; widened, they leave it."""
    code = """
import os, time
import numpy as np
from onemodel._kernels import gemm, table
first, second = sorted(os.sched_getaffinity(0))[:2]
os.sched_setaffinity(0, {first})
table.set_num_threads(2); table.set_smallest_piece(16)
a = np.ones((100, 100), np.float32)
before = set(os.listdir("/proc/self/task"))
gemm.matmul_arrays(a, a)
worker = int((set(os.listdir("/proc/self/task")) - before).pop())
for mask, expected in ({first}, {first}), ({first, second}, {second}), ({first}, {first}), ({first, second}, {second}):
    os.sched_setaffinity(worker, mask)
    end = time.monotonic() + 20
    while True:
        gemm.matmul_arrays(a, a)
        if os.sched_getaffinity(worker) == expected and time.monotonic() > end - 19.9: break
        if time.monotonic() > end: raise SystemExit(f"{mask}: {os.sched_getaffinity(worker)}")
print("done")
"""
    out, err, status = run_python(code)
    assert (out, status) == ("done", 0), err


def test_threadpoolctl_sees_and_limits_us():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    table.set_num_threads(3)
    ours = [i for i in threadpoolctl.threadpool_info() if i["internal_api"] == "onemodel"]
    assert [(i["num_threads"], i["user_api"]) for i in ours] == [(3, "onemodel")]
    with threadpoolctl.threadpool_limits(1, user_api="onemodel"):
        assert table.get_num_threads() == 1
    assert table.get_num_threads() == 3
    with threadpoolctl.threadpool_limits(2):
        assert table.get_num_threads() == 2
    assert table.get_num_threads() == 3
