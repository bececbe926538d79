"""The default fit on ordinary logs that break assumptions: the worst log, with the truth as oracle."""

import numpy as np
import pytest
from adversarial_logs import divergence, fitted, harsh_log, reference, scored_log, segmented_log, totals

MOST_ROWS = 30_000.0


@pytest.mark.parametrize(
    ("draw", "most"), [(segmented_log, (1.5, 5e-5)), (scored_log, (1.5, 5e-5)), (harsh_log, (3.0, 1e-3))]
)
@pytest.mark.parametrize("number", range(20))
def test_default_is_near_the_better_of_one_map_and_maps_of_segments(draw, most, number, tmp_path):
    log = draw(number, MOST_ROWS)
    positives = log.label.sum()
    if min(positives, log.label.size - positives) < 20:
        pytest.skip("fewer than 20 rows of a label")
    if np.isnan(log.truth).all():
        pytest.skip("only odd segments")
    p = fitted(log, "auto", tmp_path / "fit")
    assert not isinstance(p, str), p
    assert p.min() > 0
    assert p.max() < 1
    assert divergence(log, p) <= most[0] * reference(log) + most[1]
    weight = np.ones(p.size) if log.weight is None else log.weight
    noise = np.sqrt((weight**2 * p * (1 - p)).sum()) / (weight * log.label).sum()
    of_all, of_segments = totals(log, p)
    assert abs(of_all) <= max(0.02, 3 * noise if positives < 10_000 else 0)
    assert abs(of_segments) <= 0.02
