"""Owns the pages that are made from the lists in the code: docs/kernels.md. Must not contain facts of its own.

`python3 tools/dev.py docs` writes them; tests/test_docs.py fails while a page is not what this file would write.
"""

from pathlib import Path

from onemodel._kernels import table

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTE = "<!-- Written by `python3 tools/dev.py docs`: edit the lists in the code, not this page. -->\n"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def kernels() -> str:
    rows = table.rows()
    lines = [NOTE + "# Kernels", "",
             "Each row is in every table (instruction set × mode). The class is the signature in `kernels.h`;",
             "a name that ends in `_bwd` is the gradient's kernel.", "", "| kernel | class | what it computes |", "|---|---|---|"]
    lines += [f"| `{name}` | {signature} | {cell(doc)} |" for name, (signature, doc) in rows.items()]
    return "\n".join(lines) + "\n"


PAGES = {"kernels.md": kernels}


def main() -> None:
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())


if __name__ == "__main__":
    main()
