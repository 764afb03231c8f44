"""What is in deploy/: files that can be parsed, with commands that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import fednoil

yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[1] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def commands() -> Iterator[list[str]]:
    """Every command of ours in the compose file and the units, from `federation` on."""
    for service in COMPOSE["services"].values():
        for command in (service.get("command"), service.get("healthcheck", {}).get("test")):
            if isinstance(command, str):
                yield shlex.split(command)
            elif command and command[0] == "CMD":
                yield command[2:]
            else:
                yield from (found.split()[1:] for found in re.findall(r"fednoil federation [^\n|;]+", str(command)))
    for unit in (DEPLOY / "systemd").glob("*.service"):
        (start,) = re.findall(r"^ExecStart=(.+)$", unit.read_text(), re.M)
        yield shlex.split(start)[1:]


def test_every_command_and_option_exists() -> None:
    found = list(commands())
    assert {words[1] for words in found} == {"certs", "keys", "server", "node", "health"}
    for words in found:
        status, said, _ = fednoil("federation", words[1], "--help")
        assert status == 0
        for option in (word for word in words if word.startswith("--")):
            assert option in said, words


def test_three_sites_wait_for_the_server_and_are_checked() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"setup", "server", "site-a", "site-b", "site-c"}
    for name in ("site-a", "site-b", "site-c"):
        site = services[name]
        assert site["depends_on"] == {"server": {"condition": "service_healthy"}}
        assert site["command"].count(name) == 2
        assert name in site["healthcheck"]["test"]
        assert site["healthcheck"]["interval"]
        used = {volume.split(":")[0] for volume in site["volumes"] if not volume.startswith(".")}
        assert used <= set(COMPOSE["volumes"])


def test_the_image_copies_what_is_there() -> None:
    for line in (DEPLOY / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY "):
            assert all((DEPLOY.parent / name).exists() for name in line.split()[1:-1]), line
