"""Membership: nodes introduce themselves, are admitted or refused, and come and go under stable client ids.

Flower numbers nodes at random, and a restarted node may get a new number. Our roster, in the run folder, numbers the
clients, so a node that comes back, or a resumed run, has the same clients.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fednoil import __version__
from fednoil.config import Config, to_toml
from fednoil.data import SITES
from fednoil.errors import UserError
from fednoil.flower.messages import (
    HELLO,
    HELLO_ORDER,
    HELLO_REPLY,
    PROTOCOL,
    REFUSE,
    REFUSE_ORDER,
    BadMessage,
    Body,
    clean,
    pack,
    unpack,
)
from fednoil.flower.names import is_name
from fednoil.flower.terms import CommonTerms, Site, agree, introduced, misfit
from fednoil.flower.wire import LATE, Lost, Wire
from fednoil.records.files import read_json, write_json
from fednoil.records.folder import ROSTER

log = logging.getLogger("flwr.fednoil")
_TRIES = 3  # introductions before round 1, for a node that is busy or still starting
_HELLO = 60.0  # seconds for a node to introduce itself, while the others wait
_AGAIN = 30.0, 1800.0  # seconds until a refused node is asked again, at first and at most
_PAUSE = 0.5  # seconds between two checks for new nodes
_SAY = 60.0  # seconds between two lines on what is waited for


@dataclass(frozen=True)
class Refused:
    """A node that is not admitted: its name, why, how often so far, and when it is asked again."""

    name: str
    reason: str
    times: int
    again: float  # by the monotonic clock


class Members:
    """The federation's clients: `sites` by client number, and which node each is now."""

    def __init__(self, wire: Wire, config: Config, partitions: int | None) -> None:
        self.wire = wire
        self.config = config
        self.partitions = partitions  # partitions of a dataset that every node has; None: each site has its own data
        self.run = secrets.token_hex(16)
        self.sites: dict[int, Site] = {}
        self.nodes: dict[int, int] = {}  # client -> node
        self.agreement: CommonTerms | None = None
        self.founders: dict[str, int] = {}  # samples of the clients at the start, by number
        self._numbers: dict[str, int] = {}  # of everyone who ever took part
        self._refused: dict[int, Refused] = {}  # by node
        self._warned: dict[int, str] = {}  # the last warning about each node
        self._tries: Counter[int] = Counter()  # introductions that failed, by node
        self._twins: dict[int, Site] = {}  # nodes that wait because another one with their name is online
        self._waiting: dict[int, Site] = {}  # introduced before there was an agreement
        self._roster: Path | None = None
        self._sizes: dict[str, int] = {}  # from the roster of a resumed run

    def name(self, client: int) -> str:
        return next(name for name, number in self._numbers.items() if number == client)

    def gather(self, nodes: int = 0) -> None:
        """Wait for as many nodes as the configuration requires, and settle what they agree on. If there are no
        more than so many `nodes` (0: nobody knows), none is waited for once all have answered."""
        wanted = self.config.federation.min_nodes or self.partitions or 2
        said = time.monotonic()
        end = said + self.config.federation.wait
        while True:
            self._introduce(0)
            if self.agreement is None and len({site.name for site in self._waiting.values()}) >= wanted:
                self._settle()
            if len(self.online()) >= wanted:
                self.founders = self.founders or {self.name(k): self.sites[k].samples for k in sorted(self.sites)}
                return
            here, now = len(self.online()) or len(self._waiting), time.monotonic()
            over = here + sum(not one.reason.startswith(LATE) for one in self._refused.values()) >= nodes > 0
            if over or now > end:
                break
            if now > said:
                log.info("%d of %d nodes are there; waiting %.0f s more", here, wanted, end - now)
                said = now + _SAY
            time.sleep(_PAUSE)
        refused = [f"{name} is refused: {reason}" for name, reason in self.refused().items()]
        came = f"came online within {self.config.federation.wait:g} s (federation.min_nodes, federation.wait)"
        came = f"can take part, and all {nodes} have answered (federation.min_nodes)" if over else came
        raise UserError("; ".join([f"{here} of {wanted} nodes {came}", *refused[:3]]))

    def refresh(self, round_idx: int) -> list[int]:
        """Admit new nodes; returns the clients that are online, by number."""
        self._introduce(round_idx)
        return self.online()

    def online(self) -> list[int]:
        there = set(self.wire.grid.get_node_ids())
        return sorted(k for k, node in self.nodes.items() if node in there)

    def refused(self) -> dict[str, str]:
        """The nodes that are online but not admitted, by name, and why."""
        out = [(refused.name, node, refused.reason) for node, refused in self._refused.items()]
        out += [(site.name, node, "it waits: another node already has this name") for node, site in self._twins.items()]
        times = Counter(name for name, _, _ in out)
        return {name if times[name] == 1 else f"{name} (node {node})": reason for name, node, reason in sorted(out)}

    def load(self, out: Path) -> None:
        """Read roster and agreement of the run that is resumed in `out`."""
        path = out / ROSTER
        try:
            values = read_json(path)
            self.run = str(values["run"])
            self.agreement = CommonTerms.of(values["agreement"])
            self._numbers = {str(name): int(number) for name, number in values["clients"].items()}
            self._sizes = {str(name): int(size) for name, size in values["sizes"].items()}
            self.founders = {str(name): self._sizes[str(name)] for name in values["founders"]}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} is damaged ({error!r}); start over with --force") from None

    def save(self, out: Path) -> None:
        """Write the roster, now and whenever a node joins."""
        self._roster = out / ROSTER
        self._write()

    def _reported(self) -> dict[str, int]:
        """Samples of each client as it first reported them."""
        return {**{self.name(k): site.samples for k, site in self.sites.items()}, **self._sizes}

    def _write(self) -> None:
        if self._roster is not None and self.agreement is not None:
            values = {
                "run": self.run,
                "clients": self._numbers,
                "sizes": self._reported(),
                "founders": list(self.founders),
            }
            write_json(self._roster, values | {"agreement": self.agreement.values()})

    def _introduce(self, round_idx: int) -> None:
        """Ask unknown nodes to introduce themselves."""
        there = set(self.wire.grid.get_node_ids())
        twins, self._twins = self._twins, {}
        for node, site in twins.items():
            if node in there:
                self._admit(node, site, there)
        self._refused = {node: since for node, since in self._refused.items() if node in there}
        self._warned = {node: text for node, text in self._warned.items() if node in there}
        out = {node for node, refused in self._refused.items() if time.monotonic() < refused.again}
        known = set(self.nodes.values()) | out | set(self._waiting) | set(self._twins)
        self._waiting = {node: site for node, site in self._waiting.items() if node in there}
        order = Body(values={"protocol": PROTOCOL, "config": to_toml(self.config)})
        content = {node: pack(HELLO_ORDER, order) for node in sorted(there - known)}
        for node, reply in self.wire.ask(HELLO, round_idx, content, min(_HELLO, self.wire.timeout)).items():
            if isinstance(reply, Lost):
                continue
            if isinstance(reply, str):
                self._tries[node] += 1
                if self._tries[node] >= _TRIES or round_idx > 0:
                    self._refuse(node, f"node {node}", reply, informed=True)
                continue
            called = f"node {node}"
            try:
                body = unpack(HELLO_REPLY, reply)
                called = body.values["client"] if is_name(body.values["client"]) else called
                site = introduced(body)
            except Exception as error:  # whatever a node sends
                said = error if isinstance(error, BadMessage) else type(error).__name__
                self._refuse(node, called, f"its introduction is invalid: {said}")
                continue
            if _minor(body.values["version"]) != _minor(__version__):
                other = (
                    f"it has fednoil {body.values['version']}, the server {__version__}; install the same minor version"
                )
                self._refuse(node, site.name, other)
            elif self.agreement is None:
                self._waiting[node] = site
            else:
                self._admit(node, site, there)

    def _settle(self) -> None:
        """Settle the agreement with the nodes that have come, in the order of their names, and number them."""
        there = sorted(self._waiting.items(), key=lambda item: (item[1].name, item[0]))
        self.agreement = agree([site for _, site in there], self.config.data.normalisation)
        self._waiting = {}
        online = set(self.wire.grid.get_node_ids())
        for node, site in there:
            self._admit(node, site, online)

    def _admit(self, node: int, site: Site, online: set[int]) -> None:
        assert self.agreement is not None
        reason = misfit(site, self.agreement) or self._wrong_kind(site)
        number = self._number(site)
        reason = reason or self._other_identity(site, number)
        if reason is None and self.nodes.get(number, node) in online - {node}:
            # A restarted node has a new number, and the old one may still count as online.
            self._warn(node, f"{site.name} waits: another node already has this name; each needs its own client-id")
            self._twins[node] = site
            return
        before = self._reported().get(site.name, site.samples)
        if reason is None and before != site.samples:
            reason = f"it had {before} samples when it joined this run and has {site.samples} now"
        if reason is not None:
            self._refuse(node, site.name, reason)
            return
        self._refused.pop(node, None)
        self._warned.pop(node, None)
        newcomer = site.name not in self._numbers
        self._numbers[site.name] = number
        self.sites[number], self.nodes[number] = site, node
        log.info("%s is client %d with %d samples", site.name, number, site.samples)
        if newcomer:
            self._write()

    def _wrong_kind(self, site: Site) -> str | None:
        """Why it can't take part if it has its own data in a run of partitions, or the other way round."""
        if self.partitions is None:
            return None if site.partition is None else f"it has no data of its own, which data.name = '{SITES}' needs"
        if site.partition is None:
            return f"it has its own data, but this run uses {self.config.data.name}; set data.name={SITES}"
        if not 0 <= site.partition < self.partitions:
            return f"its partition-id {site.partition} is not in 0..{self.partitions - 1} (partition.clients)"
        return None

    def _other_identity(self, site: Site, number: int) -> str | None:
        """Why it can't take part if its name has another number in this run, or its number another name."""
        if self._numbers.get(site.name, number) != number:
            return (
                f"its client-id '{site.name}' is that of client {self._numbers[site.name]}, but it is client {number}"
            )
        other = next((name for name, taken in self._numbers.items() if taken == number and name != site.name), None)
        return None if other is None else f"client {number} is called '{other}' in this run, not '{site.name}'"

    def _number(self, site: Site) -> int:
        if site.partition is not None:
            return site.partition
        return self._numbers.get(site.name, max(self._numbers.values(), default=-1) + 1)

    def _refuse(self, node: int, name: str, reason: str, informed: bool = False) -> None:
        """Refuse a node and inform its operator, unless that was done already (`informed`)."""
        reason = clean(reason)
        times = self._refused[node].times + 1 if node in self._refused else 1
        pause = min(_AGAIN[0] * 2 ** min(times - 1, 20), _AGAIN[1])
        self._refused[node] = Refused(name, reason, times, time.monotonic() + pause)
        if self._warn(node, f"{name} is refused: {reason}") and not informed:
            self.wire.notify(REFUSE, node, pack(REFUSE_ORDER, Body(values={"reason": reason})))

    def _warn(self, node: int, text: str) -> bool:
        """Warn about a node, unless this was the last warning; returns whether it was new."""
        if new := self._warned.get(node) != text:
            log.warning("%s", text)
        self._warned[node] = text
        return new


def _minor(version: str) -> list[str]:
    """What two versions that understand each other have in common."""
    return version.split(".")[:2]
