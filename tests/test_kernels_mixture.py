"""The mixture's kernel against its plain meaning: on a GPU, or else in Triton's interpreter."""

import os

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)

from fednoil.kernels import mixture as kernel
from fednoil.learners import mixture

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SETTINGS = (mixture._FLOOR, mixture._TINY, mixture._TOLERANCE, mixture._ITERATIONS)


@pytest.mark.parametrize("count", [2, 7, 150, 600, 1500])
def test_same_chances_as_the_plain_fit(count):
    generator = torch.Generator().manual_seed(count)
    low = 0.2 + 0.05 * torch.randn(3, count, generator=generator)
    high = 0.7 + 0.1 * torch.randn(3, count, generator=generator)
    values = torch.where(torch.rand(3, count, generator=generator) < 0.4, low, high).double()
    values[2] = torch.rand(count, generator=generator)  # no two groups at all
    everyone = torch.tensor(count)
    upper = mixture._upper_half(values, torch.ones(count, dtype=torch.bool)).double()
    got = kernel.low_component(values.to(DEVICE), upper.to(DEVICE), everyone.to(DEVICE), *SETTINGS).cpu()
    torch.testing.assert_close(got.float(), mixture.low_component(values.float()), rtol=1e-4, atol=1e-5)


def test_mapped_clients_of_different_sizes_are_fitted_as_alone():
    """Four clients with two rows each in tables of 70; what lies beyond a client's own values plays no part."""
    values, counts = torch.rand(4, 2, 70, generator=torch.Generator().manual_seed(0)).double(), [70, 41, 2, 1]

    def fitted(x, count):
        inside = torch.arange(70, device=DEVICE) < count
        upper = mixture._upper_half(x, inside).double()
        return kernel.low_component(torch.where(inside, x, 0.0), upper, count, *SETTINGS)

    got = torch.vmap(fitted)(values.to(DEVICE), torch.tensor(counts, device=DEVICE)).cpu()
    assert torch.isfinite(got).all()
    for rows, chances, count in zip(values, got, counts, strict=True):
        wanted = mixture.low_component(rows.float(), torch.tensor(count))
        torch.testing.assert_close(chances[:, :count].float(), wanted[:, :count], rtol=1e-4, atol=1e-5)


def test_rows_with_counts_of_their_own_are_fitted_as_alone():
    values, counts = torch.rand(4, 70, generator=torch.Generator().manual_seed(1)), [70, 41, 2, 33]
    own = torch.tensor(counts)[:, None]
    inside = torch.arange(70) < own
    x = torch.where(inside, values.double(), 0.0)
    upper = mixture._upper_half(x, inside).double()
    got = kernel.low_component(x.to(DEVICE), upper.to(DEVICE), inside.sum(-1).to(DEVICE), *SETTINGS).cpu()
    plain = mixture.low_component(values, own)
    for row, (chances, others, count) in enumerate(zip(got, plain, counts, strict=True)):
        wanted = mixture.low_component(values[row : row + 1], torch.tensor(count))[0, :count]
        torch.testing.assert_close(chances[:count].float(), wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(others[:count], wanted)
