"""Check of the maps that segments share: one without a map of its own uses its parent's, or that of all rows.

Segments with maps of their own bend the maps above them, which they do not use. So each such map is also checked
against the rows that use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from calibrators.base import Line
from calibrators.core.arrays import Codes, Integers, Mask
from calibrators.core.map import CalibrationMap
from calibrators.core.passes import Points
from calibrators.measures.segment_check import SegmentCheck, check_segments, joined
from pipeline.execution import Executor, Graph
from pipeline.files.folders import Folder
from pipeline.fit.calibration import Fit, Recipe, fit_log
from pipeline.fit.self_check import ONE_RANGE, Checked, dispersion_of, expected_positives, sums_of_points
from pipeline.sort.score_cells import add_up_cells, middle_of
from pipeline.sort.score_table import SortedRows, add_merge
from pipeline.sort.segment_merge import Cutting, LevelCut
from pipeline.sort.segment_tasks import map_segments
from pipeline.sort.segments import Segments, ShuffleFile, Slices, write_codes
from pipeline.table.segment_maps import ONE_SCORE, Fitted, LevelFit, Maps, SegmentRules

_MISSING = "missing"

LEAST_LEFT = 100
"""Least number of positives and of negatives of some segments to which the map of all rows is fitted anew."""

_TASK_BYTES = 64 << 20
"""Bytes of cells of a task."""


class SharedMaps(NamedTuple):
    """Maps that were fitted to segments with maps of their own, too; one entry each.

    level : int64 array: level of the map; 0: of all rows
    segment : int64 array: its segment on this level
    entry : int32 array: for each segment code the entry of the map that it uses; -1 if this is its own, or was fitted
        to its users alone
    """

    level: Integers
    segment: Integers
    entry: Codes

    def with_enough(self, segments: Segments, rules: SegmentRules) -> Mask:
        """Return the mask of the maps whose users have enough rows for a map by the rules of segments."""
        level, used = segments.levels[-1], self.entry >= 0
        rows, positives = (
            np.bincount(self.entry[used], column[level.of][used], self.level.size).astype(np.int64)
            for column in (level.rows, level.positives)
        )
        reasons = replace(rules, partial_pooling=False).reasons(rows, positives)
        return np.array([reason is None for reason in reasons], np.bool_)


def find_shared(segments: Segments, own: Sequence[Mask]) -> SharedMaps | None:
    """Find the shared maps; None if there are none.

    own : for each level the mask of the segments with maps of their own
    """
    count = segments.coding.count
    used = np.zeros(count, np.int64)
    for level, mask in zip(segments.levels, own, strict=True):
        used[mask[level.of]] = level.level
    entry = np.full(count, -1, np.int32)
    levels: list[int] = []
    indices: list[int] = []
    for number in range(len(segments.levels)):
        of = segments.levels[number - 1].of if number else np.zeros(count, np.int32)
        bent = np.bincount(of, used > number) > 0
        users = np.flatnonzero((used == number) & bent[of])
        found, position = np.unique(of[users], return_inverse=True)
        entry[users] = len(levels) + position
        levels += [number] * found.size
        indices += found.tolist()
    if not levels:
        return None
    return SharedMaps(np.array(levels, np.int64), np.array(indices, np.int64), entry)


def cut_shared(shared: SharedMaps, scratch: str) -> LevelCut:
    """Make the settings with which the merge writes the cells of the rows that use shared maps."""
    path = f"{scratch}/shared"
    return LevelCut(write_codes(path, shared.entry), shared.level.size, False, f"{path}-cells", cells=True)


class SharedCells(NamedTuple):
    """Cells of the rows that use shared maps.

    shared : the maps. files : shuffle files of the cells, by range of scores. executor : for tasks that read them
    """

    shared: SharedMaps
    files: Sequence[ShuffleFile]
    executor: Executor

    def points(self) -> Iterator[tuple[list[int], Slices]]:
        """Yield the entries of some maps, and their cells as points."""
        for codes, cells in map_segments(self.files, self.executor, _whole_cells, _TASK_BYTES, cut=False):
            first, last, *sums = cells.columns
            yield codes.tolist(), Slices([middle_of(first, last), *sums], cells.starts)


def check_shared(
    cells: SharedCells,
    levels: Sequence[LevelFit],
    lines: Sequence[Sequence[Line | None]],
    rate: float,
) -> LevelFit:
    """Compute the sums for the check of shared maps, as a level whose segments are the maps.

    levels : the fits of all levels, that of all rows first; a map that is missing there is not checked
    lines : for each level after it the line of each segment; None if it has none
    rate : sampling rate of the log, see `calibrators.base.Sampling`
    """
    places = list(zip(cells.shared.level.tolist(), cells.shared.segment.tolist(), strict=True))
    maps = [_Maps(level.maps) for level in levels]
    parts = []
    for codes, points in cells.points():
        found = [
            (lines[level - 1][index] if level else None) or maps[level].map(index) or _MISSING
            for level, index in (places[code] for code in codes)
        ]
        expected = [expected_positives(*pair, rate) for pair in zip(found, points.points(), strict=True)]
        checked = np.array([outcome is not _MISSING for outcome in found])
        parts.append((np.array(codes), sums_of_points(points, np.concatenate(expected), checked)))
    keys = [levels[level].keys[index] for level, index in places]
    none = np.zeros(len(keys), np.int64)
    return LevelFit(
        0, keys, none, none, [None] * len(keys), Maps([0] * len(keys)), checked=joined(parts, len(keys))
    )


def check_of(level: LevelFit, agreement: Checked | None, heaviest: float) -> SegmentCheck:
    """Check shared maps.

    level : result of `check_shared`. agreement : the check of the map of all rows
    heaviest : see `calibrators.base.Sampling`
    """
    sums = level.checked
    assert sums is not None
    return check_segments(
        sums, ONE_RANGE, tests=sums.tests, dispersion=dispersion_of(agreement), heaviest=heaviest
    )


def bends_all_rows(shared: SharedMaps, check: SegmentCheck) -> bool:
    """Tell whether the map of all rows significantly disagrees with the rows that use it."""
    if shared.level[0] != 0:
        return False
    alone = shared.level.size == 1 and not check.agrees
    return alone or any(entry == 0 for entry, _ in check.misfits)


def fit_bent_parents(
    cells: SharedCells,
    check: SegmentCheck,
    fitted: Sequence[LevelFit],
    lines: Sequence[list[Line | None]],
    fit: Callable[[Points], CalibrationMap | Line | str],
    wanted: Mask,
) -> int:
    """Fit parents' maps that significantly disagree with the segments that use them to these segments alone.

    The maps of all rows stay: see `fit_users`. Parents are fitted to cells of scores, a 4,096th of a power of two wide.

    check : their check. wanted : mask of the shared maps whose users have enough rows
    fitted, lines : see `check_shared`; the maps and lines are replaced
    fit : function from points to a map or a line, or the reason for neither

    Returns
    -------
    number of maps that were fitted
    """
    shared = cells.shared
    bent = {code for code, _ in check.misfits if shared.level[code] > 0 and wanted[code]}
    new: dict[int, dict[int, CalibrationMap | None]] = {}
    for codes, points in cells.points() if bent else ():
        for code, own in zip(codes, points.points(), strict=True):
            if code not in bent or isinstance(outcome := fit(own), str):
                continue
            number, segment = int(shared.level[code]), int(shared.segment[code])
            lines[number - 1][segment] = None if isinstance(outcome, CalibrationMap) else outcome
            new.setdefault(number, {})[segment] = outcome if isinstance(outcome, CalibrationMap) else None
    for number, maps in new.items():
        fitted[number].maps = _replaced(fitted[number].maps, maps)
    return sum(map(len, new.values()))


def _replaced(maps: Maps, new: Mapping[int, CalibrationMap | None]) -> Maps:
    """Return maps with some exchanged; None: no map."""
    old, found = _Maps(maps), Maps.empty([])
    for segment in range(len(maps.sizes)):
        found.add(new[segment] if segment in new else old.map(segment))
    return found.packed()


class UsersFit(NamedTuple):
    """Fit of the map of all rows to the rows that use it, and their number."""

    fit: Fit
    rows: int


def fit_users(
    recipe: Recipe, rows: SortedRows, executor: Executor, segments: Segments, shared: SharedMaps
) -> UsersFit | None:
    """Fit the map of all rows anew, to the rows that use it; None if they are too few, or have one score.

    Merges the log once more.
    """
    level, users = segments.levels[-1], shared.entry == 0
    labels = np.stack([level.positives, level.rows - level.positives])[:, level.of]
    if labels[:, users].sum(axis=1).min() < LEAST_LEFT:
        return None
    scratch = f"{rows.plan.scratch}/users"
    Folder.at(scratch).make()
    others = write_codes(f"{scratch}/others", (~users).astype(np.int32))
    cutting = Cutting(segments.coding, (), rows.weighted, left_out=others)
    plan = replace(rows.plan, scratch=scratch, write=f"{scratch}/score_table")
    rows, graph, calibrator = rows._replace(plan=plan), Graph(), recipe.calibrator()
    merged = executor.compute(graph, add_merge(graph, rows, calibrator.first_pass(), cutting))
    if merged[0].points == 1:
        return None
    fit = fit_log(calibrator, rows, executor, recipe.interval, merged, recipe.sampling_rate)
    return UsersFit(fit, int(labels[:, users].sum()))


def check_single(
    levels: Sequence[LevelFit],
    lines: Sequence[Sequence[Line | None]],
    results: Sequence[Sequence[tuple[Integers, Fitted]]],
    rate: float,
) -> None:
    """Add the segments with one score, which have no map of their own, to the sums for the checks of their levels.

    levels, lines, rate : see `check_shared`
    results : for each level after the first the segments of each task, and their fits
    """
    maps = [_Maps(level.maps) for level in levels]
    for number, (level, fits) in enumerate(zip(levels[1:], results, strict=True), 1):
        parts = [] if level.checked is None else [(np.arange(len(level.keys)), level.checked)]
        assert level.of is not None
        leaf = np.unique(level.of, return_index=True)[1]
        for codes, fitted in fits:
            single = codes[[reason == ONE_SCORE for reason in fitted.reasons]]
            if not single.size:
                continue
            found = [_used_map(own, number, levels, lines, maps) for own in leaf[single].tolist()]
            points = Slices(list(fitted.single), np.arange(single.size + 1))
            expected = [expected_positives(*pair, rate) for pair in zip(found, points.points(), strict=True)]
            checked = np.array([outcome is not _MISSING for outcome in found])
            parts.append((single, sums_of_points(points, np.concatenate(expected), checked)))
        if len(parts) > 1 or level.checked is None:
            level.checked = joined(parts, len(level.keys))


def _used_map(
    leaf: int,
    below: int,
    levels: Sequence[LevelFit],
    lines: Sequence[Sequence[Line | None]],
    maps: Sequence[_Maps],
) -> CalibrationMap | Line | str:
    """Return the map or line above a level that a segment of the last level uses. leaf, below : the two."""
    for number in range(below - 1, -1, -1):
        of = levels[number].of
        index = 0 if of is None or number == 0 else int(of[leaf])
        found = (lines[number - 1][index] if number else None) or maps[number].map(index)
        if found is not None:
            return found
    return _MISSING


class _Maps:
    """The maps of a level, by segment."""

    def __init__(self, maps: Maps) -> None:
        self._columns = maps.arrays()[: len(CalibrationMap.__dataclass_fields__)]
        self._ends = np.cumsum([0, *maps.sizes])

    def map(self, index: int) -> CalibrationMap | None:
        """Return a segment's map; None if it has none."""
        start, stop = self._ends[index : index + 2].tolist()
        return CalibrationMap(*(column[start:stop] for column in self._columns)) if start < stop else None


def _whole_cells(_: int, codes: Integers, items: Slices) -> tuple[Integers, Slices]:
    """Join the parts of cells that a bound between ranges of scores divided."""
    first, last, *sums = items.columns
    return codes, Slices(*add_up_cells(first, last, sums, items.starts))
