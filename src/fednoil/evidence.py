"""What clients remember about their labels: statistics over rounds of what the received models predicted for each
sample.

A round that asks clients for scores has the model's class probabilities for every sample anyway; here they become a few
numbers a sample that never leave the client. They need no true labels and change nothing that is trained. A bundle
holds the samples of one or more clients, one after another:

    given          [N]     the labels it is about
    probabilities  [N, C]  mean over looks, the t-th look with weight t² or nearly: later models know more
    votes          [N, C]  looks that found each class the most probable
    confidence     [N]     sum over looks of the given label's probability
    moment         [N]     the same, the t-th look times t: with it the trend is known
    margin         [N]     sum over looks of that probability less the best other one
    drawn          [N]     epochs in which the sample was drawn into D^x
    looks, epochs  [K]     how often each client looked, and for how many epochs it drew; always on the host

On a GPU a round's share of this is bound by launches, not by arithmetic. So all clients' samples are worked on at once,
and what is counted by client stays on the host: nothing is copied to the device where all clients look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from fednoil.tensors import Tensors

_POWER = 2  # of t in a look's weight
_LOOKED = ("given", "probabilities", "votes", "confidence", "moment", "margin")
_COUNTERS = ("looks", "epochs")


def start(given: Sequence[Tensor], num_classes: int) -> Tensors:
    """A bundle without any look, for clients with these labels, one tensor [n] each."""
    labels = torch.cat(list(given))
    count, device = len(labels), labels.device

    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    whole = torch.int32
    return {
        "given": labels,
        "probabilities": zeros(count, num_classes),
        "votes": zeros(count, num_classes, dtype=whole),
        **{name: zeros(count) for name in ("confidence", "moment", "margin")},
        "drawn": zeros(count, dtype=whole),
        **{name: torch.zeros(len(given), dtype=whole) for name in _COUNTERS},
    }


def placed(bundle: Tensors, device: torch.device) -> Tensors:
    """The bundle with its samples' tensors on `device`."""
    return {name: tensor if name in _COUNTERS else tensor.to(device) for name, tensor in bundle.items()}


def add_looks(bundle: Tensors, sizes: Sequence[int], looks: Mapping[int, Tensor]) -> Tensors:
    """The bundle after one look of some clients, by number: class probabilities [n, C] of each one's samples."""
    clients = sorted(looks)
    probs = torch.cat([looks[k] for k in clients])
    number = _counted(bundle["looks"], clients, 1)
    counts = number.tolist()
    times = _times([counts[k] for k in clients], [sizes[k] for k in clients], probs)
    if len(clients) == len(sizes):
        return {**bundle, **_looked(bundle, probs, *times), "looks": number}
    rows = _rows(sizes, clients).to(probs.device)
    after = _looked({name: bundle[name][rows] for name in _LOOKED}, probs, *times)
    after = {name: bundle[name].index_copy(0, rows, tensor) for name, tensor in after.items()}
    return {**bundle, **after, "looks": number}


def add_draws(bundle: Tensors, sizes: Sequence[int], drawn: Mapping[int, Tensor], epochs: int) -> Tensors:
    """The bundle after some clients trained for some epochs, having drawn each sample `drawn` [n] times."""
    if not drawn:
        return bundle
    before, turns = bundle["drawn"], _counted(bundle["epochs"], sorted(drawn), epochs)
    none = next(iter(drawn.values())).new_zeros(max(sizes))
    counts = torch.cat([drawn[k] if k in drawn else none[:size] for k, size in enumerate(sizes)])
    return {**bundle, "drawn": before + counts.to(before.dtype), "epochs": turns}


def of_client(bundle: Tensors, sizes: Sequence[int], client: int) -> Tensors:
    """One client's part of a bundle."""
    first = sum(sizes[:client])
    here, one = slice(first, first + sizes[client]), slice(client, client + 1)
    return {name: tensor[one if name in _COUNTERS else here] for name, tensor in bundle.items()}


def trend(bundle: Tensors) -> Tensor:
    """One client's change of confidence from look to look, by least squares: float64 [n]; 0 with fewer than two."""
    count = float(bundle["looks"][0])
    if count < 2:
        return torch.zeros(len(bundle["given"]), dtype=torch.float64)
    spread = count * (count * count - 1) / 12
    return (bundle["moment"].double() - (count + 1) / 2 * bundle["confidence"].double()) / spread


def _looked(before: Tensors, probs: Tensor, t: Tensor | float, step: Tensor) -> Tensors:
    """Rows of a bundle after their t-th look."""
    given = before["given"][:, None]
    own = probs.gather(1, given)[:, 0]
    rival = probs.scatter(1, given, -1.0).amax(1)
    vote = probs.argmax(1, keepdim=True) == torch.arange(probs.shape[1], device=probs.device)
    return {
        "probabilities": torch.lerp(before["probabilities"], probs, step),
        "votes": before["votes"] + vote,
        "confidence": before["confidence"] + own,
        "moment": before["moment"] + t * own,
        "margin": before["margin"] + own - rival,
    }


def _times(numbers: Sequence[int], sizes: Sequence[int], like: Tensor) -> tuple[Tensor | float, Tensor]:
    """Which look this is for each client's samples, and how far the mean goes towards it: t [n] and [n, 1].

    Where all have looked equally often, as with scores, a number and [1, 1].
    """
    same = len(set(numbers)) == 1
    t = torch.tensor(numbers[:1] if same else numbers, dtype=torch.float32)
    # Averaging with these steps gives the t-th look the weight t(t + 1)/2 · const (Shamir and Zhang, ICML 2013).
    step = (_POWER + 1) / (t + _POWER)
    if same:
        return float(numbers[0]), like.new_full((1, 1), float(step))
    lengths = torch.tensor(sizes)
    t, step = (values.repeat_interleave(lengths).to(like.device) for values in (t, step))
    return t, step[:, None]


def _counted(counter: Tensor, clients: Sequence[int], more: int) -> Tensor:
    """The counter [K] with `more` for these clients."""
    values = counter.tolist()
    for client in clients:
        values[client] += more
    return torch.tensor(values, dtype=counter.dtype)


def _rows(sizes: Sequence[int], clients: Sequence[int]) -> Tensor:
    """Where these clients' samples are in a bundle."""
    starts = [0, *accumulate(sizes)]
    return torch.cat([torch.arange(starts[k], starts[k + 1]) for k in clients])
