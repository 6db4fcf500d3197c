"""Owns the proof that the pages are true: their Python runs, their commands exist, their links lead somewhere. Needs the checkout."""

import importlib.util
import re
from pathlib import Path

import pytest

from onemodel import cli

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(page for pattern in ("*.md", "docs/*.md", "onemodel/**/*.md", "testdata/*.md") for page in ROOT.glob(pattern))
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.M | re.S)


def blocks(text, *languages):
    """The fenced blocks of these languages, each padded so that a traceback names the page's own line."""
    return ["\n" * text.count("\n", 0, m.start(2)) + m.group(2) for m in FENCE.finditer(text) if m.group(1) in languages]


def run_page(text, name):
    """One namespace for a page: what a reader who types it in from top to bottom has."""
    namespace = {"__name__": "__page__"}
    for block in blocks(text, "python"):
        exec(compile(block, name, "exec"), namespace)


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dev_commands():
    return {command.__name__.replace("_", "-") for command in tool("dev").COMMANDS}


def unknown_commands(text):
    dev, own = dev_commands(), {command.__name__.replace("_", "-") for command in cli.COMMANDS}
    bad = [f"dev.py {m.group(1)}" for m in re.finditer(r"dev\.py ([a-z][\w-]*)", text) if m.group(1) not in dev]
    code = "\n".join(blocks(text, "sh", "bash", "console")) + "\n" + "\n".join(re.findall(r"`([^`\n]+)`", text))
    typed = re.finditer(r"^(?:\$ )?(?:python3? -m )?onemodel ([a-z][\w-]*)", code, re.M)
    bad += [f"onemodel {m.group(1)}" for m in typed if m.group(1) not in own]
    paths = re.findall(r"(?:^|\s)((?:tools|tests|\.ci)/[\w./-]+)", code)
    return bad + [path for path in paths if not (ROOT / path.split("::")[0]).exists()]


def anchors(text):
    """The names that a heading gets: lower case, punctuation dropped, blanks to hyphens."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def dead_links(text, folder):
    bad = []
    for target in re.findall(r"\[[^\]\n]+\]\(([^)\s]+)\)", FENCE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (folder / path).resolve() if path else None
        if file is not None and not file.exists():
            bad.append(target)
        elif anchor and anchor not in anchors(file.read_text() if file else text):
            bad.append(target)
    return bad


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_page(page, tmp_path, monkeypatch):
    text = page.read_text()
    assert dead_links(text, page.parent) == []
    assert unknown_commands(text) == []
    monkeypatch.chdir(tmp_path)
    run_page(text, str(page))


def test_each_page_can_be_reached_from_the_index():
    index = (ROOT / "docs" / "index.md").read_text()
    linked = set(re.findall(r"\]\(([\w-]+\.md)", index))
    assert {p.name for p in (ROOT / "docs").glob("*.md")} - {"index.md"} == linked


@pytest.mark.parametrize("name", tool("gen_docs").PAGES)
def test_generated_page_is_fresh(name):
    assert (ROOT / name).read_text() == tool("gen_docs").PAGES[name](), "run: python3 tools/dev.py docs"


PAGE = """# A page

## What it's for

```python
a = 2
```

```python
assert a == {}
```
[up](#what-its-for) `python3 tools/dev.py {}` `onemodel {}`
"""


def test_good_page_passes():
    text = PAGE.format(2, "test", "config")
    run_page(text, "good")
    assert unknown_commands(text) == dead_links(text, ROOT) == []


def test_planted_faults_are_found():
    with pytest.raises(AssertionError) as caught:
        run_page(PAGE.format(3, "test", "config"), "wrong")
    assert caught.traceback[-1].lineno == 9  # counted from 0: the page's own line 10
    assert unknown_commands(PAGE.format(2, "tset", "config")) == ["dev.py tset"]
    assert unknown_commands(PAGE.format(2, "test", "confg")) == ["onemodel confg"]
    assert unknown_commands("run `tools/gone.sh`") == ["tools/gone.sh"]
    assert dead_links("[a](docs/gone.md)", ROOT) == ["docs/gone.md"]
    assert dead_links("# One\n[a](#two)", ROOT) == ["#two"]
