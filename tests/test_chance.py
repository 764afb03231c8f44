"""Whether a difference is more than chance: against scipy's own tests, and what a value alone is given."""

from __future__ import annotations

import pytest
from scipy import stats

from fednoil.report.chance import SampleStats, paired_p, sample_of, unpaired_p


def test_as_scipy_has_them() -> None:
    a, b = [84.1, 85.0, 83.2, 84.4], [82.0, 84.9, 81.7, 80.2]
    assert paired_p([x - y for x, y in zip(a, b, strict=True)]) == pytest.approx(stats.ttest_rel(a, b).pvalue)
    welch = stats.ttest_ind(a, b[:3], equal_var=False).pvalue
    assert unpaired_p(sample_of(a), sample_of(b[:3])) == pytest.approx(welch)
    printed = stats.ttest_ind_from_stats(84.5, 0.9, 3, 83.7, 0.3, 5, equal_var=False).pvalue
    assert unpaired_p(SampleStats(84.5, 0.9, 3), SampleStats(83.7, 0.3, 5)) == pytest.approx(printed)


def test_a_value_alone_has_the_others_spread() -> None:
    """70 against 69, 70, 71 plus 3: t = 3 / √(1 + 1/3) = 2.6 with 2 degrees of freedom, as Student's pooled test."""
    pooled = stats.ttest_ind([69, 70, 71], [73], equal_var=True).pvalue
    assert unpaired_p(sample_of([69, 70, 71]), sample_of([73])) == pytest.approx(pooled)
    assert unpaired_p(sample_of([73]), sample_of([69, 70, 71])) == pytest.approx(pooled)


def test_what_cannot_be_computed_and_what_has_no_spread() -> None:
    assert unpaired_p(sample_of([70]), sample_of([90])) is None
    assert paired_p([1.0, 1.1]) is None
    assert paired_p([2.0] * 3) == 0
    assert paired_p([0.0] * 3) == 1
    assert unpaired_p(sample_of([70, 71]), sample_of([90, 91])) is None
    assert unpaired_p(sample_of([70] * 3), sample_of([70, 70])) == 1
