"""`fednoil report`: run folders as a page, as Markdown and as LaTeX."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fednoil.errors import UserError

if TYPE_CHECKING:
    from fednoil.report.results import Results


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, folders of run folders, or records.")
    ],
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="One self-contained page.")] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", metavar="FILE", help="Tables as Markdown.")] = None,
    latex: Annotated[Path | None, typer.Option("--latex", metavar="FILE", help="Tables as LaTeX.")] = None,
    record: Annotated[
        Path | None, typer.Option("--record", metavar="FILE", help="All runs as one small file, to report again.")
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="With --html: write the page again after each round, until all runs have ended."),
    ] = False,
    title: Annotated[str, typer.Option("--title", help="The page's title.")] = "FedNoiL: results",
) -> None:
    """Compare runs with each other and with the paper. The paper's numbers stand beside runs of its experiments."""
    from fednoil.cli.results import show_results
    from fednoil.report.record import write_record
    from fednoil.report.results import load_results
    from fednoil.study.report import STUDY

    asked = {"--html": html, "--markdown": markdown, "--latex": latex, "--record": record}
    files = {option: path for option, path in asked.items() if path is not None}
    for option, path in files.items():
        if (path.exists() and not path.is_file()) or not path.parent.is_dir():
            what = "is not a file" if path.exists() else f"is in {path.parent}, which doesn't exist"
            raise UserError(f"{option} {path} {what}; name a file in a folder that exists")
        if path.is_file() and not _replaceable(path, option):
            raise UserError(f"{option} {path} already exists and isn't such a report; choose another name")
    if len({path.absolute() for path in files.values()}) < len(files):
        raise UserError("two of --html, --markdown, --latex and --record name the same file; give each its own")
    if watch:
        if html is None:
            raise UserError("--watch writes a page again and again; name it with --html")
        from fednoil.report.watching import follow

        print(f"writing {html} after each round; Ctrl-C ends it", flush=True)
        follow(runs, html, title, STUDY)
    results = load_results(runs, STUDY)
    written = write_reports(results, html, markdown, latex, title)
    if record is not None:
        write_record(results.runs, record)
        written.append(record)
    for path in written:
        print(f"wrote {path}")
    if not written:
        show_results(results)


def _replaceable(path: Path, option: str) -> bool:
    """Whether a file looks like what this command writes, or is empty: only that is replaced."""
    sign = {
        "--html": b"fednoil report",
        "--markdown": b"| method |",
        "--latex": b"% needs ",
        "--record": b"train_batches",
    }
    content = path.read_bytes()
    return not content or sign[option] in (content if option == "--record" else content[:2000])


def write_reports(
    results: Results, html: Path | None, markdown: Path | None, latex: Path | None, title: str
) -> list[Path]:
    """Write the requested files; returns their paths."""
    from fednoil.records.files import write_text
    from fednoil.report import html as page
    from fednoil.report import latex as tables
    from fednoil.report import text

    if html is not None:
        write_text(html, page.render(results, title))
    if markdown is not None:
        write_text(markdown, text.markdown(results))
    if latex is not None:
        write_text(latex, tables.latex(results))
    return [path for path in (html, markdown, latex) if path is not None]
