"""Flower's Control API in this process: registers keys, lists nodes and runs, without starting Flower's command.

The command takes seconds for each key; thirty nodes are registered in one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest, RegisterNodeRequest
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from fednoil.config.loading import read_toml
from fednoil.errors import UserError


class Control:
    """The Control API of the SuperLink at `address`."""

    def __init__(self, address: str, certificate: Path) -> None:
        self.address = address
        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        self._client = ControlHttpClient.from_server_address(address, False, certificate.read_bytes(), [version])

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def register(self, public: Path) -> None:
        """Register a node's key, if it isn't registered yet."""
        key = load_ssh_public_key(public.read_bytes())
        text = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        try:
            self._client.RegisterNode(RegisterNodeRequest(public_key=text))
        except httpx.HTTPError as error:
            said = _said(error)
            if "already in use" not in said:
                raise UserError(f"{public} can't be registered at {self.address}: {said}") from None

    def online(self) -> list[NodeInfo]:
        """The nodes that the SuperLink sees online."""
        try:
            return [node for node in self._client.ListNodes(ListNodesRequest()).nodes_info if node.status == "online"]
        except httpx.HTTPError as error:
            raise UserError(f"the SuperLink at {self.address} doesn't list its nodes: {_said(error)}") from None

    def status(self, run: int) -> str:
        """A run's status in Flower's words, as finished:completed."""
        try:
            found = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict.get(run)
        except httpx.HTTPError as error:
            raise UserError(f"the SuperLink at {self.address} doesn't list its runs: {_said(error)}") from None
        if found is None:
            return "unknown"
        return ":".join(part for part in (found.status.status, found.status.sub_status) if part)


def configured(name: str) -> tuple[Path, dict[str, Any]]:
    """Flower's config.toml, and what it says of the SuperLink that it calls `name`."""
    path = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr")) / "config.toml"
    known = read_toml(path).get("superlink", {}) if path.is_file() else {}
    if not isinstance(known, dict) or not isinstance(known.get(name), dict):
        raise UserError(f"--superlink {name}: {path} has no [superlink.{name}] with address and root-certificates")
    return path, known[name]


def connected(name: str) -> Control:
    """The Control API of the SuperLink that Flower's config.toml calls `name`."""
    path, values = configured(name)
    try:
        return Control(str(values["address"]), Path(values["root-certificates"]))
    except (KeyError, TypeError):
        raise UserError(f"--superlink {name}: in {path} it has no address and root-certificates") from None
    except OSError as error:
        raise UserError(f"--superlink {name}: {error.filename}: {error.strerror}") from None


def _said(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        found = FlowerError.from_json(error.response.text)
        return " ".join((found.message if found else error.response.text).split())[:300]
    return f"{type(error).__name__} {error}".strip()[:300]
