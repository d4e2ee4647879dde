"""Quantiles of Student's t distribution against SciPy's."""

import pytest
import scipy

from goodput.estimates.student import t_quantile


@pytest.mark.parametrize("freedom", [1, 1.3, 2, 2.7, 3, 5, 10, 33.3, 100, 1e3, 1e5])
@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975, 0.995, 0.9999])
def test_quantiles_are_scipys(probability, freedom):
    assert t_quantile(probability, freedom) == pytest.approx(
        scipy.stats.t.ppf(probability, freedom), rel=1e-8
    )


def test_median_is_zero_and_large_samples_are_normal():
    assert t_quantile(0.5, 7) == pytest.approx(0, abs=1e-6)
    assert t_quantile(0.975, 1e9) == pytest.approx(scipy.stats.norm.ppf(0.975), rel=1e-5)
