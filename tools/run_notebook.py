"""Execute a notebook's code cells in order and write their outputs into it: python tools/run_notebook.py FILE.ipynb

A cell's output is what it prints, its last expression and the figures it draws. Jupyter is not needed.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any


def _smaller(picture: io.BytesIO) -> bytes:
    """A PNG in 64 colours, which is half as large."""
    from PIL import Image

    found = io.BytesIO()
    with Image.open(picture) as image:
        image.convert("RGB").quantize(64).save(found, format="png", optimize=True)
    return found.getvalue()


def execute(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of all its cells; an error in one is raised."""
    import matplotlib as mpl

    mpl.use("Agg")
    space: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell = {**cell, "execution_count": count, "outputs": run_cell("".join(cell["source"]), space, count)}
        cells.append(cell)
    return {**notebook, "cells": cells}


def run_cell(source: str, space: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """What a notebook shows below a cell: text, the value of the last expression, pictures."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {count}", "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), space)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = _lines(value._repr_html_())
        outputs.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    return outputs + _figures()


def _figures() -> list[dict[str, Any]]:
    """All figures that are open, which are closed."""
    if "matplotlib.pyplot" not in sys.modules:
        return []
    from matplotlib import pyplot as plt

    outputs = []
    for number in plt.get_fignums():
        buffer = io.BytesIO()
        plt.figure(number).savefig(buffer, format="png", dpi=72, metadata={"Software": None})
        data = {"image/png": base64.b64encode(_smaller(buffer)).decode(), "text/plain": ["<Figure>"]}
        outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
    plt.close("all")
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main(path: Path) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    notebook = execute(json.loads(path.read_text(encoding="utf-8")))
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
