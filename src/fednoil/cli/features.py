"""`fednoil features`: what a frozen, pretrained network gives for images, once for all runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fednoil.cli.options import DataDir, Device


def features(
    data: Annotated[str, typer.Option("--data", metavar="DATA", help="The images, named as in data.name.")],
    model: Annotated[str, typer.Option("--model", metavar="timm:NAME", help="A network of the timm library.")],
    weights: Annotated[
        Path, typer.Option("--weights", metavar="FILE.safetensors", help="Its weights; nothing is downloaded.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.parquet", help="Where the features go; must not exist.")],
    size: Annotated[
        int | None, typer.Option("--size", min=1, help="Side of the pictures; default: the network's.")
    ] = None,
    skip: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out pictures that can't be read, as data.bad = 'skip' does.")
    ] = False,
    data_dir: DataDir = None,
    device: Device = "auto",
) -> None:
    """Compute a pretrained network's features of images. Runs use them with data.name = features:FILE.parquet."""
    from rich.console import Console
    from rich.progress import Progress

    from fednoil.devices import pick_device
    from fednoil.features import write_features

    place, console = pick_device(device, "--device"), Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("images", total=None)
        rows, columns = write_features(
            data,
            model,
            weights,
            out,
            size=size,
            skip=skip,
            data_dir=data_dir,
            device=place,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    print(f"wrote {out}: {rows} rows of {columns} features")
    print(f"fednoil run demo --set data.name=features:{out} --set model.name=linear")
