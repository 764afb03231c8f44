from typing import Literal
import torch
from torch.nn.utils.rnn import pad_sequence
from fednoil.learners.fednoil_plus import FedNoilPlus, FedNoilPlusConfig
from fednoil.learners.odds import sharpened, odds
from fednoil.learners import labelled
from fednoil.augment import weak, weak_plan

def held(probs, labels, A=1.0, iters=30):
    """π [K, C] by EM over classes and share, of K clients."""
    C = probs[0].shape[1]
    p = pad_sequence([q.double().clamp_min(1e-12) for q in probs], True, 1.0)
    y = pad_sequence(list(labels), True)
    own = pad_sequence([torch.ones_like(l, dtype=torch.float64) for l in labels], True)
    n = own.sum(1)
    hot = torch.nn.functional.one_hot(y, C).bool()
    pi = p.new_full((len(p), C), 1 / C); c = p.new_full((len(p),), 0.5)
    for _ in range(iters):
        r = pi[:, None] * p * torch.where(hot, c[:, None, None], ((1 - c) / (C - 1))[:, None, None])
        r = r / r.sum(2, keepdim=True) * own[..., None]
        pi = (r.sum(1) + A) / (n + C * A)[:, None]
        c = ((r * hot).sum((1, 2)) + 1) / (n + 2)
    return pi, c

class Cfg(FedNoilPlusConfig):
    name: Literal["local:Local"] = "local:Local"
    local_from: float = 2.0   # share of the rounds after which π is used
    few: bool = True          # also clients with few labels
    memory: float = 0.0       # weight of the past
    power: float = 2.0
    weak_u: bool = False

class Local(FedNoilPlus):
    Config = Cfg
    def _sizes(self, trainees):
        new = [t for t in trainees if "size" not in t.state]
        if self.config.memory:
            for t in new:
                if "past" in t.state:
                    p = t.state["probabilities"].clamp_min(1e-7).log()
                    mean = torch.softmax(self.config.memory * t.state["past"].clamp_min(1e-7).log() + (1 - self.config.memory) * p, 1)
                    t.state["past"] = mean
                    t.state["probabilities"] = mean
                    t.state["confidence"] = sharpened(mean, self.temperature).gather(1, t.client.labels[:, None])[:, 0].float()
                else:
                    t.state["past"] = t.state["probabilities"]
        do = [t for t in new if (self.config.few or len(t.client) >= 500) and t.turn.round_idx > self.config.local_from * self.task.rounds]
        if do:
            pis, _ = held([t.state["probabilities"] for t in do], [t.client.labels for t in do])
            for t, pi in zip(do, pis):
                local = t.state["probabilities"].double() * pi
                local = local / local.sum(1, keepdim=True)
                t.state["probabilities"] = local.float()
                t.state["confidence"] = sharpened(local, self.temperature).gather(1, t.client.labels[:, None])[:, 0].float()
        return super()._sizes(trainees)
    def init(self, nets, client, keep, turn):
        state = super().init(nets, client, keep, turn)
        if self.config.memory and "past" in keep: state["past"] = keep["past"]
        return state
    def final(self, nets, client, state, turn):
        found = super().final(nets, client, state, turn)
        if self.config.memory: found.keep["past"] = state["past"]
        return found
    def _judged(self, client, state, share):
        if self.config.power == 2 or self.pseudo_weight: return super()._judged(client, state, share)
        probabilities = sharpened(state["probabilities"], self.temperature)
        weight = odds(probabilities, client.labels, share) ** self.config.power
        aside = self.set_aside(len(client), client.labels.device)
        chance = (weight / (1 + weight)).index_fill(0, aside, 0.0)
        state["weight"] = weight
        return min(len(client) - len(aside), max(1, int(chance.sum() + 0.5)))
    def strong_views(self, lot, chosen, name):
        if self.config.weak_u and name == "strong u":
            return weak_plan(lot.keys(name), chosen.shape[2], self.task.pad, flip=self.task.flip)
        return super().strong_views(lot, chosen, name)
    def views(self, pool, batch):
        if self.config.weak_u and "u_index" in batch:
            images = labelled.LabelledLearner.views(self, pool, batch)
            images["u"] = weak(pool, batch["u_index"], batch["u_strong"])
            return images
        return super().views(pool, batch)
