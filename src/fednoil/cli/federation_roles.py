"""`fednoil federation server` and `node`: what runs on the server and at each site, for as long as they take part."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fednoil.cli.federation import HERE, Folder, app
from fednoil.errors import UserError

State = Annotated[
    Path | None, typer.Option("--state", help="Folder for what the client keeps; default: ~/.fednoil/nodes.")
]


LogJson = Annotated[bool, typer.Option("--log-json", help="Log as JSON lines.")]


@app.command()
def server(
    folder: Folder = HERE,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = 8000,
    state: Annotated[Path | None, typer.Option("--state", help="Folder for its database; default: FOLDER.")] = None,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", help="Register the sites' public keys in this folder, including later ones."),
    ] = None,
    log_json: LogJson = False,
) -> None:
    """Run the server (Flower's SuperLink) until stopped. FOLDER has its certificates (`fednoil federation certs`)."""
    from fednoil.flower.control import Control
    from fednoil.flower.credentials import CA, CERTIFICATE, KEY, have_certificates
    from fednoil.flower.link import main

    missing = [name for name in (CA, CERTIFICATE, KEY) if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{folder / missing[0]} is missing; make it: fednoil federation certs {folder} --host NAME")
    have_certificates(folder, [])
    database = (state or folder).resolve() / "superlink.db"
    try:
        database.touch(mode=0o600)  # it holds models; SQLite gives its other files the same mode
    except OSError as error:
        raise UserError(f"--state {database.parent}: {error.strerror}") from None
    options = ["--host", host, "--port", str(port), "--database", str(database), "--enable-supernode-auth"]
    files = {"ca-certfile": CA, "certfile": CERTIFICATE, "keyfile": KEY}
    options += [part for name, file in files.items() for part in (f"--ssl-{name}", str((folder / file).resolve()))]
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    sys.argv = ["flower-superlink", *options, "--disable-runtime-dependency-installation"]

    def register(public: Path) -> None:
        with Control(f"localhost:{port}", folder / CA) as control:
            control.register(public)

    main(json=log_json, keys=keys, register=register)


@app.command()
def node(
    superlink: Annotated[str | None, typer.Option("--superlink", metavar="HOST:PORT", help="The server.")] = None,
    root_certificates: Annotated[Path | None, typer.Option("--root-certificates", help="The server's ca.crt.")] = None,
    key: Annotated[Path | None, typer.Option("--key", help="This site's private key.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The site's name, which doesn't change.")] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="The site's own data, such as folder:PATH or table:FILE.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="For trials: a partition of data.name instead of --data.")
    ] = None,
    state: State = None,
    trust: Annotated[
        list[str] | None, typer.Option("--trust", help="Code of a run that this site allows, as my_module:MyLearner.")
    ] = None,
    score_epsilon: Annotated[
        float | None, typer.Option("--score-epsilon", help="The most ε that one run's scores may cost.")
    ] = None,
    score_budget: Annotated[
        float | None, typer.Option("--score-budget", help="The most ε that all runs' scores may cost.")
    ] = None,
    server_sees: Annotated[
        str | None, typer.Option("--server-sees", help="The most the server may see of updates: sum or noise.")
    ] = None,
    log_json: LogJson = False,
    nodes: Annotated[Path | None, typer.Option("--nodes", hidden=True, help="Several nodes, as `up` starts.")] = None,
) -> None:
    """Take part in a federation with this site's data. Runs until stopped; code that the server sends is not run."""
    if nodes is None:
        _check_node(superlink, root_certificates, key, data, partition)
    from fednoil.flower.keeper import Keeper
    from fednoil.flower.logs import use_json, use_plain
    from fednoil.flower.resident import NodeSetup

    if nodes is not None:
        raise typer.Exit(Keeper(_listed(nodes), nodes.with_suffix(".pids.json")).keep())
    given: dict[str, Any] = {
        "client-id": name,
        "data": data,
        "partition-id": partition,
        "state": None if state is None else str(state),
        "trust": " ".join(trust) if trust else None,
        "score-epsilon": score_epsilon,
        "score-budget": score_budget,
        "server-sees": server_sees,
    }
    place = NodeSetup(str(superlink), root_certificates, key, {k: v for k, v in given.items() if v is not None})
    place.check()
    use_json() if log_json else use_plain()
    raise typer.Exit(Keeper([place]).keep())


def _check_node(
    superlink: str | None, root_certificates: Path | None, key: Path | None, data: str | None, partition: int | None
) -> None:
    if superlink is None or root_certificates is None or key is None:
        raise UserError("federation node needs --superlink HOST:PORT, --root-certificates ca.crt and --key FILE")
    if not superlink.rpartition(":")[2].isdecimal():
        raise UserError(f"--superlink {superlink}: write HOST:PORT, such as {superlink}:8000")
    if data is not None and partition is not None:
        raise UserError(
            f"--data {data} is a site's own data, --partition {partition} is for trials: leave one of them out"
        )


def _listed(path: Path) -> list[Any]:
    from fednoil.flower.resident import NodeSetup
    from fednoil.records.files import read_json

    return [
        NodeSetup(one["superlink"], Path(one["root_certificates"]), Path(one["key"]), one["settings"], Path(one["log"]))
        for one in read_json(path)
    ]
