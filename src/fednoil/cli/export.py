"""`fednoil export`: a model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fednoil.cli.options import Trust


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL.safetensors", help="A model that a run has written.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="FILE.onnx, or FILE.pt2 for torch.export; must not exist.")
    ],
    trust: Trust = None,
) -> None:
    """Write a trained model for other programs. It is checked to give the same results there."""
    from fednoil.export import export as write

    takes = write(model, out, trusted=tuple(trust or ()))
    print(f"wrote {out}, which gives the model's results: {takes}")
