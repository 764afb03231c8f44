"""How confident a model may be in labels that it has not seen, by the labels alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fednoil.audit import estimates
from fednoil.audit.cases import Case, Cases, calibrated
from fednoil.estimation import estimate
from fednoil.estimation.belief import soft
from fednoil.estimation.temperature import temperatures

CLASSES, SAMPLES = 5, 1500


def client(noise: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities that are correct, labels drawn from them of which some are replaced, and which are wrong."""
    rng = np.random.default_rng(seed)
    q = np.exp(rng.normal(0, 2, (SAMPLES, CLASSES)))
    q /= q.sum(1, keepdims=True)
    true = (q.cumsum(1) > rng.random((SAMPLES, 1))).argmax(1)
    given = np.where(rng.random(SAMPLES) < noise, (true + rng.integers(1, CLASSES, SAMPLES)) % CLASSES, true)
    return q, given, given != true


@pytest.mark.parametrize("sharpened", [0.6, 1.0, 3.0])
def test_the_temperature_is_found_in_spite_of_wrong_labels(sharpened: float) -> None:
    """Probabilities to the power of s, normalised, have the temperature s."""
    clients = [client(noise, seed) for seed, noise in enumerate((0.05, 0.16, 0.32))]
    found, low, high = temperatures([(soft(q, 1 / sharpened), given) for q, given, _ in clients])
    assert found == pytest.approx(sharpened, rel=0.2)
    assert low <= found <= high < 1.5 * low


def test_an_overconfident_models_mistakes_are_not_taken_for_wrong_labels() -> None:
    clients = [client(noise, seed) for seed, noise in enumerate((0.05, 0.16, 0.32))]
    sure = [soft(q, 1 / 3) for q, _, _ in clients]
    at, *_ = temperatures([(q, given) for q, (_, given, _) in zip(sure, clients, strict=True)])
    for q, (_, given, wrong) in zip(sure, clients, strict=True):
        before, after = (estimate(soft(q, t), given, np.random.default_rng(0), seen=False).ratio for t in (1, at))
        assert after == pytest.approx(wrong.mean(), abs=0.05)
        assert before > wrong.mean() + 0.1


def test_few_sure_answers_cannot_tell_a_models_mistakes_from_wrong_labels() -> None:
    """A model that is always about as sure: whatever the temperature, it contradicts the same labels."""
    rng = np.random.default_rng(0)
    true = rng.integers(0, 2, 200)
    said = np.where(rng.random(200) < 0.05, 1 - true, true)  # 5 % are the model's mistakes
    given = np.where(rng.random(200) < 0.05, 1 - true, true)
    q = np.full((200, 2), 0.02)
    q[np.arange(200), said] = 0.98
    best, low, high = temperatures([(q, given)])
    assert low < best <= high
    bundle = {"probabilities": torch.from_numpy(q)}
    case = Case(None, tuple(map(str, range(200))), np.arange(200), given, bundle)
    cases = Cases("two classes", ("a", "b"), [case], lambda row: np.zeros((1, 1, 1), np.uint8))
    (alone,), (found,) = estimates(cases), estimates(calibrated(cases))
    assert found.interval[0] < (given != true).mean() < found.interval[1]
    assert found.interval[0] < alone.interval[0] < alone.interval[1] < found.interval[1]
