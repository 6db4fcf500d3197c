"""Owns the house rules that a machine can check in the source tree, each with a planted fault; must not contain tests of results."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).resolve().parent.parent
TEXT = {".py", ".pyx", ".pxd", ".pyi", ".c", ".h", ".md", ".toml", ".yml", ".yaml", ".sh", ".in", ".cfg"}
LONGEST = 600
THIS = "tests/test_source.py"  # spells what the rules below forbid


def tree():
    """Every file of the checkout that git does not ignore: path -> text (None for a binary file)."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files = {}
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file():
            raw = path.read_bytes()
            files[name] = None if b"\0" in raw else raw.decode("utf-8")
    return files


def sources(files, *suffixes):
    return {name: text for name, text in files.items() if text is not None and Path(name).suffix in suffixes}


def code_of(text):
    """C without comments and strings."""
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', " ", text, flags=re.S)


# -- the rules: each takes path -> text and returns complaints ------------------------------------------------------------------


def too_long(files):
    found = {**sources(files, *TEXT), ".ci/run": files.get(".ci/run") or ""}
    lengths = {name: text.count("\n") for name, text in found.items()}
    return [f"{name}: {n} lines, at most {LONGEST}: split it by meaning" for name, n in lengths.items() if n > LONGEST]


def headless(files):
    """A file opens with a sentence on what it owns. Variant stubs are four lines that variant.h explains."""
    python, c = r'(#![^\n]*\n)?(r?"""|#)', r"/\*"
    opening = {".py": python, ".pyx": python, ".pxd": python, ".pyi": python, ".c": c, ".h": c, ".md": r"(<!--[^\n]*\n)?# ",
               ".sh": r"#![^\n]*\n#", ".yml": r"#", ".toml": r"[#\[]"}
    bad = []
    for name, text in sources(files, *opening).items():
        if "/variants/" in name or name.endswith("__init__.py") and not text.strip():
            continue
        start = re.match(opening[Path(name).suffix], text)
        if not start:
            bad.append(f"{name}: does not open with a sentence on what it owns")
        elif Path(name).suffix not in (".md", ".toml") and len(re.match(r"[^\n]*(\n[^\n]+)?", text[start.end():]).group().strip()) < 24:
            bad.append(f"{name}: its head is too short to say what it owns")
    return bad


def kernel_headers(files):
    """Headers that are compiled into the kernels; cpu.h and threads.h serve the callers."""
    headers = {n: t for n, t in sources(files, ".h").items() if n.startswith("onemodel/_kernels/")}
    return {n: t for n, t in headers.items() if Path(n).name not in ("cpu.h", "threads.h")}


LIBM = """acos asin atan atan2 cbrt ceil cos cosh erf erfc exp exp2 expm1 fabs floor fma fmax fmin fmod frexp hypot ldexp lgamma log log10
    log1p log2 lrint modf nearbyint pow rint round sin sinh sqrt tan tanh tgamma trunc""".split()
CALLS = re.compile(r"(?<![\w.>])(?:(?:" + "|".join(LIBM) + r")[fl]?|malloc|calloc|realloc|free|alloca|posix_memalign|aligned_alloc)\s*\(")
HEADERS = re.compile(r"#\s*include\s*<(math|tgmath|stdlib|stdio|pthread|fenv|complex)\.h>")


def forbidden_calls(files):
    bad = []
    for name, text in kernel_headers(files).items():
        code = code_of(text)
        bad += [f"{name}: calls {m.group().strip('( ')}: kernels use no libm and no allocator" for m in CALLS.finditer(code)]
        bad += [f"{name}: includes <{m.group(1)}.h>" for m in HEADERS.finditer(code)]
        if re.search(r"\bom_(get|set)_num_threads\b", code):
            bad.append(f"{name}: reads the thread count, which must not be able to change a result")
    return bad


def loose_arithmetic(files):
    flags = re.compile("-ffast-math|-Ofast|-funsafe-math|-fassociative-math|-freciprocal-math|-ffinite-math-only|-ffp-contract=(?!off)")
    code = {n: t for n, t in sources(files, ".py", ".toml", ".c", ".h", ".yml", ".sh").items() if n != THIS}
    bad = [f"{name}: {m.group()} lets the compiler change results" for name, text in code.items() for m in flags.finditer(text)]
    pragma = re.compile(r"#pragma.*(fast|FP_CONTRACT\s+ON)|__attribute__.*optimize")
    return bad + [f"{n}: a pragma or attribute changes the arithmetic" for n, t in code.items() if pragma.search(t)]


def unbuilt(files):
    """setup.py takes each .pyx by glob; a .c must be named there, be a variant, or belong to the tool that names it; a header must
    be included."""
    setup = files["setup.py"]
    tools = "\n".join(text for name, text in sources(files, ".py").items() if name.startswith("tools/"))
    including = "\n".join(sources(files, ".c", ".h", ".pyx", ".pxd").values())
    includes = set(re.findall(r'(?:include|extern from|OM_LANE_HEADER)\s+"(?:[\w./]*/)?(\w+\.h)"', including))
    isas = set(re.findall(r'"(\w+)": \[(?=["\]])', setup))
    bad = []
    for name in sources(files, ".c", ".h"):
        path = Path(name)
        if path.suffix == ".h" and path.name not in includes:
            bad.append(f"{name}: no file includes it")
        elif path.parent.name == "variants":
            isa, _, mode = path.stem.rpartition("_")
            if isa not in isas or mode not in ("fast", "exact"):
                bad.append(f"{name}: setup.py has no row for {path.stem}")
        elif path.suffix == ".c" and f'"{path.name}"' not in (tools if path.parent.name == "tools" else setup):
            bad.append(f"{name}: setup.py does not build it")
    for isa in isas:
        stubs = [f"onemodel/_kernels/variants/{isa}_{mode}.c" for mode in ("fast", "exact")]
        bad += [f"{stub} is missing" for stub in stubs if stub not in files]
    return bad


def generated(files):
    c = sources(files, ".c", ".cpp")
    bad = [f"{n}: generated by Cython, must not be tracked" for n, t in c.items() if t.startswith("/* Generated by Cython")]
    shadowed = [n.removesuffix("pyx") + "c" for n in files if n.endswith(".pyx")]
    bad += [f"{n}: would be overwritten by the build of the .pyx beside it" for n in shadowed if n in files]
    return bad + [f"{n}: a build product" for n in files if Path(n).suffix in (".so", ".o", ".a", ".whl", ".pyc") or "/__pycache__/" in n]


MACHINE = re.compile(r"(?<![\w.\]])/(?:home|root|work|mnt|Users)/\w+|(?<![\w.])/tmp/\w+|\bfarm-\w+|https?://(?:localhost|127\.|10\.)")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")


def improper_words(files):
    own = {n: t for n, t in files.items() if t is not None and n not in (THIS, "LICENSE")}
    bad = [f"{n}: names a machine's own path ({m.group()})" for n, t in own.items() for m in MACHINE.finditer(t)]
    return bad + [f"{n}: left unfinished ({m.group()})" for n, t in own.items() for m in UNFINISHED.finditer(t)]


RULES = (too_long, headless, forbidden_calls, loose_arithmetic, unbuilt, generated, improper_words)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule):
    assert rule(tree()) == []


GOOD = {
    "setup.py": '"""The build: one row per instruction set."""\n"avx2": ["-march"]\n"cpu.c"',
    "onemodel/_kernels/variants/avx2_fast.c": '#define OM_LANE_HEADER "exp.h"\n',
    "onemodel/_kernels/variants/avx2_exact.c": "",
    "onemodel/_kernels/cpu.c": "/* Owns the detection of the features. */\n",
    "onemodel/_kernels/exp.h": "/* Owns the exponential, never calls exp(). */\nstatic float k_exp(float x);\nROW(map1, exp, \"exp(x)\")\n",
}
PLANTED = [
    (too_long, "docs/a.md", "# A page\n" + "line\n" * LONGEST),
    (headless, "onemodel/a.py", "import os\n"),
    (headless, "onemodel/a.h", "/* a.h */\n#define A\n\n"),
    (forbidden_calls, "onemodel/_kernels/exp.h", "/* Owns the exponential. */\ny = expf(x);\n"),
    (forbidden_calls, "onemodel/_kernels/exp.h", "/* Owns the exponential. */\nfloat *p = malloc(4);\n"),
    (forbidden_calls, "onemodel/_kernels/exp.h", "/* Owns the exponential. */\n#include <math.h>\n"),
    (forbidden_calls, "onemodel/_kernels/exp.h", "/* Owns the exponential. */\nn / om_get_num_threads();\n"),
    (loose_arithmetic, "setup.py", GOOD["setup.py"] + "\n# -ffast-math"),
    (loose_arithmetic, "onemodel/_kernels/exp.h", "#pragma STDC FP_CONTRACT ON"),
    (unbuilt, "onemodel/_kernels/lost.h", "/* Owns a list that nobody reads. */"),
    (unbuilt, "onemodel/_kernels/lost.c", "/* Owns loops that nobody builds. */"),
    (unbuilt, "onemodel/_kernels/variants/mmx_fast.c", ""),
    (unbuilt, "tools/lost.c", "/* Owns what no tool compiles. */"),
    (generated, "onemodel/tensor.c", "/* Generated by Cython 3 */"),
    (generated, "onemodel/cpu.pyx", None),
    (improper_words, "docs/a.md", "see /home/me/notes"),
    (improper_words, "onemodel/a.py", "# TODO later"),
]


@pytest.mark.parametrize("rule,name,text", PLANTED, ids=[f"{rule.__name__}-{name}" for rule, name, _ in PLANTED])
def test_planted_fault_is_found(rule, name, text):
    assert rule(GOOD) == []
    files = {**GOOD, name: text}
    if rule is generated and name.endswith("cpu.pyx"):
        files["onemodel/cpu.c"] = ""
    assert len(rule(files)) >= 1


def ruff(folder):
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--config", str(ROOT / "pyproject.toml"), "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_ruff_is_clean():
    done = ruff(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_unused_import_is_found(tmp_path):
    (tmp_path / "a.py").write_text("import os\n")
    assert "F401" in ruff(tmp_path).stdout


# -- the built objects ----------------------------------------------------------------------------------------------------------

# What a kernel archive may ask of others: the compiler's own memory moves, and its table of offsets.
ALLOWED = {"memcpy", "memset", "memmove", "memcmp", "_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail", "bzero"}


def asked_of_others(archive):
    listed = subprocess.run(["nm", "-u", "-P", str(archive)], capture_output=True, text=True, check=True).stdout
    # macOS puts one underscore before each name; a line that ends with a colon is a member of the archive.
    names = {line.split()[0] for line in listed.splitlines() if line.strip() and not line.endswith(":")}
    return {name for name in names if name not in ALLOWED and name.removeprefix("_") not in ALLOWED}


def test_kernels_call_nothing():
    """The headers' text can hide a call behind a builtin; the linker's view cannot."""
    archives = sorted((ROOT / "build").glob("temp*/libom_*_fast.a")) + sorted((ROOT / "build").glob("temp*/libom_*_exact.a"))
    assert len(archives) >= 4, "no kernel archives under build/: python3 tools/dev.py build"
    assert {a.name: asked_of_others(a) for a in archives if asked_of_others(a)} == {}


def test_a_call_from_a_kernel_is_found(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    (tmp_path / "k.c").write_text("extern double exp(double); double k(double x) { return exp(x); }\n")
    subprocess.run([compiler, "-c", "-O1", "k.c", "-o", "k.o"], cwd=tmp_path, check=True)
    assert {name.lstrip("_") for name in asked_of_others(tmp_path / "k.o")} == {"exp"}
