"""Several machines as far as one can play them: the commands of docs/federation.md, each in a machine of its own.

A server and two sites are network namespaces on a switch, with addresses, a loopback, a home and a clean environment of
their own. None sees the others' files; only what the documentation says is copied between them. The commands are read
from the documentation, with the folders moved under this machine's. Afterwards the same machines try what must not
work. Needs Linux, root, iproute2, util-linux and curl.

    sudo .venv/bin/python tools/federation_machines.py --folder /tmp/machines
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from fednoil.config.loading import load_config
from fednoil.data import DataConfig, load
from fednoil.noise import apply
from fednoil.seeds import Seed

ROOT = Path(__file__).parents[1]
SWITCH = "fl-switch"
MACHINES = {"server": "10.77.0.1", "site-a": "10.77.0.2", "site-b": "10.77.0.3"}
NOISE = {"site-a": 0.1, "site-b": 0.6}
PLACES = ("/etc/fl", "/var/lib/fl", "/var/lib/fednoil", "/data/images")


class Machine:
    """A network namespace with a home of its own, in which the other machines' folders are empty."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.running = name, folder, list[subprocess.Popen[bytes]]()
        for place in ("home", "tmp", "etc", "var/lib"):
            (folder / place).mkdir(parents=True)
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{MACHINES['server']} fl.example.org\n")

    def here(self, text: str) -> str:
        """A command or a file of the documentation, with its folders moved to this machine's."""
        return re.sub("|".join(sorted(PLACES, key=len, reverse=True)), lambda found: f"{self.folder}{found[0]}", text)

    def inside(self, command: str) -> list[str]:
        """The command in this machine: its network, its hosts file, nobody else's files, a clean environment."""
        others = [f"mount -t tmpfs none {shlex.quote(str(self.folder.parent / n))}" for n in MACHINES if n != self.name]
        mounts = [f"mount --bind {shlex.quote(str(self.folder / 'hosts'))} /etc/hosts", *others]
        bins = f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        home = [f"HOME={self.folder}/home", f"TMPDIR={self.folder}/tmp", f"PATH={bins}", "LANG=C.UTF-8"]
        clean = shlex.join(["env", "-i", "-C", f"{self.folder}/home", *home, "bash", "-c", command])
        script = " && ".join([*mounts, f"exec {clean}"])
        return ["ip", "netns", "exec", f"fl-{self.name}", "unshare", "--mount", "sh", "-c", script]

    def run(self, command: str, *, may_fail: bool = False) -> str:
        """Show a command, run it to its end; what it said."""
        print(f"{self.name}$ {' '.join(command.split())}", flush=True)
        done = subprocess.run(
            self.inside(self.here(command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode and not may_fail:
            sys.exit(f"{done.stdout}\nended with status {done.returncode}")
        return f"{done.stdout}\nstatus {done.returncode}"

    def start(self, command: str, log: str) -> None:
        """Show a command and leave it running, with a log."""
        print(f"{self.name}$ {' '.join(command.split())} &", flush=True)
        with (self.folder / log).open("w") as file:
            self.running.append(
                subprocess.Popen(self.inside(self.here(command)), stdout=file, stderr=file, start_new_session=True)
            )

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self.running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            time.sleep(2)
        for process in self.running:
            process.wait()


def network(up: bool) -> None:
    """A switch and a cable from it to each machine; none of it touches this machine's own network."""
    for name in (SWITCH, *(f"fl-{name}" for name in MACHINES)):
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    if not up:
        return
    lines = [f"netns add {SWITCH}", f"-n {SWITCH} link add br0 type bridge", f"-n {SWITCH} link set br0 up"]
    for k, (name, address) in enumerate(MACHINES.items()):
        space = f"fl-{name}"
        lines += [
            f"netns add {space}",
            f"-n {space} link add eth0 type veth peer name port{k} netns {SWITCH}",
            f"-n {SWITCH} link set port{k} master br0 up",
            f"-n {space} addr add {address}/24 dev eth0",
            f"-n {space} link set lo up",
            f"-n {space} link set eth0 up",
        ]
    for line in lines:
        subprocess.run(["ip", *line.split()], check=True)


def deal(folder: Path, start: int, noise: float) -> None:
    """A site's pictures: every tenth of the embedded ones, some under a wrong class."""
    data = load(DataConfig())
    for split, kind in ((data.train, "train"), (data.test, "test")):
        mine = np.arange(start, len(split), 10)
        given = split.labels[mine]
        if kind == "train":
            config = load_config({"noise": {"kind": "symmetric", "ratios": [noise]}}).noise
            given = apply(data, (mine,), config, Seed(start))[0].given[0]
        for i, label in zip(mine, given, strict=True):
            place = folder / kind / re.sub(r"\W+", "-", data.class_names[label])
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(split.images[i, 0]).save(place / f"{i}.png")


def documented() -> Callable[[str], list[str]]:
    """A search for the commands in "Over several machines": those of the block that has these words."""
    text = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
    part = text[text.index("## Over several machines") : text.index("## When something fails")]
    blocks = [body for _, body in re.findall(r"```(\w*)\n(.*?)```", part, re.DOTALL)]

    def find(words: str) -> list[str]:
        (block,) = [body for body in blocks if words in body]
        return [block] if "{" in block or "[" in block else block.replace("\\\n", " ").splitlines()

    return find


def until(ready: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 120
    while not ready():
        if time.monotonic() > end:
            sys.exit(f"waited two minutes for {what}")
        time.sleep(1)


def play(folder: Path, rounds: int) -> Path:
    """The documentation's commands in their order; the run's folder."""
    server, *sites = machines = [Machine(name, folder / name) for name in MACHINES]
    find = documented()
    try:
        *first, superlink = find("federation certs")
        for command in first:
            server.run(command)
        server.start(superlink, "superlink.log")
        (server.folder / "home" / ".flwr").mkdir(exist_ok=True)
        (server.folder / "home" / ".flwr" / "config.toml").write_text(server.here(find("[superlink.central]")[0]))
        until(lambda: "status 0" in server.run("flwr supernode list central", may_fail=True), "the SuperLink")
        for start, site in enumerate(sites):
            deal(site.folder / "data/images", start, NOISE[site.name])
            site.run(find("federation keys")[0].replace("site-a", site.name))
            shutil.copy(server.folder / "etc/fl/ca.crt", site.folder / "etc/fl")
            shutil.copy(site.folder / "etc/fl" / f"{site.name}.pub", server.folder / "home")
            server.run(find("supernode register")[0].replace("site-a", site.name))
            site.start(find("federation node --superlink")[0].replace("site-a", site.name), "node.log")
        experiment = find("--superlink central --set")[0].replace("min_nodes=3", f"min_nodes={len(sites)}")
        small = "--set sampling.fraction=1.0 --set schedule.name=constant --set schedule.epochs=2"
        print(server.run(f"{experiment} {small} --set train.rounds={rounds}"))
        refusals(server, sites[0])
        return server.folder / "var/lib/fl/run"
    finally:
        for machine in machines[::-1]:
            machine.stop()


def refusals(server: Machine, site: Machine) -> None:
    """What a site must not be able to do."""
    ca, code = "--cacert /etc/fl/ca.crt", "-w ' %{http_code}'"
    tries = {
        "the Control API": (f"curl -s {code} {ca} https://fl.example.org:8000/v1/control/x", "403"),
        "… by a detour": (f"curl -s {code} --path-as-is {ca} https://fl.example.org:8000/v1/fleet/../control/x", "403"),
        "… by another": (
            f"curl -s {code} --path-as-is {ca} https://fl.example.org:8000/v1/fleet/%2e%2e/control/x",
            "403",
        ),
        "the Runtime API": (f"curl -s {code} {ca} https://fl.example.org:8000/v1/runtime/x", "403"),
        "plaintext": ("curl -s http://fl.example.org:8000/v1/fleet/x", "status 52"),
        "a server without our certificate": ("curl -s https://fl.example.org:8000/", "status 60"),
        "another's files": (f"ls {server.folder}/etc", "status 2"),
    }
    for what, (command, sign) in tries.items():
        if sign not in site.run(command, may_fail=True):
            sys.exit(f"{what} was not refused")
    site.run("fednoil federation keys stranger --out /etc/fl")
    node = "fednoil federation node --superlink fl.example.org:8000 --root-certificates /etc/fl/ca.crt"
    own = "--key /etc/fl/stranger --name stranger --data folder:/data/images"
    said = site.run(f"timeout 60 {node} {own}", may_fail=True)
    if "status 0" in said or "status 124" in said:
        sys.exit("a node with an unregistered key was not refused")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="a new folder, for all machines' files and logs")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    missing = [name for name in ("ip", "unshare", "curl") if shutil.which(name) is None]
    if os.geteuid() or missing:
        sys.exit(f"needs root and {', '.join(missing) or 'nothing else'}")
    if options.folder.exists():
        sys.exit(f"{options.folder} exists already; give a new --folder")
    options.folder.mkdir(parents=True)
    network(up=True)
    try:
        run = play(options.folder.resolve(), options.rounds)
    finally:
        network(up=False)
    for line in (run / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        print({key: record[key] for key in ("round", "test_accuracy", "nodes", "trained", "failed", "refused")})
    print("refused, as it should be: the Control API, the Runtime API, plaintext, an unregistered key")


if __name__ == "__main__":
    main()
