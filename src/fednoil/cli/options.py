"""Options that several commands have, with the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Source = Annotated[
    str | None, typer.Argument(metavar="[PRESET|FILE.toml]", help="A preset's name or a TOML file; default: demo.")
]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key; may be repeated.")
]
Seed = Annotated[str | None, typer.Option("--seed", metavar="N", help="Same as --set run.seed=N.")]
StartOver = Annotated[bool, typer.Option("--force", help="Start over, replacing the run in --out.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder with datasets; default: $FEDNOIL_DATA.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Trust = Annotated[
    list[str] | None, typer.Option("--trust", metavar="MODULE:NAME", help="Your own code that the model needs.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
