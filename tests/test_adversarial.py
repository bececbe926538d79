"""The default fit on ordinary logs that break assumptions: the worst log, with the truth as oracle."""

import numpy as np
import pytest
from adversarial_logs import divergence, fitted, reference, scored_log, segmented_log, totals

MOST_ROWS = 30_000.0


@pytest.mark.parametrize("draw", [segmented_log, scored_log])
@pytest.mark.parametrize("number", range(20))
def test_default_is_near_the_better_of_one_map_and_maps_of_segments(draw, number, tmp_path):
    log = draw(number, MOST_ROWS)
    positives = log.label.sum()
    if min(positives, log.label.size - positives) < 20:
        pytest.skip("fewer than 20 rows of a label")
    p = fitted(log, "auto", tmp_path / "fit")
    assert not isinstance(p, str), p
    assert p.min() > 0
    assert p.max() < 1
    assert divergence(log, p) <= 1.5 * reference(log) + 5e-5
    weight = np.ones(p.size) if log.weight is None else log.weight
    noise = np.sqrt((weight**2 * p * (1 - p)).sum()) / (weight * log.label).sum()
    of_all, of_segments = totals(log, p)
    assert abs(of_all) <= max(0.02, 3 * noise if positives < 10_000 else 0)
    assert abs(of_segments) <= 0.02
