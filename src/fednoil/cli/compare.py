"""`fednoil compare`: runs side by side on the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fednoil.cli.options import Json


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of several seeds' runs.")
    ],
    as_json: Json = False,
) -> None:
    """Show runs side by side."""
    from fednoil.api.comparison import side_by_side
    from fednoil.cli.tables import show

    found = side_by_side(*runs)
    show(found.rows if as_json else found.shown(), found.columns, found.title, as_json)
