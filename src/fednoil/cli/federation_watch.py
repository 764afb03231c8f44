"""`fednoil federation status`, `health` and `metrics`: how servers, nodes and runs are doing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fednoil.cli.federation import HERE, Folder, SuperLink, app
from fednoil.cli.options import Json
from fednoil.errors import UserError

Run = Annotated[Path | None, typer.Option("--run", metavar="OUT", help="A run's folder; default: the last one here.")]


@app.command()
def status(folder: Folder = HERE, superlink: SuperLink = None, run: Run = None, as_json: Json = False) -> None:
    """Show a federation's processes, its nodes and its run. The processes are those on this machine."""
    from fednoil.cli.tables import show
    from fednoil.flower.control import connected
    from fednoil.flower.loopback import Loopback
    from fednoil.flower.watching import run_status

    federation = Loopback(folder)
    rows: list[dict[str, Any]] = [
        {"name": p.name, "running": p.alive(), "pid": p.pid, "port": p.port or None} for p in federation.processes
    ]
    out = run or federation.last_run()
    found = run_status(out) if out is not None and (run is not None or out.is_dir()) else None
    if not rows and found is None and superlink is None:
        raise UserError(
            f"{folder} has no federation; `fednoil federation up` starts one, or give --superlink NAME or --run OUT"
        )
    online = None
    if superlink is not None:
        with connected(superlink) as control:
            online = len(control.online())
    elif rows:
        link = next((row for row in rows if row["name"] == "superlink"), None)
        online = federation.online() if link and link["running"] else 0
    if as_json:
        print(json.dumps({"online": online, "processes": rows, "run": found and found.values()}, indent=2))
        return
    if rows:
        columns = {"name": "name", "running": "running", "pid": "process", "port": "port"}
        show(rows, columns, f"{online} nodes online", False)
    elif online is not None:
        print(f"{online} nodes online")
    if found is not None:
        print(found.words())


@app.command()
def health(
    role: Annotated[Literal["server", "node"], typer.Argument(metavar="ROLE", help="server or node.")],
    folder: Annotated[Path, typer.Option("--folder", help="server: the folder with its certificates.")] = HERE,
    port: Annotated[int, typer.Option("--port", help="server: its port.")] = 8000,
    name: Annotated[str | None, typer.Option("--name", help="node: the site's name.")] = None,
    state: Annotated[Path | None, typer.Option("--state", help="node: its --state.")] = None,
) -> None:
    """Check that the server or a node on this machine is healthy. If it isn't, a line says why, with exit status 2."""
    from fednoil.flower.credentials import CA
    from fednoil.flower.watching import check_node, check_reachable

    if role == "server":
        if not (folder / CA).is_file():
            raise UserError(f"{folder / CA} is missing; name the server's folder with --folder")
        print(check_reachable(folder / CA, port))
        return
    if name is None:
        raise UserError("health node needs --name, the site's name")
    print(check_node((state or Path.home() / ".fednoil" / "nodes") / name))


@app.command()
def metrics(
    run: Annotated[Path, typer.Argument(metavar="OUT", help="The run's folder, which need not exist yet.")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on.")] = 9464,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Serve a run's numbers to Prometheus, at /metrics, until stopped."""
    from fednoil.flower.watching import metrics_server

    with metrics_server(run, host, port) as server:
        print(f"http://{host}:{server.server_port}/metrics", flush=True)
        server.serve_forever()
