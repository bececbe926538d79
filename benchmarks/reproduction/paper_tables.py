"""The numbers in the papers' tables (paper_tables.json)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.reproduction.data import BBQ_SETS, ENIR_SETS

SETS = {"enir": ENIR_SETS, "bbq": BBQ_SETS}
"""The data sets of the rank tables, by their key in the file."""


@cache
def paper_tables() -> dict[str, Any]:
    """Read the file.

    `papers`: titles. `values`: measures of one data set, a row per measure, a column per method. `generated`: rate, log
    loss and MSE of Raw, IR, DG and DGG; log loss and MSE count both classes. `ranks`: average ranks over data sets with
    the marks of Holm's procedure ('*': the target is better); null if the paper prints no number. `gains`: intervals of
    the relative gain. Each entry has its table and its place: the page, or the section of a text without pages.
    """
    content: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
    return content
