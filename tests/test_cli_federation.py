"""`fednoil federation`: credentials, the app's bundle, and one clear line for each error. Nothing is started."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import ssl
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import fednoil, refused
from studies import ROOT, script

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from fednoil.cli.federation import HERE, _resuming
from fednoil.config import Config, load_config, to_toml
from fednoil.errors import UserError
from fednoil.flower.bundle import write_bundle
from fednoil.flower.credentials import make_certificates
from fednoil.flower.loopback import Loopback, Process
from fednoil.records.environment import environment


def test_certificates_are_signed_named_and_kept_private(tmp_path: Path) -> None:
    status, out, _ = fednoil("federation", "certs", tmp_path, "--host", "fl.example.org", "--host", "10.0.0.7")
    assert status == 0
    assert [Path(line).name for line in out.split()] == ["ca.crt", "ca.key", "server.pem", "server.key"]
    ca, server = (x509.load_pem_x509_certificate((tmp_path / n).read_bytes()) for n in ("ca.crt", "server.pem"))
    server.verify_directly_issued_by(ca)
    limits = [c.extensions.get_extension_for_class(x509.BasicConstraints).value.ca for c in (ca, server)]
    assert limits == [True, False]  # who has the server's key signs no certificates with it
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "127.0.0.1"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    for name in ("ca.key", "server.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert "already exists" in refused("federation", "certs", tmp_path)
    assert fednoil("federation", "certs", tmp_path, "--force")[0] == 0


def test_keys_are_pairs_that_flower_reads(tmp_path: Path) -> None:
    assert fednoil("federation", "keys", "site-a", "Klinik Süd", "--out", tmp_path)[0] == 0
    private = serialization.load_ssh_private_key((tmp_path / "site-a").read_bytes(), None)
    public = serialization.load_ssh_public_key((tmp_path / "site-a.pub").read_bytes())
    assert private.public_key() == public
    assert stat.S_IMODE((tmp_path / "site-a").stat().st_mode) == 0o600
    assert (tmp_path / "site-a.pub").read_bytes() != (tmp_path / "Klinik Süd.pub").read_bytes()
    assert "already exists" in refused("federation", "keys", "site-a", "--out", tmp_path)
    assert "the name of a key '../x' must be letters" in refused("federation", "keys", "../x", "--out", tmp_path)


def test_private_keys_stay_out_of_git_and_of_others_reach(tmp_path: Path) -> None:
    new = tmp_path / "deep" / "federation"
    assert fednoil("federation", "keys", "a", "--out", new / "keys")[0] == 0
    assert fednoil("federation", "certs", new)[0] == 0
    for folder in (new, new / "keys"):
        assert (folder / ".gitignore").read_text() == "*\n"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    project = tmp_path / "project"
    project.mkdir()
    (project / "code.py").touch()
    (project / ".gitignore").write_text("build/")
    for _ in range(2):
        assert fednoil("federation", "keys", "a", "--out", project, "--force")[0] == 0
    assert (project / ".gitignore").read_text() == "build/\n/a\n/a.pub\n"
    assert "already" in refused("federation", "keys", "a", "--out", project)


def test_up_makes_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: Loopback) -> None:
        raise UserError("stopped here")

    monkeypatch.setattr(Loopback, "start_superlink", stop)
    assert "stopped here" in refused("federation", "up", tmp_path / "fl", "--partitions", "2")
    assert stat.S_IMODE((tmp_path / "fl").stat().st_mode) == 0o700
    assert (tmp_path / "fl" / ".gitignore").read_text() == "*\n"


def test_what_up_adds_to_a_folder_of_others_stays_out_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates were made there before; keys and the SuperLink's database come with `up`."""
    (tmp_path / "notes.txt").touch()
    make_certificates(tmp_path, ["localhost"])
    monkeypatch.setattr(Loopback, "start_superlink", lambda self: None)
    monkeypatch.setattr(Loopback, "await_nodes", lambda self, count: None)
    Loopback(tmp_path).up({})
    assert {"/ca.key", "/keys", "/superlink.db"} <= set((tmp_path / ".gitignore").read_text().split())


def test_the_way_to_go_on_names_the_federation() -> None:
    assert _resuming(Path("r"), HERE, None) == "fednoil federation run --resume --out r"
    assert _resuming(Path("r"), Path("my fl"), None).endswith("--out r --federation 'my fl'")
    assert _resuming(Path("r"), HERE, "central").endswith("--out r --superlink central")


def test_the_bundle_holds_a_configuration_and_no_code(tmp_path: Path, values: dict[str, Any]) -> None:
    values["data"]["name"] = 'folder:/a "strange"\\path\x7f'
    config = load_config(values)
    command = ["fednoil", "federation", "run", "--set", 'a="b"']
    write_bundle(
        tmp_path / "app",
        config,
        Path("/some\x7fwhere"),
        resume=True,
        force=False,
        command=command,
        origin={"preset": "demo"},
        nodes=2,
    )
    assert [p.name for p in (tmp_path / "app").iterdir()] == ["pyproject.toml"]
    app = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert [app["config"][k] for k in ("out", "resume", "force", "nodes")] == ["/some\x7fwhere", True, False, 2]
    assert load_config(tomllib.loads(app["config"]["config"])) == config
    assert json.loads(app["config"]["command"]) == command
    assert json.loads(app["config"]["origin"]) == {"preset": "demo"}
    for reference in app["components"].values():
        module, _, name = reference.partition(":")
        assert importlib.util.find_spec(module) is not None
        assert name == "app"


def test_a_site_is_there_once_and_its_data_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text("age,label\n1,a\n2,b\n")
    one = ("federation", "up", "--site", "a=table:x.csv", "--site")
    assert "--site a=table:x.csv: 'a' is given twice" in refused(*one, "a=table:x.csv")
    assert f"--site b=table:y.csv: table:{tmp_path}/y.csv is not a file" in refused(*one, "b=table:y.csv")
    Path("y.csv").write_text("age,label\n1,a\nno,b\n")
    wrong = "y.csv: column 'age' has text ('no') in line 3"
    assert f"--site b=table:y.csv: table:{tmp_path}/{wrong}" in refused(*one, "b=table:y.csv")
    place = ("--superlink", "localhost:1", "--root-certificates", "ca.crt", "--key", "none")
    said = refused("federation", "node", *place, "--name", "b", "--data", "table:y.csv")
    assert f"--data table:y.csv: table:{wrong}" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.csv", "y.csv"]


@pytest.mark.parametrize("host", ["", " ", "a b", "https://fl.example.org", "fl.example.org:8000", "10.0.0", "münchen"])
def test_a_host_is_a_name_or_an_address(host: str, tmp_path: Path) -> None:
    said = refused("federation", "certs", tmp_path / "fl", "--host", host)
    assert f"--host '{host}' is neither an address nor an ASCII host name" in said
    assert not (tmp_path / "fl").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up"], "give --site NAME=DATA for each node, or --partitions N"),
        (["up", "--partitions", "2", "--site", "a=npz:x"], "give --site"),
        (["up", "--site", "a"], "--site a: write NAME=folder:PATH"),
        (["up", "--site", "a=zip:x"], "--site a=zip:x: write NAME=folder:PATH"),
        (["up", "--site", "a|b=npz:x"], "'a|b' must be letters"),
        (["up", "--site", "a=folder:x"], "--site a=folder:x: "),
        (["up", "--site", "superlink=npz:x"], "'superlink' is reserved"),
        (["up", "--site", 'a=npz:"x'], "doesn't accept a path with a quotation mark"),
        (["status"], "has no federation"),
        (["run"], "federation is not up"),
        (["run", "--resume", "--force"], "exclude each other"),
        (["run", "no-such"], "preset 'no-such'"),
        (["run", "--set", "federation.min_reply=2"], "known in federation: min_nodes"),
        (["run", "--set", "federation.timeout=0"], "federation.timeout = 0"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused("federation", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_without_flower_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install 'fednoil[flower]'" in refused("federation", "status")


class Recorded(Loopback):
    """Starts nothing; writes down what it would have asked Flower, which knows some keys already."""

    def __init__(self, folder: Path, known: set[str], stop: bool = False) -> None:
        super().__init__(folder)
        self.known, self.stop, self.asked = known, stop, list[str]()

    def start_superlink(self) -> Process:
        return self._start("superlink", 1, [])

    def await_nodes(self, count: int) -> None:
        pass

    def _register(self, public: Path) -> None:
        if self.stop:
            raise KeyboardInterrupt
        self.known.add(public.read_text())

    def _start(self, name: str, port: int, command: Any) -> Process:
        self._write([*self.processes, process := Process(name, 2**30, port)])
        return process


def test_up_goes_on_from_wherever_another_was_interrupted(tmp_path: Path) -> None:
    """Between the making of a key and its registration, between the halves of a key, after all of it."""
    known: set[str] = set()
    with pytest.raises(KeyboardInterrupt):
        Recorded(tmp_path, known, stop=True).up({"a": ""})
    public = tmp_path / "keys" / "a.pub"
    key = public.read_text()
    Recorded(tmp_path, known).up({"a": ""})
    assert known == {key}
    public.unlink()
    Recorded(tmp_path, known).up({"a": ""})
    assert known == {key} == {public.read_text()}
    public.unlink()
    (tmp_path / "keys" / "a").write_text("")
    with pytest.raises(UserError, match="keys/a is not a private key; remove it"):
        Recorded(tmp_path, known).up({"a": ""})


def test_up_says_when_certificates_are_no_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("fednoil.flower.credentials._DAYS", -1 / 480)  # three minutes ago; it begins five ago
        make_certificates(tmp_path, ["localhost"])
    with pytest.raises(UserError, match=rf"server.pem expired on .*: fednoil federation certs {tmp_path} --force"):
        Recorded(tmp_path, set()).up({})
    (tmp_path / "server.key").unlink()
    with pytest.raises(UserError, match=r"server.key is missing; make new ones"):
        Recorded(tmp_path, set()).up({})


def test_a_node_that_has_ended_is_reported_at_once(tmp_path: Path) -> None:
    loopback = Loopback(tmp_path)
    loopback._write([Process("a", 2**30, 1)])
    with pytest.raises(UserError, match=r"a has ended; see .*log/a\.log"):
        loopback.await_nodes(1)


def test_a_run_elsewhere_leaves_nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The app that is handed to Flower says who asked for it, and is gone afterwards."""
    seen: list[dict[str, Any]] = []
    here, flowers = tmp_path / "here", tmp_path / "flwr"
    here.mkdir()
    flowers.mkdir()
    (flowers / "config.toml").write_text("[superlink.central]\n")
    monkeypatch.chdir(here)
    monkeypatch.setenv("FLWR_HOME", str(flowers))
    monkeypatch.setattr(
        "fednoil.flower.submission.flwr_run",
        lambda bundle, *_: seen.append(tomllib.loads((bundle / "pyproject.toml").read_text())),
    )
    arguments = ("federation", "run", "demo", "--set", "train.rounds=3", "--superlink", "central", "--out", "there")
    assert fednoil(*arguments)[0] == 0
    config = seen[0]["tool"]["flwr"]["app"]["config"]
    assert json.loads(config["command"]) == ["fednoil", *arguments]
    origin = {"preset": "demo", "set": ["train.rounds=3", "run.checkpoint_every=1"]}
    assert json.loads(config["origin"]) == origin
    assert list(here.iterdir()) == []


def test_down_is_quiet_where_nothing_runs(tmp_path: Path) -> None:
    status, out, _ = fednoil("federation", "down", tmp_path)
    assert (status, out) == (0, f"nothing was running in {tmp_path}\n")


def test_a_process_number_that_another_program_has_now_is_not_ours(tmp_path: Path) -> None:
    loopback = Loopback(tmp_path)
    loopback._write([Process("superlink", 1, 1)])
    assert not loopback.processes[0].alive()
    assert loopback.down() == []
    loopback.file.write_text('{"processes": [{"pid": 3}]}')
    assert "is damaged" in refused("federation", "status", tmp_path)


def test_sites_are_for_federations_alone(tmp_path: Path) -> None:
    said = refused("run", "demo", "--set", "data.name=sites", "--out", tmp_path / "run")
    assert "data.name = 'sites' means the data of a federation's sites: `fednoil federation run`" in said


def test_a_secret_of_flowers_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower starts the ServerApp with a token among its arguments; a run's environment.json is shown around."""
    monkeypatch.setattr(sys, "argv", ["/usr/bin/flwr-serverapp", "--token", "secret"])
    assert "secret" not in str(environment(torch.device("cpu"), torch.float32))
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fednoil", "run", "demo"])
    assert environment(torch.device("cpu"), torch.float32)["command"] == ["fednoil", "run", "demo"]


def test_the_demo_touches_nothing_that_it_has_not_made(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    demo = Path(__file__).parents[1] / "tools" / "federation_demo.py"
    for folder in (tmp_path, tmp_path / "thesis.tex"):
        done = subprocess.run(
            [sys.executable, demo, "--folder", folder], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 1
        assert done.stderr == f"{tmp_path / 'thesis.tex'} is not this demo's; give a new or empty --folder\n"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_is_tried_over_several_machines_is_what_is_documented() -> None:
    """Every block that tools/federation_machines.py looks for on the page is there, once."""
    path = ROOT / "tools" / "federation_machines.py"
    module = script(path, "federation_machines")
    find = module.documented()
    wanted = re.findall(r'find\("(.+?)"\)', path.read_text())
    assert len(wanted) == 6
    commands = [line for words in wanted for line in find(words)]
    assert [command.split()[0] for command in commands] == [
        *("fednoil", "mkdir", "fednoil", "[superlink.central]", "fednoil", "flwr", "fednoil", "fednoil"),
    ]
    assert sum(any(place in command for place in module.PLACES) for command in commands) == 7  # all but `flwr`'s


def test_a_process_that_has_just_begun_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a moment it has no command line that would show whose it is."""
    process = Process("a", os.getpid(), 1)
    assert not process.alive()
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"")
    assert process.alive()


def test_an_audit_out_of_folds_is_a_run_for_each_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text(to_toml(load_config(values)))
    assert "is not a federation's run; audit it with: fednoil audit" in refused("federation", "audit", run)
    roster = {"run": "0" * 32, "clients": {"a": 0}, "sizes": {"a": 3}, "founders": ["a"], "agreement": {}}
    (run / "roster.json").write_text(json.dumps(roster))
    assert fednoil("federation", "audit", run)[::2] == (
        2,
        "fednoil: federation is not up; start it with `fednoil federation up`, or use another: --superlink NAME\n",
    )
    asked = []

    def submit(config: Config, out: Path, *where: object, resume: bool) -> None:
        asked.append((config.data.validation, out.name, resume))
        out.mkdir(parents=True)
        ratios = {"a": 0.1 * len(asked)} | ({"b": 0.5} if len(asked) != 2 else {})
        (out / "summary.json").write_text(json.dumps({"noise_ratios": ratios}))

    monkeypatch.setattr("fednoil.cli.federation._submit", submit)
    status, out, err = fednoil("federation", "audit", run, "--folds", 3)
    assert (status, err) == (0, "")
    assert asked == [("1/3", "fold-1", True), ("2/3", "fold-2", True), ("3/3", "fold-3", True)]
    assert "30.0 %" in out
    assert f"to repeat fold 2 with those who missed it, remove {run}/folds-3/fold-2 and run the command again" in out
    assert fednoil("federation", "audit", run, "--folds", 3)[0] == 0
    assert len(asked) == 3
