"""The command `fednoil`."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import typer.core

from fednoil import __version__
from fednoil.cli import federation, federation_roles, federation_watch
from fednoil.cli.audit import audit
from fednoil.cli.bench import bench
from fednoil.cli.compare import compare
from fednoil.cli.datasets import data
from fednoil.cli.export import export
from fednoil.cli.features import features
from fednoil.cli.methods import methods
from fednoil.cli.options import Device, Json, Trust
from fednoil.cli.relabel import relabel
from fednoil.cli.report import report
from fednoil.cli.reproduce import reproduce
from fednoil.cli.resolving import asked_device
from fednoil.cli.run import run
from fednoil.cli.stopping import Stopped
from fednoil.errors import Slower, UserError, full_disk, full_gpu, gpu_is_full

typer.core.HAS_RICH = False  # help is plain text; otherwise typer would escape "[default: …]" for rich
app = typer.Typer(
    name="fednoil",
    help="Federated learning on noisy labels: any federated algorithm with any noisy-label learner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    asked: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before any command."""


app.command()(run)


@app.command()
def presets(
    pattern: Annotated[
        str, typer.Argument(help="List the names that contain this; * stands for anything. Default: an overview.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show the presets, or list those that match a pattern."""
    from fnmatch import fnmatchcase

    from fednoil.cli.resolving import register_study
    from fednoil.config.presets import about_presets, preset, preset_names

    register_study()
    names = [name for name in preset_names() if fnmatchcase(name, f"*{pattern}*")]
    if not names:
        raise UserError(f"no preset's name contains '{pattern}'; `fednoil presets` shows what they are made of")
    if as_json:
        print(json.dumps({name: preset(name) for name in names}, indent=2))
    elif pattern:
        print("\n".join(names))
    else:
        print("\n".join(about_presets()))
        print("List names: fednoil presets PATTERN, for example 'cifar10/*/krum' or symmetric-high")


app.command()(methods)


app.command()(data)
app.command()(features)

app.command()(compare)
app.command()(report)
app.command()(reproduce)
app.command()(bench)
app.command()(audit)
app.command()(relabel)
app.command()(export)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL.safetensors", help="A model that a run has written.")],
    images: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Image files, or tables of rows.")],
    resize: Annotated[bool, typer.Option("--resize", help="Scale images to the model's size.")] = False,
    trust: Trust = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Classify images with a trained model."""
    from fednoil.cli.tables import show
    from fednoil.predict import predict_files

    place = asked_device(device)
    doubt = partial(print, "warning:", file=sys.stderr)
    rows = predict_files(model, images, resize=resize, trusted=tuple(trust or ()), device=place, doubt=doubt)
    show(rows, {"image": "sample", "class": "class", "probability": "probability"}, "Predictions", as_json)


for commands in (federation_roles, federation_watch):
    assert commands.app is federation.app  # they add to it
app.add_typer(federation.app, name="federation")


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Run the command; errors become one line and an exit status."""
    # Before PyTorch is imported: its threads must not wait for each other busily. With one of two processors taken by
    # another program demo/fedavg takes less than a third of the time like this; alone, as long as before.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    signal.signal(signal.SIGTERM, _on_signal)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background may ignore Ctrl-C
        signal.signal(signal.SIGINT, _on_signal)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup ignores it
        signal.signal(signal.SIGHUP, _on_signal)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal can't show is not an error
    warnings.formatwarning = _in_one_line
    status = _run_app()
    gc.freeze()  # otherwise the exit collects garbage in all modules, a quarter of the time of `import torch`
    sys.exit(status)


def _in_one_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
    usual: Callable[..., str] = warnings.formatwarning,
) -> str:
    """Our own warnings in one line; others with their place in the code, as Python shows them."""
    if issubclass(category, Slower):
        return f"fednoil: {' '.join(str(message).split())}\n"
    return usual(message, category, filename, lineno, line)


def _on_signal(number: int, _frame: object) -> None:
    if number == signal.SIGTERM:  # a parent that ends asks twice: the second must not stop the last checkpoint
        signal.signal(number, signal.SIG_IGN)
    raise Stopped(number)


def _run_app() -> int:
    try:
        status = int(app(standalone_mode=False) or 0)
        sys.stdout.flush()  # here, where a full disk or a closed pipe can still be reported
        return status
    except UserError as error:
        return _fail(str(error))
    except Stopped as stop:
        word = "interrupted" if stop.number == signal.SIGINT else "stopped"
        return _fail(f"{word}; {stop.hint}" if stop.hint else word, 128 + stop.number)
    except BrokenPipeError:
        _drop_output()  # the reader is gone
        return 1
    except OSError as error:
        if error.errno is None:
            raise
        _drop_output()
        if said := full_disk(error):
            resumes = sys.argv[1:2] == ["run"] or sys.argv[1:3] == ["federation", "run"]
            return _fail(said + " and continue with --resume" * resumes)
        return _fail(f"{error.filename or 'writing'}: {error.strerror}")
    except Exception as error:
        if gpu_is_full(error):  # in read-only commands; a run itself says how to continue
            return _fail(full_gpu(error, "wait until other programs have freed it, or use --device cpu"))
        # Wrong usage raises the command-line library's own exceptions, which are not public: only their shape is known.
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())  # pyright: ignore[reportAttributeAccessIssue]
            return 2
        from fednoil.cli.usage import said

        return _fail(said(error))


def _drop_output() -> None:
    """Discard what is still in standard output's buffer, so that closing it can't fail again."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, status: int = 2) -> int:
    with contextlib.suppress(OSError):  # a terminal that was closed
        print(f"fednoil: {' '.join(message.split())}", file=sys.stderr)
    return status
