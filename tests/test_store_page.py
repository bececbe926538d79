"""The page of a store: a row for each table, with what a person should look at, also where something is damaged."""

import datetime as dt
import json
import re

import pytest

from jobs.store_page import page
from logcal.errors import ConfigError, InputRejectedError
from pipeline.files import clock
from pipeline.table.store import TableStore
from tests.manifests import FITTED


def rows(path):
    """Rows of a page: the cells' text by table."""
    text = path.read_text()
    found = {}
    for row in re.findall(r"<tr><th scope=\"row\".*?</tr>", text, flags=re.DOTALL):
        cells = re.sub(r"<[^>]*>", " ", re.sub(r"</t[dh]>", " | ", row))
        name, _, rest = re.sub(r"\s+", " ", cells).strip().partition(" | ")
        found[name] = rest
    return found


@pytest.fixture
def store(tmp_path):
    """Write a store with tables of a version each."""

    def write(*names):
        for name in names:
            TableStore(str(tmp_path / "store"), name).publish(
                "a" * 64,
                lambda version: {"lookup.parquet": b"x"},
                {**FITTED, "run_id": "1", "publish": "current"},
            )
        return tmp_path / "store"

    return write


def record(folder, job, start, **facts):
    """Write a record of a run as `jobs.records` does."""
    folder.mkdir(exist_ok=True)
    name = f"{start}-{job}-1b4e28ba-2fa.json"
    content = {"job": job, "start": start, "end": "2026-03-09T06:31:00+00:00", "exit_code": 0, "result": {}}
    (folder / name).write_text(json.dumps({**content, **facts}))


def test_every_table_has_its_row_and_those_to_look_at_come_first(store, tmp_path, monkeypatch):
    now = dt.datetime(2026, 3, 9, 8, 0, tzinfo=dt.UTC)
    monkeypatch.setattr(clock, "now", lambda: now)
    place = store("ads", "bikes", "cars", "dogs")
    (place / "empty").mkdir()
    (place / "note.txt").write_text("no table")
    report = tmp_path / "a & b" / "report.html"
    report.parent.mkdir()
    report.write_text("x")
    states = {"missing": 2, "failed": 0, "done": 7}
    measured = {"day": "2026-03-08", "observed_over_expected": 1.25}
    result = {
        "states": states,
        "newest_measured": measured,
        "reports": {"evaluate": str(report), "monitor": "/none"},
    }
    record(place / "cars/runs", "days", "20260308T063000", exit_code=0)
    record(place / "cars/runs", "days", "20260309T063000", exit_code=4, message="<b> decide", result=result)
    record(place / "cars/runs", "tables-rollback", "20260309T073000", exit_code=3)
    record(place / "bikes/runs", "days", "20260307T063000", end="2026-03-08T05:00:00+00:00")
    record(place / "dogs/runs", "fit", "20260309T063000", exit_code=99)
    (place / "dogs/runs/20260309T063000-score-1b4e28ba-2fa.json").write_text("{")
    (place / "ads/CURRENT").write_text("no name\n")
    found = page(str(place), str(tmp_path / "page.html"))
    assert (found.summary["tables"], found.summary["troubled"]) == (4, ["ads", "bikes", "cars"])
    shown = rows(tmp_path / "page.html")
    assert list(shown) == ["ads", "bikes", "cars", "dogs"]
    assert "CURRENT: expected the name of a version" in shown["ads"]
    assert "2 days missing days ended with 4: &lt;b&gt; decide" in shown["cars"]
    assert "| 1.250 2026-03-08 | 2 | days 4 2026-03-09 06:31 | evaluate" in shown["cars"]
    assert "| fit 99 2026-03-09 06:31 |" in shown["dogs"]
    assert "the daily job has not run since 2026-03-08 05:00:00 UTC" in shown["bikes"]
    version = TableStore(str(place), "dogs").current()
    assert shown["dogs"].startswith(f"good | {version.name} {version.manifest['method']} |")
    text = (tmp_path / "page.html").read_text()
    assert 'href="a%20%26%20b/report.html"' in text
    assert "Written <time" in text
    assert "after 2026-03-10 10:00:00 UTC this page says nothing" in text
    assert "3 of 4 tables to look at." in text
    # A class that narrow screens hide would hide the reasons.
    assert text.count('<span class="error trouble">') == 4


def test_what_is_no_store_and_no_place_for_a_page_is_said(store, tmp_path):
    place = store("ads")
    for wrong in (tmp_path / "none", tmp_path / "store/ads/CURRENT", tmp_path / "store/ads"):
        with pytest.raises(InputRejectedError, match="expected published tables, found none"):
            page(str(wrong), str(tmp_path / "page.html"))
    assert not (tmp_path / "page.html").exists()
    with pytest.raises(ConfigError, match="--output: cannot write"):
        page(str(place), "/proc/none/page.html")


def test_a_store_of_objects_has_the_same_page(tmp_path):
    for i in range(40):
        TableStore("memory://pages", f"t{i:02d}").publish(
            "b" * 64, lambda version: {"lookup.parquet": b"x"}, {**FITTED, "run_id": "1"}
        )
    assert page("memory://pages", str(tmp_path / "page.html")).summary["troubled"] == []
    shown = rows(tmp_path / "page.html")
    assert list(shown) == [f"t{i:02d}" for i in range(40)]
    assert all("0 hours old" in row for row in shown.values())
