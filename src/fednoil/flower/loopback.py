"""A whole federation on this machine: SuperLink and SuperNodes as processes, with TLS and authentication.

It lives in one folder: certificates, keys, Flower's home, logs, and `federation.json`, which lists what was started, so
that other commands can show its status or stop it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fednoil.errors import UserError
from fednoil.files import make_private
from fednoil.flower.credentials import CA, CERTIFICATE, KEY, OURS, have_certificates, have_key, private_folder
from fednoil.records.files import read_json, write_json, write_text

if TYPE_CHECKING:
    from fednoil.flower.control import Control

SUPERLINK, NODES, CONNECTION = "superlink", "nodes", "local"
_START = 90.0  # seconds that Flower's processes may take to come up on a busy machine
_STOP = 10.0


@dataclass(frozen=True)
class Process:
    """A process that was started, and the port it listens at."""

    name: str
    pid: int
    port: int

    def alive(self) -> bool:
        """Whether it runs and is still Flower's: process ids are reused."""
        try:
            os.kill(self.pid, 0)
            line = Path(f"/proc/{self.pid}/cmdline")
            stat = Path(f"/proc/{self.pid}/stat")
            if not line.exists():
                return not Path("/proc/self").exists()  # without /proc there is no better answer
            command, state = line.read_bytes(), stat.read_text().rpartition(")")[2].split()[0]
            ours = b"flower-" in command or b"\0-m\0fednoil" in command  # not any path with this word in it
            return state != "Z" and (ours or not command)  # empty while it starts
        except OSError:
            return False


class Loopback:
    """The federation in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()  # Flower accepts no relative paths for certificates
        self._children: list[subprocess.Popen[bytes]] = []  # of this process; those of an earlier one are in the file

    @property
    def file(self) -> Path:
        return self.folder / "federation.json"

    @property
    def processes(self) -> list[Process]:
        """The SuperLink and each node that has been started."""
        found: list[Process] = []
        for process in self._started():
            path = self._pids(process.name)
            nodes = read_json(path) if path.is_file() else {}
            found += [Process(name, int(pid), 0) for name, pid in nodes.items()] or [process]
        return found

    def _pids(self, keeper: str) -> Path:
        """The file in which a keeper of nodes lists their processes."""
        return self.folder / "home" / f"{keeper}.pids.json"

    def _started(self) -> list[Process]:
        """The processes that were started from here: the SuperLink, and keepers of nodes."""
        if not self.file.is_file():
            return []
        try:
            return [Process(**entry) for entry in read_json(self.file)["processes"]]
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{self.file} is damaged ({error!r}); stop Flower's processes yourself and remove it"
            ) from None

    def remember(self, out: Path) -> None:
        """Note the folder of the run that is submitted now."""
        make_private(self.folder / "home")
        write_json(self.folder / "home" / "run.json", {"out": str(out)})

    def last_run(self) -> Path | None:
        """The folder of the run that was submitted last."""
        path = self.folder / "home" / "run.json"
        return Path(read_json(path)["out"]) if path.is_file() else None

    def environment(self) -> dict[str, str]:
        """Flower's settings: its home here, no telemetry, this Python's commands, one thread each."""
        own = {
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        return {"OMP_NUM_THREADS": "1", **os.environ, **own}  # several nodes share the machine

    def up(self, nodes: Mapping[str, str]) -> None:
        """Start a SuperLink and one SuperNode for each name and node configuration; if one fails, stop all."""
        running = [process.name for process in self._started() if process.alive()]
        if running:
            raise UserError(f"{self.folder} is already up ({', '.join(running)}); `fednoil federation down` stops it")
        private_folder(self.folder, sorted(OURS))
        self.file.unlink(missing_ok=True)
        have_certificates(self.folder, ["localhost", "127.0.0.1"])
        try:
            self.start_superlink()
            if nodes:
                self.add_nodes(NODES, nodes)
            self.await_nodes(len(nodes))
        except BaseException:
            self.down()
            raise

    def start_superlink(self) -> Process:
        """Start the SuperLink, at the port it had before if it had one."""
        before = [process.port for process in self._started() if process.name == SUPERLINK]
        port = before[0] if before else free_port()
        connection = f"""[superlink]
default = "{CONNECTION}"

[superlink.{CONNECTION}]
address = "127.0.0.1:{port}"
root-certificates = {json.dumps(str(self.folder / CA))}
"""
        make_private(self.folder / "home")
        write_text(self.folder / "home" / "config.toml", connection)
        options = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        database = self.folder / "superlink.db"
        database.touch()
        database.chmod(0o600)  # it holds models; SQLite gives its other files the same mode
        options += ["--database", str(database), "--host", "127.0.0.1", "--port", str(port)]
        options += ["--ssl-ca-certfile", str(self.folder / CA), "--ssl-certfile", str(self.folder / CERTIFICATE)]
        options += ["--ssl-keyfile", str(self.folder / KEY)]
        process = self._start(SUPERLINK, port, [sys.executable, "-m", "fednoil.flower.link", *options])

        def ready() -> bool:
            if not process.alive():
                raise self._ended(process)
            return _listens(port)

        self._await(ready, "accept connections")
        return process

    def add_node(self, name: str, config: str, *, register: bool = True) -> Process:
        """Start one more node."""
        return self.add_nodes(name, {name: config}, register=register)

    def add_nodes(self, keeper: str, nodes: Mapping[str, str], *, register: bool = True) -> Process:
        """Start nodes in one keeper, each with its own key, which is made and registered if necessary."""
        from flwr.common.config import parse_config_args

        places = []
        for name, config in nodes.items():
            key = self.folder / "keys" / name
            public = have_key(key)
            if register:
                self._register(public)
            settings = parse_config_args([config])
            log = str(self.folder / "log" / f"{name}.log")
            places.append({"key": str(key), "settings": settings, "log": log})
        shared = {"superlink": self.address, "root_certificates": str(self.folder / CA)}
        make_private(self.folder / "home")
        path = self.folder / "home" / f"{keeper}.json"
        self._pids(keeper).unlink(missing_ok=True)
        write_json(path, [shared | place for place in places])
        command = [sys.executable, "-m", "fednoil", "federation", "node", "--nodes", str(path)]
        return self._start(keeper, 0, command)

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"127.0.0.1:{next(p.port for p in self._started() if p.name == SUPERLINK)}"

    def control(self) -> Control:
        from fednoil.flower.control import Control

        return Control(self.address, self.folder / CA)

    def _register(self, public: Path) -> None:
        """Register a key at the SuperLink, if it isn't registered yet."""
        with self.control() as control:
            control.register(public)

    def await_nodes(self, count: int) -> None:
        """Wait until `count` SuperNodes are online."""
        keepers = [process for process in self._started() if process.name != SUPERLINK]

        def ready() -> bool:
            ended = [keeper for keeper in keepers if not keeper.alive()]
            if ended and len(ended) == len(keepers):
                raise self._ended(ended[0])
            return self.online() >= count

        self._await(ready, f"bring {count} nodes online")

    def online(self) -> int:
        """How many nodes the SuperLink sees online."""
        with self.control() as control:
            return len(control.online())

    def down(self) -> list[str]:
        """Stop everything that was started here, nodes first; returns the names of what was running."""
        running = [process for process in self.processes if process.alive()]
        _stop([process for process in self._started()[::-1] if process.alive()])
        _stop([process for process in running if process.alive()])  # nodes that a killed keeper has left
        self._end_stragglers()
        for child in self._children:
            child.wait()
        self.file.unlink(missing_ok=True)
        return [process.name for process in running]

    def _end_stragglers(self) -> None:
        """Kill apps that have outlived a killed SuperLink or SuperNode, found by their Flower home."""
        home = f"FLWR_HOME={self.folder / 'home'}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command, environment = ((process / name).read_bytes() for name in ("cmdline", "environ"))
                ours = any(name in command for name in (b"flwr-", b"flower-", b"fednoil"))
                if ours and home in environment.split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)

    def _start(self, name: str, port: int, command: Sequence[str]) -> Process:
        make_private(self.folder / "log")
        with (self.folder / "log" / f"{name}.log").open("a") as log:
            started = subprocess.Popen(
                list(command),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # its own process group, so that its children can be stopped with it
            )
        self._children.append(started)
        process = Process(name, started.pid, port)
        self._write([p for p in self._started() if p.name != name] + [process])
        return process

    def _write(self, processes: Sequence[Process]) -> None:
        write_json(self.file, {"processes": [vars(process) for process in processes]})

    def _ended(self, process: Process) -> UserError:
        return UserError(f"{process.name} has ended; see {self.folder / 'log' / process.name}.log")

    def _await(self, ready: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + _START
        while not ready():
            if time.monotonic() > end:
                raise UserError(f"the federation did not {what} within {_START:g} s; see {self.folder / 'log'}")
            time.sleep(0.3)


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _stop(processes: Sequence[Process]) -> None:
    """Ask process groups to end, then make them."""
    for number, patience in ((signal.SIGTERM, _STOP), (signal.SIGKILL, 2.0)):
        for process in processes:
            if process.alive():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
        end = time.monotonic() + patience
        while any(process.alive() for process in processes) and time.monotonic() < end:
            time.sleep(0.1)
    for process in processes:  # children that outlived it
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
