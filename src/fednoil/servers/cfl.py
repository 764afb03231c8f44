"""Clustered federated learning (Sattler et al., 2019): split clients whose updates point in different directions.

All clients start in one cluster with one model. When a cluster's mean update has become small while a single one is
still large, its members are split in two by the cosine similarity of their updates, so that the largest similarity
across the cut is least (single linkage; the authors' code uses complete linkage). With partial
participation, which the method leaves open, a cluster is judged by the last update of each member that has trained
since the cluster was formed; members that have not go with the larger part. Within a cluster models are averaged by
number of samples. The accuracy is the mean over all clients, weighted by their samples, of their cluster's model; once
there are several clusters, the accuracy of the largest is recorded beside it (`largest_cluster_accuracy`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fednoil.plugins import About
from fednoil.servers.base import Scored, Server, ServerConfig, ServerState, Update
from fednoil.tensors import Tensors


class CflConfig(ServerConfig):
    name: Literal["cfl"] = "cfl"


def bipartition(similarity: Tensor) -> tuple[list[int], list[int]]:
    """Two groups of indices, by merging the most similar groups of a matrix [n, n] until two are left.

    Single linkage (similarity of the closest pair) minimises the largest similarity across the cut.
    """
    groups = [[i] for i in range(len(similarity))]
    matrix = similarity.tolist()
    while len(groups) > 2:
        pairs = [(i, j) for i in range(len(groups)) for j in range(i + 1, len(groups))]
        i, j = max(pairs, key=lambda p: max(matrix[a][b] for a in groups[p[0]] for b in groups[p[1]]))
        groups[i] = sorted(groups[i] + groups[j])
        del groups[j]
    first, second = sorted(groups)
    return first, second


def cosine_matrix(updates: Tensor) -> Tensor:
    """Cosine similarity of the rows [n, d]: [n, n]."""
    unit = torch.nn.functional.normalize(updates.double(), dim=1)
    return unit @ unit.T


class Cfl(Server):
    Config = CflConfig
    eps1: ClassVar[float] = 0.4  # a cluster is split only where its mean update is shorter,
    eps2: ClassVar[float] = 1.6  # and the longest single one is longer
    first_split: ClassVar[int] = 20  # no split up to this round,
    least: ClassVar[int] = 3  # nor with fewer members that have trained
    about = About(
        title="Clusters of clients, split by the direction of updates",
        paper="Sattler et al., 2019",
        keeps="nothing (the server keeps its last update)",
        sends="model",
        cost="1",
    )

    def init(self, model: Tensors) -> ServerState:
        clients = list(range(len(self.task.sizes)))
        values = {"clusters": [clients], "splits": [], "norms": []}
        return ServerState({f"cluster 0/{name}": t for name, t in model.items()}, values)

    def models(self, state: ServerState) -> Tensors:
        return {name: t for name, t in state.tensors.items() if name.startswith("cluster ")}

    def model_of(self, state: ServerState, cluster: int) -> Tensors:
        prefix = f"cluster {cluster}/"
        return {name.removeprefix(prefix): t for name, t in state.tensors.items() if name.startswith(prefix)}

    def model_for(self, state: ServerState, client: int) -> Tensors:
        return self.model_of(state, self.cluster_of(state, client))

    @staticmethod
    def cluster_of(state: ServerState, client: int) -> int:
        """Its cluster; a client that joined later is in the first one until it has trained."""
        return next((c for c, members in enumerate(state.values["clusters"]) if client in members), 0)

    def aggregate(self, state: ServerState, round_idx: int, updates: Sequence[Update]) -> ServerState:
        models = [self.model_of(state, c) for c in range(len(state.values["clusters"]))]
        last = {int(n.split(" ")[1]): t for n, t in state.tensors.items() if n.startswith("update ")}
        clusters = [list(members) for members in state.values["clusters"]]
        known = {k for members in clusters for k in members}
        clusters[0] = sorted([*clusters[0], *(u.client for u in updates if u.client not in known)])
        splits, norms = list(state.values["splits"]), []
        for c in range(len(clusters)):
            mine = [u for u in updates if u.client in clusters[c]]
            if mine:
                start = self.flat(models[c])
                last |= {u.client: self.flat(u.tensors) - start for u in mine}
                models[c] = self.combine(mine)
            trained = [k for k in clusters[c] if k in last]
            mean, longest = _norms([last[k] for k in trained])
            norms.append([mean, longest])
            if not (mine and round_idx > self.first_split and self.must_split(len(trained), mean, longest)):
                continue
            parts, across = self._split(clusters[c], trained, last)
            lengths = {"mean": mean, "longest": longest, "across": across}
            splits.append({"round": round_idx, "from": clusters[c], "into": parts, **lengths})
            clusters[c] = parts[0]
            clusters.append(parts[1])
            models.append(models[c])
            last = {k: t for k, t in last.items() if k not in trained}
        tensors = {f"cluster {c}/{name}": t for c, model in enumerate(models) for name, t in model.items()}
        tensors |= {f"update {k}": t for k, t in sorted(last.items())}
        return ServerState(tensors, {"clusters": clusters, "splits": splits, "norms": norms})

    def must_split(self, trained: int, mean: float, longest: float) -> bool:
        return trained >= self.least and mean < self.eps1 and longest > self.eps2

    def _split(
        self, members: list[int], trained: list[int], last: Mapping[int, Tensor]
    ) -> tuple[list[list[int]], float]:
        """Two lists of client ids, untrained ones in the larger one, and the largest similarity across the cut."""
        similarity = cosine_matrix(torch.stack([last[k] for k in trained]))
        places = bipartition(similarity)
        across = float(similarity[places[0]][:, places[1]].max())
        parts = [[trained[i] for i in group] for group in places]
        larger = max(parts, key=len)
        larger += [k for k in members if k not in trained]
        return [sorted(part) for part in parts], across

    def scored(self, state: ServerState, keep: Mapping[int, Tensors]) -> list[Scored]:
        clusters = [
            Scored(f"cluster {c}", float(sum(self.task.sizes[k] for k in members)), self.model_of(state, c))
            for c, members in enumerate(state.values["clusters"])
        ]
        several = len(clusters) > 1
        return [*clusters, Scored("largest_cluster", 0.0, self.exported(state))] if several else clusters

    def exported(self, state: ServerState) -> Tensors:
        """The largest cluster's model."""
        clusters = state.values["clusters"]
        return self.model_of(state, max(range(len(clusters)), key=lambda c: len(clusters[c])))

    def notes(self, state: ServerState, keep: Mapping[int, Tensors]) -> dict[str, Any]:
        """The clusters, all splits so far, and the lengths of each cluster's mean and longest update."""
        values = state.values
        return {"clusters": values["clusters"], "splits": values["splits"], "update_norms": values["norms"]}


def _norms(updates: list[Tensor]) -> tuple[float, float]:
    """Length of the mean update and of the longest one."""
    if not updates:
        return 0.0, 0.0
    stacked = torch.stack(updates)
    return float(stacked.mean(0).norm()), float(stacked.norm(dim=1).max())
