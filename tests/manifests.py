"""What a fit says of itself in a manifest, for tests of the store that fit nothing."""

from __future__ import annotations

import json
from typing import Any

DATA = {
    "rows_read": 3,
    "rows_used": 3,
    "rows_positive": 1,
    "distinct_scores": 3,
    "weight": 3.0,
    "positives": 1.0,
    "lowest_score": 0.1,
    "highest_score": 0.9,
    "quarantined_by_reason": {},
}

FITTED: dict[str, Any] = {
    "features": [],
    "run_id": "r",
    "method": "isotonic",
    "parameters": {},
    "score_transform": "none",
    "monotone": True,
    "lookup_rows": 3,
    "seconds": 0.1,
    "software": {},
    "started": "2026-01-31T04:00:00+00:00",
    "config": {"log": {"weight": None}, "score_table": {"grid": "none"}},
    "data": DATA,
    "log": {"columns": {}, "generated_by": None, "files": []},
}


def with_value(manifest: dict[str, Any], path: str, value: Any) -> bytes:
    """A manifest with another value in one place; an empty path: the value in its stead."""
    if not path:
        return json.dumps(value).encode()
    changed = json.loads(json.dumps(manifest))
    changed.pop("checksum", None)
    *above, last = path.split("/")
    place = changed
    for name in above:
        place = place[name]
    place[last] = value
    return json.dumps(changed).encode()


WRONG: list[tuple[str, Any]] = [
    ("files", None),
    ("files", [1]),
    ("files/lookup.parquet", 5),
    ("files/lookup.parquet/sha256", None),
    ("files/lookup.parquet/bytes", True),
    ("", [1]),
    ("", None),
    ("previous_version", 5),
    ("created", 5),
    ("created", "yesterday"),
    ("fingerprint", None),
    ("data", None),
    ("data/rows_used", "3"),
    ("data/weight", []),
    ("method", 1),
    ("log/files", None),
    ("log/files", [1]),
    ("config", []),
    ("gate", 5),
    ("window", {"first": 5}),
    ("window", "2026"),
    ("segments", {"columns": 5}),
    ("refused", [1]),
    ("refused", None),
]
"""Places in a manifest, and what must not be there."""
