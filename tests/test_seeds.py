import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fednoil import seeds
from fednoil.seeds import Seed, bits, gumbel, integers, open_uniform, permutations, uniform


def splitmix64(state: int, count: int) -> list[int]:
    """The published algorithm in plain integers, as an oracle for the tensor code."""
    mask, out = (1 << 64) - 1, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        out.append(z ^ (z >> 31))
    return out


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**64 - 1))
def test_bits_are_splitmix64(state: int) -> None:
    signed = state - (1 << 64) if state >= 1 << 63 else state
    got = [int(x) & ((1 << 64) - 1) for x in bits(torch.tensor(signed), 5)]
    assert got == splitmix64(state, 5)


def test_children_differ_by_every_name_and_by_type() -> None:
    seeds = [
        Seed(0),
        Seed(1),
        Seed(0).child("a"),
        Seed(0).child("a", "b"),
        Seed(0).child("ab"),
        Seed(0).child("1"),
        Seed(0).child(1),
    ]
    assert len({s.value for s in seeds}) == len(seeds)


def test_a_child_does_not_depend_on_what_was_drawn_before() -> None:
    parent = Seed(3)
    first = parent.child("x").numpy().random(3)
    parent.child("y").numpy().random(100)
    assert (parent.child("x").numpy().random(3) == first).all()


def test_uniform_and_integers_are_in_range_and_even() -> None:
    keys = Seed(0).keys(range(4))
    u = uniform(keys, 20_000)
    assert u.shape == (4, 20_000)
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    assert torch.allclose(u.mean(1), torch.tensor(0.5), atol=0.01)
    counts = torch.bincount(integers(keys, 20_000, -4, 5).flatten() + 4)
    assert len(counts) == 9
    assert (counts - 80_000 / 9).abs().max() < 5 * (80_000 / 9) ** 0.5


def test_permutations_hold_every_number_once() -> None:
    order = permutations(Seed(0).keys(range(3)), 50)
    assert torch.equal(order.sort(1).values, torch.arange(50).expand(3, 50))
    assert not torch.equal(order[0], order[1])


def test_keys_one_by_one_are_the_keys_together() -> None:
    seed = Seed(9).child("order")
    together = permutations(seed.keys(range(5)), 20)
    assert all(torch.equal(permutations(seed.keys([e]), 20)[0], together[e]) for e in range(5))


def test_gumbel_top_m_is_successive_sampling() -> None:
    """Successive sampling by s = (400, 300, 200, 100), m = 2."""
    p = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    noise = gumbel(Seed(0).keys(range(200_000)), 4)
    top = (p.log() + noise).topk(2, dim=1).indices
    inclusion = torch.bincount(top.flatten(), minlength=4) / 200_000
    expected = torch.tensor([0.715873, 0.608333, 0.441270, 0.234524])
    assert torch.allclose(inclusion.float(), expected, atol=0.005)


def test_open_uniform_numbers_are_never_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise made from bits that are all zero is finite."""
    monkeypatch.setattr(seeds, "bits", lambda keys, count: torch.zeros(*keys.shape, count, dtype=torch.int64))
    keys = Seed(0).keys(range(2))
    assert bool((open_uniform(keys, 3) > 0).all())
    assert bool(torch.isfinite(gumbel(keys, 3)).all())
