"""The received model's logits of a client's un-augmented samples: computed once a round, used for everything.

Client scores, FedNoiL's D^x and the evidence of an audit all come from the same logits.
"""

from __future__ import annotations

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
    return torch.cat([learner.predict(nets, client.pool[client.index[rows]], {}).float() for rows in spans])


def confidences(logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """softmax(logits/τ) [n, C] at the given labels [n] (Eq. 5–6): float32 [n]."""
    return torch.softmax(logits / temperature, dim=1).gather(1, labels[:, None])[:, 0]
