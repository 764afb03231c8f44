"""`fednoil federation …`: a real federation on Flower, from keys and certificates to a recorded run."""

from __future__ import annotations

import importlib.util
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednoil.cli.options import Changes, Seed, Source, StartOver
from fednoil.cli.stopping import Stopped
from fednoil.errors import UserError

if TYPE_CHECKING:
    from fednoil.config import Config
    from fednoil.flower.loopback import Loopback

app = typer.Typer(
    help="Run a real federation on Flower.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The federation's folder; default: ./federation.")]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]
Where = Annotated[Path, typer.Option("--federation", help="The folder of a federation on this machine.")]
SuperLink = Annotated[
    str | None, typer.Option("--superlink", help="Another SuperLink, named as in Flower's config.toml.")
]
HERE = Path("federation")


@app.callback()
def _flower() -> None:
    """Run a real federation on Flower."""
    if importlib.util.find_spec("flwr") is None:
        raise UserError("fednoil federation needs Flower, which is not installed: pip install 'fednoil[flower]'")


@app.command()
def certs(
    folder: Folder = HERE,
    host: Annotated[
        list[str] | None, typer.Option("--host", help="Name or address nodes use for the server; may be repeated.")
    ] = None,
    renew: Annotated[
        bool,
        typer.Option("--renew", help="Make a new server certificate from the same authority; sites need nothing new."),
    ] = False,
    force: Force = False,
) -> None:
    """Make a certificate authority and the SuperLink's certificate."""
    from fednoil.flower.credentials import make_certificates, renew_certificate

    if renew:
        if host or force:
            raise UserError("--renew keeps names and authority: give no --host and no --force with it")
        return print(renew_certificate(folder))
    hosts = [*(host or []), "localhost", "127.0.0.1"]
    for path in make_certificates(folder, hosts, force):
        print(path)


@app.command()
def keys(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="One key pair for each name.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the keys.")] = HERE / "keys",
    force: Force = False,
) -> None:
    """Make key pairs for SuperNodes to authenticate with."""
    from fednoil.flower.credentials import make_key
    from fednoil.flower.names import named

    for name in names:
        if name.endswith(".pub"):
            raise UserError(f"'{name}' is not a name for a key: the public half of another key would have that name")
        for path in make_key(out / named(name, "the name of a key"), force):
            print(path)


@app.command()
def up(
    folder: Folder = HERE,
    site: Annotated[
        list[str] | None,
        typer.Option("--site", metavar="NAME=DATA", help="A node and its data, as folder:PATH."),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, help="N nodes, each with a partition of data.name.")
    ] = None,
) -> None:
    """Start a SuperLink and SuperNodes on this machine. They use TLS and authentication."""
    from fednoil.data import check_own

    if bool(site) == (partitions is not None):
        raise UserError("give --site NAME=DATA for each node, or --partitions N")
    federation = _loopback(folder)
    state = _quoted(federation.folder / "nodes")
    nodes = {f"client-{k}": f"partition-id={k} state={state}" for k in range(partitions or 0)}
    for text in site or []:
        name, data = _site(text)
        if name in nodes:
            raise UserError(f"--site {text}: '{name}' is given twice; each site needs its own name")
        nodes[name] = f'client-id="{name}" data={_quoted(data)} state={state}'
        check_own(data, f"--site {text}")
    federation.up(nodes)
    print(f"up with {len(nodes)} nodes; logs in {federation.folder / 'log'}")


@app.command()
def down(folder: Folder = HERE) -> None:
    """Stop everything that `up` started."""
    stopped = _loopback(folder).down()
    print(f"stopped {', '.join(stopped)}" if stopped else f"nothing was running in {folder}")


@app.command()
def run(
    source: Source = None,
    changes: Changes = None,
    folder: Where = HERE,
    superlink: SuperLink = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the results, on the SuperLink's machine; default: runs/<preset>."),
    ] = None,
    seed: Seed = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, or start it.")] = False,
    force: StartOver = False,
) -> None:
    """Run an experiment on a federation. It is recorded like any other run."""
    from fednoil.cli.resolving import resolve
    from fednoil.flower.submission import EndedEarly, follow
    from fednoil.records.folder import CHECKPOINT, RunFolder

    if resume and force:
        raise UserError("--resume and --force exclude each other: continue the run, or start over")
    own = [text.partition("=")[0].strip() for text in changes or []]
    # A federation's rounds are expensive, and its server may be killed: every round is checkpointed.
    each = [] if "run.checkpoint_every" in own else ["run.checkpoint_every=1"]
    made, target = resolve(source, [*(changes or []), *each], seed, None, out, resume)
    try:
        if RunFolder(target).is_held():
            if not resume:
                raise UserError(f"{target} is being written by another process; wait for it, or choose another --out")
            print(f"{target} is already running; following it", flush=True)
            return follow(target)
        _submit(made.config, target, folder, superlink, resume=resume, force=force, origin=made.origin)
    except Stopped as stop:
        stop.hint = f"continue with: {_resuming(target, folder, superlink)}"
        raise
    except EndedEarly as error:
        kept = (target / CHECKPOINT).is_dir()
        more = f"; continue with: {_resuming(target, folder, superlink)}" if kept else ""
        raise UserError(f"{error}{more}") from None


@app.command()
def audit(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a federation's run.")],
    folds: Annotated[int, typer.Option("--folds", min=2, metavar="K", help="How many folds.")] = 5,
    folder: Where = HERE,
    superlink: SuperLink = None,
) -> None:
    """Let the nodes audit their labels out of folds. K more runs are made, and each judges the labels it left out."""
    from fednoil.cli.tables import show
    from fednoil.config.loading import load_config
    from fednoil.records.files import read_json
    from fednoil.records.folder import RunFolder
    from fednoil.records.older import read_current

    RunFolder(path).check_is_run("; give one that `fednoil federation run` has written")
    roster = RunFolder(path).roster()
    config = load_config(read_current(path / "config.toml"))
    if roster is None or not roster.federated:
        raise UserError(f"{path} is not a federation's run; audit it with: fednoil audit {path} --folds {folds}")
    if not config.federation.audit:
        raise UserError(
            f"{path}: federation.audit = false, so its nodes do not audit; make a run with federation.audit = true"
        )
    runs = [path / f"folds-{folds}" / f"fold-{fold + 1}" for fold in range(folds)]
    for fold, one in enumerate(runs):
        if not (one / "summary.json").is_file():
            print(f"fold {fold + 1} of {folds}: {config.train.rounds} rounds without it", flush=True)
            _submit(config.without_fold(fold, folds), one, folder, superlink, resume=True)
    reported = [read_json(one / "summary.json").get("noise_ratios", {}) for one in runs]
    rows, missing = [], set()
    for name in sorted({name for found in reported for name in found}):
        missed = [fold for fold, found in enumerate(reported) if name not in found]
        last = [found[name] for found in reported if name in found][-1]
        rows.append({"client": name, "noise": f"{100 * last:.1f} %", "missed": ", ".join(str(f + 1) for f in missed)})
        missing |= set(missed)
    title = f"Labels of {path}; each node has its audit in its own folder"
    show(rows, {"client": "client", "noise": "labels wrong", "missed": "folds missed"}, title, False)
    for fold in sorted(missing):
        print(f"to repeat fold {fold + 1} with those who missed it, remove {runs[fold]} and run the command again")


def _submit(
    config: Config,
    out: Path,
    folder: Path,
    superlink: str | None,
    *,
    resume: bool,
    force: bool = False,
    origin: Mapping[str, Any] | None = None,
) -> None:
    """Carry out one run on the federation."""
    from fednoil.flower.bundle import write_bundle
    from fednoil.flower.control import configured
    from fednoil.flower.loopback import CONNECTION, Loopback
    from fednoil.flower.submission import check_here, flwr_run

    federation = Loopback(folder)
    if superlink is None and not any(p.alive() for p in federation.processes):
        raise UserError(f"{folder} is not up; start it with `fednoil federation up`, or use another: --superlink NAME")
    if superlink is not None:
        configured(superlink)
    else:
        out = out.resolve()  # the ServerApp has a different working folder
        check_here(config, out, federation, resume=resume, force=force)
    with tempfile.TemporaryDirectory(prefix="fednoil-app-") as place:
        bundle, command = Path(place) / "app", ["fednoil", *sys.argv[1:]]
        if superlink is None:
            federation.remember(out)
        nodes = 0 if superlink else len(federation.processes) - 1
        write_bundle(bundle, config, out, resume=resume, force=force, command=command, origin=origin, nodes=nodes)
        flwr_run(bundle, superlink or CONNECTION, None if superlink else federation, out)


def _resuming(target: Path, folder: Path, superlink: str | None) -> str:
    """The command that resumes a run on the same federation."""
    where = ["--superlink", superlink] if superlink else ["--federation", str(folder)] if folder != HERE else []
    return shlex.join(["fednoil", "federation", "run", "--resume", "--out", str(target), *where])


def _loopback(folder: Path) -> Loopback:
    from fednoil.flower.loopback import Loopback

    return Loopback(folder)


def _site(text: str) -> tuple[str, str]:
    """NAME=DATA, with the data's path made absolute: the node has a different working folder."""
    from fednoil.data import forms
    from fednoil.data.sites import TEST
    from fednoil.flower.names import named

    name, equals, data = text.partition("=")
    form, colon, path = data.partition(":")
    known = forms()
    if not equals or not name or form not in {one.partition(":")[0] for one in known} or not colon or not path:
        raise UserError(f"--site {text}: write NAME={' or NAME='.join(known)}")
    name = named(name, f"--site {text}:")
    if name in ("superlink", "nodes", TEST):
        raise UserError(f"--site {text}: '{name}' is reserved; choose another")
    return name, f"{form}:{Path(path).expanduser().resolve()}"


def _quoted(value: object) -> str:
    """A string for Flower's --node-config, which has no way to escape a quotation mark."""
    if '"' in str(value):
        raise UserError(f"{value}: Flower doesn't accept a path with a quotation mark; rename it")
    return f'"{value}"'
