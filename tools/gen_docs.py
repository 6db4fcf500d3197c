"""Owns what is made from the lists in the code: docs/kernels.md, docs/ops.md, and the operators' part of the stubs. No facts of its own.

`python3 tools/dev.py docs` writes them; tests/test_docs.py fails while one is not what this file would write.
"""

import inspect
from pathlib import Path

from onemodel._kernels import table
from onemodel.registry import FUNCTIONS, METHODS, OPS
from onemodel.rules import Map

ROOT = Path(__file__).resolve().parent.parent
NOTE = "Written by `python3 tools/dev.py docs`: edit the lists in the code, not this page."
BEGIN, END = "    # -- operators, written by `python3 tools/dev.py docs` --\n", "    # -- end of the operators --\n"

# What a parameter of an operator may be, by its name, else by the type of its default; a default of None adds None.
TYPES = {
    **dict.fromkeys(["stride", "dilation", "kernel_size", "pool_stride", "pool_dilation", "output_padding", "output_size", "size", "scale_factor",
                     "normalized_shape", "pad", "split_size_or_sections"], "int | float | Sequence[Any]"),
    **dict.fromkeys(["input_lengths", "target_lengths"], "Tensor | int | Sequence[int]"),
    **dict.fromkeys(["generator", "padding", "pool_padding"], "Any"),
    **dict.fromkeys(["groups", "num_groups", "num_heads", "chunks"], "int"),
    "keepdim": "bool", "dim": "int | Sequence[int]", "dim0": "int", "dim1": "int", "start_dim": "int", "end_dim": "int", "start": "int",
    "end": "int", "step": "int", "index": "int", "shape": "Any", "dims": "Any", "dtype": "Any", "key": "Any", "approximate": "str",
    **dict.fromkeys(["running_mean", "running_var"], "Tensor | None"), "eps": "float",
    "align_corners": "bool", "recompute_scale_factor": "bool", "padding_idx": "int", "max_norm": "float", "value": "float",
    "correction": "float", "unbiased": "bool", "num_classes": "int",
    "reduction": "str", "ignore_index": "int", "label_smoothing": "float", "min": "float", "max": "float", "tensors": "Sequence[Tensor]",
}

# Where an operator's parameter is something else than its name says, or the result is no tensor.
SPECIAL = {("gather", "index"): "Tensor", ("index_select", "index"): "Tensor", ("masked_fill", "input"): "Tensor", ("masked_fill", "mask"): "Tensor",
           ("masked_fill", "value"): "Tensor | float"}
SPECIAL |= {(name, parameter): kind for name in ("scaled_dot_product_attention", "attention")
            for parameter, kind in (("key", "Tensor"), ("value", "Tensor"), ("scale", "float"))}
SPECIAL |= {(name, "dim"): "Tensor | int" for name in ("max", "min")}
SPECIAL |= {("lstm", "hx"): "tuple[Tensor, Tensor] | None", ("gru", "hx"): "Tensor | None", ("lstm", "params"): "Sequence[Tensor]",
            ("gru", "params"): "Sequence[Tensor]"}
RETURNS = {"max": "Any", "min": "Any", "split": "tuple[Tensor, ...]", "chunk": "tuple[Tensor, ...]",
           "lstm": "tuple[Tensor, tuple[Tensor, Tensor]]", "gru": "tuple[Tensor, Tensor]"}


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def kernels() -> str:
    rows = table.rows()
    lines = [f"<!-- {NOTE} -->", "# Kernels", "",
             "Each row is in every table (instruction set × mode). The class is the signature in `kernels.h`;",
             "a name that ends in `_bwd` is the gradient's kernel.", "", "| kernel | class | what it computes |", "|---|---|---|"]
    lines += [f"| `{name}` | {signature} | {cell(doc)} |" for name, (signature, doc) in rows.items()]
    return "\n".join(lines) + "\n"


def operators() -> str:
    lines = [f"<!-- {NOTE} -->", "# Operators", "",
             "Each is `om.NAME` and `om.ops.NAME`; those with a mark are methods of a tensor too. `om.ops.OPS` has the classes.", "",
             "| operator | | what it computes |", "|---|---|---|"]
    for name, op in sorted(OPS.items()):
        public = FUNCTIONS[name]
        note = f" Not differentiable: {op.why_not_differentiable}." if op.why_not_differentiable else ""
        lines.append(f"| `{name}{inspect.signature(public)}` | {'method' if name in METHODS else ''} | {cell(op.__doc__)}{note} |")
    lines += ["", "Composed of these:", "", "| function | what it computes |", "|---|---|"]
    lines += [f"| `{name}{inspect.signature(public)}` | {cell(public.__doc__)} |" for name, public in sorted(composed().items())]
    return "\n".join(lines) + "\n"


def composed() -> dict:
    """Public functions that are neither an operator nor another name of one."""
    operators = {id(FUNCTIONS[name]) for name in OPS}
    return {name: public for name, public in FUNCTIONS.items() if id(public) not in operators}


def declaration(name: str, function, method: bool) -> str:
    """One line of a stub."""
    op = OPS.get(name)
    scalars = op is not None and isinstance(op.kernel, Map) and len(op.kernel.words.split()) > 2
    parts = []
    for i, p in enumerate(inspect.signature(function).parameters.values()):
        if method and i == 0:
            parts.append(p.name)
            continue
        by_default = type(p.default).__name__ if isinstance(p.default, (bool, int, float, str)) else "Tensor"
        kind = SPECIAL.get((name, p.name)) or TYPES.get(p.name, "Tensor | float" if scalars else by_default)
        kind = f"{kind} | None" if p.default is None and kind != "Any" else kind
        star = "*" if p.kind is p.VAR_POSITIONAL else ""
        if p.kind is p.KEYWORD_ONLY and "*" not in parts and not any(part.startswith("*") for part in parts):
            parts.append("*")
        parts.append(f"{star}{p.name}: {kind}" + ("" if p.default is p.empty else f" = {p.default!r}"))
    return f"def {name}({', '.join(parts)}) -> {RETURNS.get(name, 'Tensor')}: ..."


def ops_stub() -> str:
    lines = [f"# {NOTE}", '"""The operators as functions, and OPS, the registry of their classes."""', "",
             "from collections.abc import Sequence", "from typing import Any", "", "from onemodel.registry import Op",
             "from onemodel.tensor import Tensor", "", "OPS: dict[str, type[Op]]", ""]
    lines += [declaration(name, function, False) for name, function in sorted(FUNCTIONS.items())]
    lines += ["", "__all__ = [", *[f'    "{name}",' for name in ["OPS", *sorted(FUNCTIONS)]], "]"]
    return "\n".join(lines) + "\n"


def tensor_stub() -> str:
    head, rest = (ROOT / "onemodel" / "tensor.pyi").read_text().split(BEGIN)
    methods = "".join(f"    {declaration(name, function, True)}\n" for name, function in sorted(METHODS.items()))
    return head + BEGIN + methods + END + rest.split(END)[1]


PAGES = {"docs/kernels.md": kernels, "docs/ops.md": operators, "onemodel/ops/__init__.pyi": ops_stub, "onemodel/tensor.pyi": tensor_stub}


def main() -> None:
    for name, page in PAGES.items():
        (ROOT / name).write_text(page())


if __name__ == "__main__":
    main()
