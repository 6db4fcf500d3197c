"""The build: one row per instruction set, one C library per (instruction set, mode), one extension per .pyx.

Nothing else lives here; metadata is in pyproject.toml. Traps this file works around (each measured):
`build_clib` names an object after its source, so every variant has a stub .c of its own; and it neither
rebuilds nor relinks after a header edit unless headers are named in `obj_deps` and in `depends`.
"""

import os
import platform
import shlex
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_clib import build_clib

if sys.platform == "win32":
    raise SystemExit("onemodel: no Windows build yet: threads and fork handling use POSIX threads; use Linux or macOS (WSL works)")
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise SystemExit("onemodel: no free-threaded build yet: the pool and the engine rely on the interpreter lock; use a standard CPython")

machine = platform.machine().lower()
if sys.platform == "darwin":
    # A universal Python asks for both processors at once; the flags below are for one.
    os.environ.setdefault("ARCHFLAGS", f"-arch {machine}")

# The table: instruction set -> compiler flags. The lane header of a set refuses to compile without them.
X86_64 = {
    "scalar": ["-march=x86-64", "-fno-tree-vectorize"],
    "sse2": ["-march=x86-64"],
    "avx2": ["-march=x86-64-v3"],
    "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
}
AARCH64 = {"scalar": ["-fno-tree-vectorize"], "neon": []}
MODES = ["fast", "exact"]

# -ffp-contract=off: gcc fuses even intrinsics that spell a multiply and an add, which would change bits.
CFLAGS = ["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing",
          "-fvisibility=hidden", "-fPIC", "-Wall", "-Wextra", "-Wno-unused-function"]
MODULE_CFLAGS = ["-O2", "-ffp-contract=off", "-fno-strict-aliasing", "-fvisibility=hidden", "-Wno-unused-function"]

# -g0: many a Python asks for debug information, which is three quarters of a wheel. The two variables come last of all, so that a
# sanitizer, -g or -O1 can be asked for (`tools/dev.py sanitize` does).
LAST_CFLAGS = ["-g0", *shlex.split(os.environ.get("ONEMODEL_CFLAGS", ""))]
LDFLAGS = ["-pthread", *shlex.split(os.environ.get("ONEMODEL_LDFLAGS", ""))]

isas = {"x86_64": X86_64, "amd64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}.get(machine)
if isas is None:
    raise SystemExit(f"onemodel: no kernels for {machine!r}; expected x86-64 or aarch64")
if wanted := os.environ.get("ONEMODEL_ISAS", "").split():  # while a kernel is being written: fewer variants, a build in seconds
    isas = {isa: isas[isa] for isa in isas if isa in wanted}

root = Path(__file__).parent.resolve()
kernels = Path("onemodel/_kernels")
pool = Path("onemodel/_pool")
headers = sorted(str(p.relative_to(root)) for d in (kernels, pool) for p in (root / d).glob("*.h"))
depends = ["setup.py", *headers]


def library(name, sources, cflags=()):
    return name, {"sources": [str(s) for s in sources], "obj_deps": {"": depends}, "include_dirs": [str(kernels), str(pool)],
                  "cflags": [*CFLAGS, *cflags, *LAST_CFLAGS], "macros": [(f"OM_HAVE_{isa}", "1") for isa in isas]}


variants = [library(f"om_{isa}_{mode}", [kernels / "variants" / f"{isa}_{mode}.c"], flags)
            for isa, flags in isas.items() for mode in MODES]
common = library("om_common", [kernels / "variants.c", kernels / "cpu.c", kernels / "threads.c", kernels / "steps.c"])
blocks = library("om_blocks", [pool / "blocks.c"])

# Who links what: the table owns kernels and threads, the pool owns blocks; every other module cimports from them.
LINKS = {"onemodel._kernels.table": [name for name, _ in (*variants, common)], "onemodel._pool.pool": ["om_blocks"]}


def extension(pyx):
    name = ".".join(pyx.with_suffix("").parts)
    libraries = LINKS.get(name, [])
    # A static library has no dependency list of its own: naming its sources here makes an edit relink.
    sources = [s for lib, spec in (*variants, common, blocks) if lib in libraries for s in spec["sources"]]
    return Extension(name, [str(pyx)], include_dirs=[numpy.get_include(), str(kernels), str(pool)], depends=[*depends, *sources],
                     define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")], libraries=libraries,
                     extra_compile_args=[*MODULE_CFLAGS, *LAST_CFLAGS], extra_link_args=LDFLAGS)


class BuildLibraries(build_clib):
    """Compiles the libraries side by side: a variant is one big file, and there are eight of them."""

    def build_libraries(self, libraries):
        one_by_one = super().build_libraries
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda library: one_by_one([library]), libraries))


extensions = [extension(p.relative_to(root)) for p in sorted((root / "onemodel").rglob("*.pyx"))]

setup(
    libraries=[*variants, common, blocks],
    cmdclass={"build_clib": BuildLibraries},
    ext_modules=cythonize(extensions, include_path=[str(root)], language_level=3, build_dir="build/cython",
                          compiler_directives={"boundscheck": False, "wraparound": False, "cdivision": True, "initializedcheck": False,
                                               "binding": True, "embedsignature": False, "auto_pickle": False, "freethreading_compatible": False}),
)
