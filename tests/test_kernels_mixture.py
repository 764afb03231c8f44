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


@pytest.mark.parametrize("count", [2, 7, 150, 600, 1500])
def test_same_chances_as_the_plain_fit(count):
    generator = torch.Generator().manual_seed(count)
    low = 0.2 + 0.05 * torch.randn(3, count, generator=generator)
    high = 0.7 + 0.1 * torch.randn(3, count, generator=generator)
    values = torch.where(torch.rand(3, count, generator=generator) < 0.4, low, high).double()
    values[2] = torch.rand(count, generator=generator)  # no two groups at all
    upper = mixture._upper_half(values).double()
    settings = (mixture._FLOOR, mixture._TINY, mixture._TOLERANCE, mixture._ITERATIONS)
    got = kernel.low_component(values.to(DEVICE), upper.to(DEVICE), *settings).cpu()
    torch.testing.assert_close(got.float(), mixture.low_component(values.float()), rtol=1e-4, atol=1e-5)
