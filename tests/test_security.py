"""What docs/security.md says of names, links and secrets, through the real jobs."""

import shutil
import socket
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.files.scratch import scratch_folder

SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror="alert(2)">'
KEY = f"k{IMAGE}"


@pytest.fixture
def hostile(place):
    """A log whose segment column and values are markup, in a folder of such a name."""
    columns = place.predictions(1200)
    columns["score"] = np.round(columns["score"], 2)
    columns[KEY] = np.array([SCRIPT, IMAGE, "it's\none"])[np.arange(1200) % 3]
    columns["date"] = np.array(["2026-01-01", "2026-01-02"], "datetime64[D]")[np.arange(1200) // 600]
    place.log = place.root / "a<i>b"
    place.write_log(columns, name=place.log.name)
    return place


def pages(place):
    found = list(place.root.rglob("*.html"))
    assert found
    return {path: path.read_text(encoding="utf-8") for path in found}


def test_markup_in_names_is_shown_and_not_obeyed(hostile, call):
    segments = (f"log.segment=['{KEY}']", "segments.min_rows=10", "segments.min_positives=1")
    call("fit", *segments).expect(0)
    call("fit", *segments, "calibrator.method=platt").expect(0)
    own = (f"log.segment=['{KEY}']", "evaluate.allow_in_sample=true")
    call("evaluate", *own, report__path=hostile.root / "report").expect(0)
    call("monitor", "window.column=date", report__path=hostile.root / "monitor").expect(0)
    call("compare", report__path=hostile.root / "compared")
    # A file that is refused, with its reason, is on the page of the stream.
    shutil.copy(hostile.log / "part-0.parquet", hostile.log / "<img src=x>.parquet")
    pq.write_table(pa.table({SCRIPT: [0.5]}), hostile.log / "<img src=y>.parquet")
    paths = {"output__path": hostile.root / "scored", "report__path": hostile.root / "stream"}
    call("follow", "follow.once=true", **paths).expect(3)
    difference = hostile.root / "difference.html"
    given = ("--store", str(hostile.store), "--table", hostile.table, "--report", str(difference))
    hostile.run("tables", "diff", *given, "000001", "000002").expect(0)
    names = {path.parent.name for path in pages(hostile)}
    assert names >= {"report", "monitor", "compared", "stream", hostile.root.name}
    for path, text in pages(hostile).items():
        for markup in (SCRIPT, "<img", "<i>"):
            assert markup not in text, (path, text.find(markup))
    assert "&lt;script&gt;alert(1)" in pages(hostile)[hostile.root / "report" / "report.html"]


def test_metrics_stay_lines_whatever_names_are(hostile, call):
    metrics = hostile.root / "a.prom"
    call("fit", f"record.prometheus={metrics}", 'store.table=a"} 1\nb').expect(2)
    call("fit", f"record.prometheus={metrics}").expect(0)
    for line in metrics.read_text().splitlines():
        assert line.startswith(("#", "logcal_")), line


# Links


def test_links_in_what_a_killed_run_left_are_removed_and_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    base = tmp_path / "scratch"
    left = base / f"logcal-scratch-{socket.gethostname()}-{'0' * 32}"
    left.mkdir(parents=True)
    (left / "link").symlink_to(precious)
    (left / "file").symlink_to(precious / "file")
    linked = left.with_name(f"{left.name}1")
    linked.symlink_to(precious)
    with scratch_folder(str(base)):
        pass
    assert not left.exists()
    assert [path.name for path in precious.iterdir()] == ["file"]


def test_a_scratch_folder_that_another_made_is_not_taken_over(tmp_path):
    with scratch_folder(str(tmp_path), "me") as own:
        name = Path(own).name
    another = tmp_path / "another"
    another.mkdir(mode=0o777)
    (another / "receipt-sort-000000").write_bytes(b"not ours")
    (tmp_path / name).symlink_to(another)
    with scratch_folder(str(tmp_path), "me") as own:
        assert Path(own).resolve() != another
        assert not Path(own, "receipt-sort-000000").exists()
    assert (another / "receipt-sort-000000").read_bytes() == b"not ours"


def test_links_in_a_store_lead_no_one_to_remove_what_they_point_to(place, call):
    place.write_log()
    for method in ("platt", "histogram", "isotonic"):
        call("fit", f"calibrator.method={method}").expect(0)
    outside = place.root / "outside"
    first = place.store / "ads" / "versions" / place.versions[0]
    shutil.move(first, outside)
    first.symlink_to(outside)
    from pipeline.table.store import TableStore

    TableStore(str(place.store), "ads").prune(1)
    assert not first.is_symlink()
    assert sorted(path.name for path in outside.iterdir())


@pytest.mark.parametrize("content", ["../../../elsewhere", "/etc", ".", "versions/x", "a\0b", "x" * 5000])
def test_current_leads_to_no_other_folder(fitted, place, call, content):
    (place.store / "ads" / "CURRENT").write_text(content)
    elsewhere = place.root / "elsewhere"
    shutil.copytree(place.store / "ads" / "versions" / place.versions[0], elsewhere)
    call("score").expect(3)
    assert not place.output.exists()
    assert list(elsewhere.iterdir())


# Secrets


def test_secrets_of_a_run_that_fails_reach_nothing_that_is_written(place, call):
    place.write_log()
    secrets = ("tok3n-of-mine", "p4ssw0rd")
    settings = (
        "storage.options={s3: {key: access-4711, secret: tok3n-of-mine, endpoint_url: 'http://127.0.0.1:9'}}",
        f"record.path={place.root / 'records'}",
        f"record.prometheus={place.root / 'a.prom'}",
        f"record.openlineage={place.root / 'events.jsonl'}",
    )
    said = [call("fit", *settings, store__path="s3://me:p4ssw0rd@bucket/store")]
    said.append(call("fit", *settings).expect(0))
    said.append(call("score", *settings, output__path="s3://me:p4ssw0rd@bucket/scored?sig=p4ssw0rd"))
    said.append(call("score", *settings).expect(0))
    text = "".join(result.stdout + result.stderr for result in said)
    written = [path for path in place.root.rglob("*") if path.is_file() and path.suffix != ".parquet"]
    assert len(written) > 6
    text += "".join(path.read_bytes().decode(errors="replace") for path in written)
    for secret in secrets:
        assert secret not in text
