"""Small runs merged into larger ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from calibrators.arithmetic import ties
from calibrators.arithmetic.ordering import sort_pairs, sort_scores
from calibrators.arithmetic.passes import Array, Points
from calibrators.arithmetic.ties import Coded, without_codes
from pipeline.log.segment_values import Encoder
from pipeline.sort.buffers import coded_sections, fold, fold_coded, tagged_sections, together
from pipeline.sort.run_files import CodedRows, Run, RunSegments, Sections, SignedRows, read_run, write_run
from pipeline.sort.tagged import recode


def merge_small(runs: Sequence[Run], folder: str, most_bytes: int) -> list[Run]:
    """Merge neighbouring runs into runs of at most `most_bytes`, as far as they are smaller.

    The merged runs are new files; what they were merged of stays.
    """
    made = 0
    while True:
        groups: list[list[Run]] = []
        for run in runs:
            if groups and sum(other.bytes for other in groups[-1]) + run.bytes <= most_bytes:
                groups[-1].append(run)
            else:
                groups.append([run])
        if len(groups) == len(runs):
            return list(runs)
        merged = []
        for group in groups:
            if len(group) > 1:
                merged.append(_merge(group, f"{folder}/run-merged-{made:06d}"))
                made += 1
            else:
                merged.append(group[0])
        # Ties have become entries: what was too much for one run may fit now.
        runs = merged


def _merge_coded(runs: Sequence[Run], path: str) -> Run:
    """As `_merge`, of runs of a log with segments, which get codes in common."""
    assert runs[0].segments is not None
    names = [str(i) for i in range(len(runs[0].segments.values))]
    encoder = Encoder(names)
    parts, tables = [], []
    for run in runs:
        assert run.segments is not None
        tables.append(encoder.encode(pa.RecordBatch.from_arrays(run.segments.values, names)))
        parts.append(read_run(run))
    counts = np.zeros((len(encoder), 2), np.int64)
    for run, table, part in zip(runs, tables, parts, strict=True):
        assert run.segments is not None
        counts[table] += run.segments.counts
        for column, labelled in (
            (part.tagged.tag, True),
            (part.coded_rows.code, False),
            (part.coded_entries.code, False),
        ):
            recode(column, table, labelled=labelled)
    score, tag = (np.concatenate(column) for column in zip(*(part.tagged for part in parts), strict=True))
    code: Any
    entries = [np.concatenate(column) for column in zip(*(part.coded_entries for part in parts), strict=True)]
    kept = []
    tagged, rows = Sections().tagged, Sections().coded_rows
    if score.size:
        folded = tagged_sections(score, tag, len(encoder))
        tagged = folded.tagged
        kept.append(folded.coded_entries)
    score, code, signed = (
        np.concatenate(column) for column in zip(*(part.coded_rows for part in parts), strict=True)
    )
    if score.size:
        folded = coded_sections(score, code, signed)
        rows = folded.coded_rows
        kept.append(folded.coded_entries)
    whole = ties.expand_coded(together(Coded(*entries), *kept))
    segments = RunSegments(encoder.values_of(np.arange(len(encoder))), counts)
    return write_run(path, Sections(tagged=tagged, coded_rows=rows, coded_entries=whole), segments)


def _merge(runs: Sequence[Run], path: str) -> Run:
    if runs[0].segments is not None:
        return _merge_coded(runs, path)
    sections = [read_run(run) for run in runs]
    negatives, negative_ties = fold(_sorted([section.negatives for section in sections]), label=0)
    positives, positive_ties = fold(_sorted([section.positives for section in sections]), label=1)
    pairs = np.concatenate([np.stack(section.rows, axis=1) for section in sections])
    rows, weighted_ties = fold_coded(CodedRows.of(*sort_pairs(pairs)))
    entries = [without_codes(*own) for own in (negative_ties, positive_ties)]
    entries += [without_codes(*section.entries) for section in sections]
    score, _, *sums = ties.expand_coded(together(*entries, weighted_ties))
    signed = SignedRows(rows.score, rows.signed)
    return write_run(path, Sections(negatives, positives, signed, Points(score, *sums)))


def _sorted(parts: list[Array]) -> Array:
    whole = np.concatenate(parts)
    sort_scores(whole)
    return whole
