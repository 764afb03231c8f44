"""The received model's logits of a client's un-augmented samples: computed once a round, used for everything.

Client scores, FedNoiL's D^x and the evidence of an audit all come from the same logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fednoil.learners.base import Client, Learner, Nets, chunks

TEMPERATURE = 0.5  # the paper's τ


@torch.no_grad()
def logits_of(learner: Learner, nets: Nets, client: Client) -> Tensor:
    """Logits of every sample, un-augmented, in eval mode: float32 [n, C]."""
    for net in nets.values():
        net.eval()
    spans = chunks(len(client), client.pool)
    return assembled(len(client), spans, lambda rows: learner.predict(nets, client.pool[client.index[rows]], {}))


def assembled(count: int, spans: Sequence[slice], logits: Callable[[slice], Tensor]) -> Tensor:
    """Logits of all samples, computed span by span: float32 [count, C].

    They are written in place: a part that is kept for later lies where a large activation was, so that the next one
    would not fit there, and memory would grow with every span.
    """
    first = logits(spans[0])
    found = torch.empty(count, first.shape[1], device=first.device)
    found[spans[0]] = first
    del first
    for rows in spans[1:]:
        found[rows] = logits(rows)
    return found


def confidences(logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """softmax(logits/τ) [n, C] at the given labels [n] (Eq. 5–6): float32 [n]."""
    return torch.softmax(logits / temperature, dim=1).gather(1, labels[:, None])[:, 0]
