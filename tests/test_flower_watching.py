"""How a federation is doing: status, health, metrics, logs, versions, and certificates that are renewed meanwhile."""

from __future__ import annotations

import http.server
import json
import logging
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from conftest import fednoil, refused
from loop_grid import LoopGrid, federate, partitions

from fednoil import __version__
from fednoil.errors import UserError
from fednoil.flower import watching
from fednoil.flower.credentials import make_certificates, renew_certificate
from fednoil.flower.link import Renewed
from fednoil.flower.logs import JsonFormatter
from fednoil.flower.loopback import Loopback
from fednoil.flower.watching import Pulse, check_node, check_reachable, metrics_server, run_status
from fednoil.records.folder import RunFolder

Values = dict[str, Any]


@pytest.fixture
def out(federated: Values, tmp_path: Path) -> Path:
    """A finished run of three rounds."""
    federated["train"]["rounds"] = 3
    federate(federated, tmp_path / "run")
    return tmp_path / "run"


def test_a_runs_status_says_whether_it_goes_on(out: Path, tmp_path: Path) -> None:
    assert run_status(out).words().startswith(f"run {out}: round 3 of 3, finished; last round ")
    with RunFolder(out).locked():
        assert ": round 3 of 3, goes on; " in run_status(out).words()
    (out / "summary.json").unlink()
    assert ": round 3 of 3, stopped; " in run_status(out).words()
    Loopback(tmp_path / "f").remember(out)
    status, said, _ = fednoil("federation", "status", tmp_path / "f")
    assert (status, said) == (0, run_status(out).words() + "\n")
    _, said, _ = fednoil("federation", "status", "--run", out, "--json")
    found = json.loads(said)
    assert (found["run"]["round"], found["run"]["going_on"], found["run"]["finished"]) == (3, False, False)
    assert found["run"]["last"]["nodes"] == [f"client-{k}" for k in range(4)]
    assert "is not a run folder" in refused("federation", "status", "--run", tmp_path / "none")


def read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return answer.read().decode()


def test_prometheus_reads_a_run_from_its_folder(out: Path, tmp_path: Path) -> None:
    for folder in (out, tmp_path / "later"):
        with metrics_server(folder, "127.0.0.1", 0) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            text = read(f"http://127.0.0.1:{server.server_port}/metrics?now=1")
            with pytest.raises(OSError, match="404"):
                read(f"http://127.0.0.1:{server.server_port}/other")
            server.shutdown()
        lines = text.splitlines()
        if folder != out:
            assert lines == []
            continue
        assert {"fednoil_round 3", "fednoil_rounds 3", "fednoil_going_on 0", "fednoil_nodes 4"} <= set(lines)
        assert {"# TYPE fednoil_failures_total counter", "fednoil_failures_total 0"} <= set(lines)
        assert all(line.startswith("#") or len(line.split()) == 2 for line in lines)


def test_a_damaged_run_is_not_healthy(out: Path) -> None:
    (out / "rounds.jsonl").write_text("{}\n" * 2)
    with metrics_server(out, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(OSError, match="503"):
            read(f"http://127.0.0.1:{server.server_port}/metrics")
        server.shutdown()


def test_a_nodes_health_is_its_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(watching.time, "time", lambda: now[0])
    with pytest.raises(UserError, match="never been online"):
        check_node(tmp_path / "a")
    pulse = Pulse(tmp_path / "a")
    pulse.beat()
    assert check_node(tmp_path / "a") == "online, waiting for work"
    assert fednoil("federation", "health", "node", "--name", "a", "--state", tmp_path)[0] == 0
    now[0] += 61
    with pytest.raises(UserError, match="not been heard from for 61 s"):
        check_node(tmp_path / "a")
    pulse.beat("train")
    now[0] += 7200
    assert check_node(tmp_path / "a") == "train, for 7200 s"
    monkeypatch.setattr(os, "getpid", lambda: 2**22 + 1)  # no process has such a number
    pulse.beat("train")
    with pytest.raises(UserError, match="process has ended"):
        check_node(tmp_path / "a")
    whole = json.loads((tmp_path / "a" / "health.json").read_text())
    for damaged in ({}, *({**whole, "pid": pid} for pid in (0, -1, 2**70, float("inf"), None))):
        (tmp_path / "a" / "health.json").write_text(json.dumps(damaged))
        with pytest.raises(UserError, match=r"health\.json is damaged"):
            check_node(tmp_path / "a")
    assert "health node needs --name" in refused("federation", "health", "node")
    gone = refused("federation", "health", "server", "--folder", tmp_path)
    assert f"{tmp_path}/ca.crt is missing; name the server's folder with --folder" in gone


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def serial(port: int, ca: Path) -> str:
    """The serial number of the certificate that a new connection sees."""
    context = ssl.create_default_context(cafile=str(ca))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        return str((secure.getpeercert() or {})["serialNumber"])


def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    ca, _, certificate, key = make_certificates(tmp_path, ["localhost"])
    authority = ca.read_bytes()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    renewed = Renewed(context, certificate, key)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_port
        assert check_reachable(ca, port) == f"the server answers at localhost:{port}"
        before = serial(port, ca)
        assert not renewed.look()
        assert fednoil("federation", "certs", tmp_path, "--renew")[0] == 0
        os.utime(certificate, (1, 1))  # whatever the clock's resolution
        assert renewed.look()
        assert serial(port, ca) != before
        assert check_reachable(ca, port)
        certificate.write_text("half of it")
        assert not renewed.look()
        assert check_reachable(ca, port)
        server.shutdown()
    assert ca.read_bytes() == authority
    with pytest.raises(UserError, match=f"no answer from the server at localhost:{port}"):
        check_reachable(ca, port)
    with pytest.raises(UserError, match="no certificate that can be renewed"):
        renew_certificate(tmp_path)
    assert "give no --host" in refused("federation", "certs", tmp_path, "--renew", "--host", "x")


def test_a_node_of_another_minor_version_is_refused_by_name(federated: Values, tmp_path: Path) -> None:
    federated["train"]["rounds"] = 1
    federated["federation"] |= {"min_nodes": 3, "wait": 3}
    patch = ".".join([*__version__.split(".")[:2], "99"])

    def spoil(node: int, order: Any, reply: Any) -> Any:
        if order.metadata.message_type == "query.hello" and node in (898, 899):
            reply.content["values"]["version"] = "0.0.7" if node == 898 else patch
        return reply

    (record,) = federate(federated, tmp_path / "run", LoopGrid(partitions(tmp_path / "state"), spoil))
    assert record["nodes"] == ["client-0", "client-1", "client-3"]
    assert record["refused"] == {
        "client-2": f"it has fednoil 0.0.7, the server {__version__}; install the same minor version"
    }


def test_a_log_line_is_a_json_object() -> None:
    record = logging.LogRecord("flwr.fednoil", logging.WARNING, "x.py", 1, "%s wäre\nweg", ("a",), None)
    line = JsonFormatter().format(record)
    found = json.loads(line)
    assert "\n" not in line
    assert {key: found[key] for key in ("level", "logger", "message")} == {
        "level": "warning",
        "logger": "flwr.fednoil",
        "message": "a wäre\nweg",
    }


def test_flowers_own_lines_are_json_too() -> None:
    program = "from fednoil.flower.logs import use_json; use_json(); from flwr.supercore import log; log(20, 'a %s', 1)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [json.loads(line)["message"] for line in done.stdout.splitlines()] == ["a 1"]


def test_a_log_in_a_file_has_times_and_no_colours() -> None:
    program = "from fednoil.flower.logs import use_plain; use_plain(); from flwr.supercore import log; log(20, 'a')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"INFO \d{4}-\d\d-\d\d [\d:,]+: +a\n", done.stderr)


WRAPPED = """
import os, sys
from fednoil.flower.logs import wrap_output
wrap_output()
print("\\x1b[92mtext\\x1b[0m of ours", flush=True)
os.system("echo text of a child; echo and its error >&2")
print('{"level": "info"}')
print("[1]")
sys.exit(3)
"""


def test_what_flowers_own_processes_print_is_json_too() -> None:
    done = subprocess.run([sys.executable, "-c", WRAPPED], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (3, "")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    said = [one.get("message", one) for one in found]
    assert said == ["text of ours", "text of a child", "and its error", {"level": "info"}, "[1]"]
    assert all(one["level"] == "info" for one in found)


def test_status_asks_another_superlink_for_its_nodes(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificates(tmp_path / "certs", ["localhost"])
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text(
        f'[superlink.central]\naddress = "127.0.0.1:1"\nroot-certificates = "{tmp_path}/certs/ca.crt"\n'
        '[superlink.gone]\naddress = "127.0.0.1:1"\nroot-certificates = "/nowhere/ca.crt"\n'
    )
    for command in (["status"], ["run", "demo", "--out", tmp_path / "run"]):
        assert "has no [superlink.other] with" in refused("federation", *command, "--superlink", "other")
    assert "/nowhere/ca.crt: No such file" in refused("federation", "status", "--superlink", "gone")
    assert "doesn't list its nodes" in refused("federation", "status", "--superlink", "central")
    monkeypatch.setattr("fednoil.flower.control.Control.online", lambda self: [self.address] * 3)
    _, said, _ = fednoil("federation", "status", "--superlink", "central", "--run", out)
    assert said.splitlines()[0] == "3 nodes online"
    assert "2 of 4 nodes (client-0, client-1, client-2, client-3) trained" in said
    _, said, _ = fednoil("federation", "status", "--run", out, "--json")
    assert json.loads(said)["online"] is None  # nobody was asked
