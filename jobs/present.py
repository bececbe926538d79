"""An evaluation as text for the terminal, as JSON, and as the facts of its report."""

from __future__ import annotations

import io
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from logcal.lookup_table import LookupFacts
from pipeline.evaluate.evaluation import Evaluation, changes, headline
from pipeline.evaluate.kept_table import InSample
from pipeline.evaluate.measurement import Measured
from pipeline.evaluate.significance import comparison_sentence
from pipeline.files.records import jsonable
from pipeline.sort.score_table import ScoreTable
from pipeline.sort.segment_predictions import segments_text
from pipeline.table.published import Version, describe_suspect_days, software

FITTED = (
    "every_boundary_considered",
    "models_averaged",
    "slope",
    "intercept",
    "largest_monotone_repair",
    "chosen",
    "isotonic_share",
    "cross_validated_log_loss",
)
"""Optional facts of the fit that the report shows."""


def table_facts(table: str, version: Version, lookup: LookupFacts) -> dict[str, Any]:
    """Return a table's facts for a report."""
    return {
        "table": table,
        "version": version.name,
        "published": version.manifest["created"],
        "method": lookup.method,
        "parameters": lookup.parameters,
        "score transform": lookup.score_transform,
        "monotone": lookup.monotone,
        "rows": lookup.rows,
        "fitted to rows": lookup.data.get("rows_used"),
        **{
            name: lookup.data[name]
            for name in FITTED
            if name in lookup.data and not (name == "chosen" and "isotonic_share" in lookup.data)
        },
        "fingerprint": lookup.fingerprint,
        **({"suspect days": ". ".join(days)} if (days := describe_suspect_days(version)) else {}),
    }


def row_facts(table: ScoreTable, left_out: Collection[str] = ()) -> dict[str, Any]:
    """Return the counts of used and of unusable rows for a report."""
    return {
        **{k: v for k, v in table.facts().items() if k not in {"quarantined_by_reason", *left_out}},
        **table.label_facts().get("labels", {}),
        **{f"quarantined: {reason}": count for reason, count in table.bad.in_order().items()},
    }


def run_facts(identity: str, started: float) -> dict[str, Any]:
    """Return the facts of a run that ends now, for a report. started : `time.perf_counter` at its start."""
    finished, seconds = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter() - started
    return {"id": identity, "finished": finished, "seconds": round(seconds, 2), **software()}


def summary_of(measured: Measured, overlap: InSample) -> dict[str, Any]:
    """Return an evaluation's numbers as JSON values."""
    evaluation = measured.evaluation
    before, after = evaluation.before.measures, evaluation.after.measures
    facts = evaluation.as_dict()
    summary = {
        "verdict": facts["verdict"],
        "beyond_chance": facts["after"]["significance"]["beyond_chance"],
        "in_sample": bool(overlap),
        "in_sample_share": overlap.share,
        "headline": headline(evaluation),
        "before": before.as_dict(),
        "after": after.as_dict(),
        **measured.table.facts(),
        **measured.table.label_facts(),
    }
    if evaluation.comparison is not None:
        summary["comparison"] = jsonable(comparison_facts(measured))
    if measured.segments is not None:
        summary["segments"] = jsonable(measured.segments.facts)
    return summary


def measured_facts(measured: Measured) -> dict[str, Any]:
    """Return an evaluation's rows, labelled rows, positives, and observed over expected with its 95 % interval."""
    facts, bars = measured.table.facts(), measured.evaluation.bars_after
    rows = {"rows": facts["rows_read"], "labelled": facts["rows_used"], "positives": facts["rows_positive"]}
    names = ("observed", "expected", "ratio", "ratio_low", "ratio_high")
    return {**rows, **jsonable({name: None if bars is None else getattr(bars, name) for name in names})}


def comparison_facts(measured: Measured) -> dict[str, Any]:
    """Return the facts of the comparison with another version, or with the scores."""
    facts: dict[str, Any] = measured.evaluation.as_dict()["comparison"]
    if measured.compared is not None:
        facts["segments_worse"] = measured.compared.worse()
    return facts


def lines_of(measured: Measured, overlap: InSample, version: Version) -> list[str]:
    """Return an evaluation as text lines for the terminal."""
    evaluation = measured.evaluation
    lines = [
        *([overlap.sentence(version.name)] if overlap else []),
        evaluation.as_dict()["verdict"],
        *comparison_lines(measured, f"version {version.name}"),
        headline(evaluation),
        "",
        *measures_table(evaluation),
        "",
    ]
    if measured.segments is not None:
        lines += [*_segment_lines(measured.segments.facts), ""]
    return lines


def comparison_lines(measured: Measured, name: str) -> list[str]:
    """Describe the comparison, and the segments that the measured table makes worse. name : measured table's name."""
    evaluation = measured.evaluation
    if evaluation.comparison is None:
        return []
    lines = [comparison_sentence(evaluation.comparison, evaluation.against or "", name)]
    worse = [] if measured.compared is None else measured.compared.worse()
    if worse:
        lines.append(
            f"Its log loss is higher beyond chance in {len(worse)} of the segments: {segments_text(worse)}."
        )
    return lines


def measures_table(evaluation: Evaluation) -> list[str]:
    """Format the measures before and after calibration side by side, as text lines."""
    rows = changes(evaluation)
    width = max(len(change.label) for change in rows)
    lines = [f"{'':{width}}  {'before':>8}  {'after':>8}"]
    for change in rows:
        cells = "  ".join("       –" if v is None else f"{v:8.4f}" for v in (change.before, change.after))
        lines.append(f"{change.label:{width}}  {cells}  {change.verdict}".rstrip())
    return lines


def _segment_lines(facts: Mapping[str, Any]) -> list[str]:
    """Describe the segments, and the worst ones with errors beyond chance."""
    unseen = f", {facts['unseen_rows']:,} rows of unseen ones" if facts["unseen_rows"] else ""
    before = facts["beyond_chance_before"]
    beyond = f"{'' if before is None else f'{before:,} before, '}{facts['beyond_chance_after']:,} after"
    lines = [f"{facts['count']:,} segments of {', '.join(facts['columns'])}{unseen}"]
    lines.append(f"segments with calibration errors beyond chance: {beyond}")
    for row in facts["worst"]:
        if row["beyond_chance_after"]:
            name = ", ".join("null" if value is None else value for value in row["segment"])
            errors = (
                f"ECE {row['ece_frequency_after']:.4f}, {row['beyond_chance_after']:.4f} of it beyond chance"
            )
            lines.append(f"  {name}: {errors} ({row['rows']:,} rows, map of: {row['fitted_on']})")
    return lines


def as_parquet(table: pa.Table) -> bytes:
    """Serialize a table as the bytes of a Parquet file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()
