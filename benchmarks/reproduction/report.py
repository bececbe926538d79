"""The report of a reproduction: tables of the papers' results and ours as Markdown; the results as Parquet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.reproduction.beyond import auto_table, data_table, loss_table, size_tables, time_table
from benchmarks.reproduction.experiments import LARGE, Settings
from benchmarks.reproduction.methods import NAMES as METHODS
from benchmarks.reproduction.paper_tables import paper_tables
from benchmarks.reproduction.rank_figure import draw_ranks
from benchmarks.reproduction.tables import (
    MEASURES,
    Cell,
    RankTable,
    Table,
    gain_tables,
    generated_tables,
    rank_tables,
    value_tables,
)
from pipeline.files.folders import temporary_sibling

REPORT = "reproduction.md"
RESULTS, CELLS = "results.parquet", "tables.parquet"
FIGURES = "figures"


def write_report(
    results: pa.Table,
    settings: Settings,
    missing: Sequence[str],
    folder: Path,
    times: Sequence[dict[str, Any]] = (),
) -> Path:
    """Write results.parquet, tables.parquet, reproduction.md and figures/.

    Parameters
    ----------
    results : results of all experiments, `benchmarks.reproduction.experiments.SCHEMA`
    settings : settings of the experiments
    missing : missing data sets
    folder : existing folder for the report
    times : measured run times

    Returns
    -------
    path of reproduction.md
    """
    tables, figures = _contents(results, list(times))
    (folder / FIGURES).mkdir(exist_ok=True)
    _write(folder / RESULTS, lambda path: pq.write_table(results, path, compression="zstd"))
    _write(folder / CELLS, lambda path: pq.write_table(cells_of(tables), path, compression="zstd"))
    for name, content in figures.items():
        _write(folder / FIGURES / name, _writer(content))
    intro = _introduction(settings, missing)
    _write(folder / REPORT, _writer(markdown(intro, tables).encode()))
    return folder / REPORT


def _writer(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


def _write(target: Path, write: Callable[[Path], Any]) -> None:
    with temporary_sibling(target) as partial:
        write(partial)
        partial.replace(target)


def _contents(results: pa.Table, times: list[dict[str, Any]]) -> tuple[list[Table], dict[str, bytes]]:
    frame = results.to_pandas()
    figures: dict[str, bytes] = {}
    tables = value_tables(frame)
    tables += generated_tables(frame)
    ranked = rank_tables(frame)
    beyond = loss_table(frame)
    tables += [_with_figure(table, figures) for table in ranked]
    extra = [
        *gain_tables(frame),
        time_table(times),
        None if beyond is None else _with_figure(beyond, figures),
        auto_table(frame),
        *size_tables(frame),
        data_table(frame),
    ]
    return [*tables, *(table for table in extra if table is not None and table.rows)], figures


def _with_figure(ranked: RankTable, figures: dict[str, bytes]) -> Table:
    table = ranked.table
    name = f"ranks-{len(figures) + 1:02d}.svg"
    labelled = {MEASURES[measure]: ranking for measure, ranking in ranked.rankings.items()}
    figures[name] = draw_ranks(
        labelled, ranked.target, METHODS, f"{table.name.partition(' (section')[0]}: {table.title}"
    )
    return Table(table.name, table.title, table.columns, table.rows, table.notes, table.digits, (name,))


def _introduction(settings: Settings, missing: Sequence[str]) -> list[str]:
    cut = "no set is cut" if settings.max_rows is None else f"sets are cut to {settings.max_rows:,} rows"
    large = ""
    if settings.large_runs is not None:
        runs = min(settings.runs, settings.large_runs)
        large = f" Sets with more than {LARGE:,} rows, and the experiment on sizes: {runs} runs."
    lines = [
        "A cell with two numbers is the paper's / ours ± standard error; where the paper prints none, ours alone.",
        f"Cross-validation: {settings.runs} runs of {settings.folds} folds, {cut}; seed {settings.seed}.{large}",
        *(f"{key}: {title}." for key, title in paper_tables()["papers"].items()),
    ]
    if missing:
        lines.append(f"Not there, and therefore left out: {', '.join(missing)}.")
    return lines


def text_of(cell: Cell | str, digits: int) -> str:
    """Format a cell."""
    if isinstance(cell, str):
        return cell
    ours = "–" if _is_missing(cell.ours) else f"{cell.ours:.{digits}f}{cell.mark}"
    if not _is_missing(cell.error) and not _is_missing(cell.ours):
        ours += f" ± {cell.error:.{digits}f}"
    if cell.published is not None:
        return f"{_published(cell.published)}{cell.published_mark} / {ours}"
    return f"({cell.published_mark}) / {ours}" if cell.published_mark else ours


def _is_missing(number: float | None) -> bool:
    return number is None or math.isnan(number)


def _published(number: float) -> str:
    return f"{number:.3f}".removesuffix("0")


def markdown(intro: Sequence[str], tables: Sequence[Table]) -> str:
    """Format the report as Markdown."""
    lines = ["# The papers' tables beside ours", "", *(f"{line}  " for line in intro)]
    for table in tables:
        lines += ["", f"## {table.name}", "", table.title, ""]
        lines += [f"| {' | '.join(table.columns)} |", "|---" * len(table.columns) + "|"]
        for name, cells in table.rows:
            shown = [name, *(text_of(cell, table.digits) for cell in cells)]
            lines.append(f"| {' | '.join(text.replace('*', chr(92) + '*') for text in shown)} |")
        lines += ["", *(f"{note.replace('*', chr(92) + '*')}  " for note in table.notes)]
        lines += [f"![{table.name}]({FIGURES}/{figure})" for figure in table.figures]
    return "\n".join(lines).rstrip() + "\n"


def cells_of(tables: Sequence[Table]) -> pa.Table:
    """Return all numbers of the tables, a row per cell: table, row, column, published, ours, standard error, marks."""
    rows = [
        {
            "table": table.name,
            "title": table.title,
            "row": name,
            "column": column,
            "published": cell.published,
            "ours": cell.ours,
            "standard_error": cell.error,
            "published_mark": cell.published_mark,
            "mark": cell.mark,
        }
        for table in tables
        for name, cells in table.rows
        for column, cell in zip(table.columns[1:], cells, strict=True)
        if isinstance(cell, Cell)
    ]
    texts, numbers = ("table", "title", "row", "column"), ("published", "ours", "standard_error")
    schema = pa.schema(
        [
            *((name, pa.string()) for name in texts),
            *((name, pa.float64()) for name in numbers),
            ("published_mark", pa.string()),
            ("mark", pa.string()),
        ]
    )
    return pa.Table.from_pylist(rows, schema)
