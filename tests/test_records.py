"""What attempts leave behind: records, metrics and events, also of those that fail."""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jobs import record_exports


def records(place):
    found = [json.loads(path.read_text()) for path in (place.store / place.table / "runs").iterdir()]
    return sorted(found, key=lambda record: record["start"])


def test_every_attempt_is_recorded(fitted, call):
    call("fit").expect(99)
    call("evaluate").expect(0)
    call("score", "output.column=label", output__path=fitted.root / "scored").expect(3)
    call("fit", "log.label=nosuch").expect(3)
    found = {record["job"] + str(record["exit_code"]): record for record in records(fitted)}
    assert set(found) == {"fit0", "fit99", "evaluate0", "score3", "fit3"}
    fit = found["fit0"]
    assert (fit["outcome"], fit["version"], fit["table"]) == ("done", fitted.current, "ads")
    assert fit["rows"]["rows_used"] == 3000
    assert fit["inputs"]["files"] == 3
    assert fit["start"] < fit["end"]
    assert fit["run_id"] == fit["result"]["run_id"]
    assert {"numpy", "python"} <= set(fit["software"])
    assert found["evaluate0"]["measures"]["auc"] > 0.5
    failed = found["score3"]
    assert (failed["outcome"], failed["outputs"]) == ("failed", [])
    assert "expected no column 'label'" in failed["message"]
    assert found["fit99"]["outcome"] == "nothing to do"


def test_labels_of_metrics_are_escaped(tmp_path):
    """As Prometheus' own parser reads them: one bad path would make all metrics of the file unreadable."""
    path, output = tmp_path / "all.prom", 'a"b\\c\nd'
    for batches in (3, 4):
        record_exports.update_stream(path, "ads", output, {"batches": batches, "rows": {"scored": 7}})
        record_exports.update_stream(path, "ads", "other", {"batches": 1})
    samples = [s for family in text_string_to_metric_families(path.read_text()) for s in family.samples]
    found = {(sample.name, sample.labels["output"]): sample.value for sample in samples}
    assert found == {
        ("logcal_stream_batches", output): 4,
        ("logcal_stream_rows", output): 7,
        ("logcal_stream_batches", "other"): 1,
    }
    assert len(samples) == 3


def test_a_mistyped_store_is_not_made_for_a_record(place, call):
    place.write_log()
    call("evaluate").expect(99)
    call("fit", "calibrator.method=nosuch").expect(2)
    assert not place.store.exists()
    call("evaluate", f"record.path={place.root / 'records'}").expect(99)
    (record,) = (place.root / "records").iterdir()
    assert json.loads(record.read_text())["exit_code"] == 99


def test_a_name_that_no_table_can_have_leads_no_record_out_of_the_store(fitted, place, call):
    """`..` led it beside the store."""
    before = place.tree()
    for name in ("..", "ads/versions", "a" * 300):
        said = call("fit", store__table=name).expect(2, "choose a plain name").stderr
        assert "no record can be made" not in said
    assert place.tree() == before
    assert not list(place.root.glob("runs"))
    assert not list(place.store.glob("ads/versions/runs"))


def test_a_first_fit_that_fails_is_recorded_where_its_store_will_be(place, call):
    place.write_log()
    call("fit", "log.label=nosuch").expect(3)
    (record,) = records(place)
    assert (record["job"], record["exit_code"]) == ("fit", 3)


def test_a_configuration_that_cannot_be_used_is_recorded_where_it_says(fitted, call):
    metrics = fitted.root / "a.prom"
    call("fit", "calibrator.metod=isotonic", f"record.prometheus={metrics}").expect(2, "calibrator.metod")
    call("score", "score.max_unseen=2", output__path=fitted.root / "scored").expect(2, "score.max_unseen")
    call("fit", "record.path=[1]").expect(2, "record.path")
    ended = [(found["job"], found["exit_code"]) for found in records(fitted)]
    assert ended[1:] == [("fit", 2), ("score", 2), ("fit", 2)]
    assert "calibrator.metod" in records(fitted)[1]["message"]
    assert 'logcal_last_exit_code{job="fit",table="ads"} 2.0' in metrics.read_text()
    call("fit", "--dry-run", "calibrator.metod=isotonic").expect(2)
    assert len(records(fitted)) == 4


def test_changes_of_a_table_by_hand_are_recorded(fitted, place, call):
    call("fit", "calibrator.method=platt").expect(0)

    def tables(*arguments, store=place.store):
        return place.run("tables", *arguments, "--store", str(store), "--table", "ads")

    tables("rollback").expect(0)
    tables("promote", "000002").expect(0)
    tables("promote", "000009").expect(3)
    tables("prune", "--keep", "1").expect(0)
    tables("list").expect(0)
    found = [(one["job"], one["exit_code"], one["version"]) for one in records(place)]
    assert [(job, code) for job, code, _ in found[2:]] == [
        ("tables-rollback", 0),
        ("tables-promote", 0),
        ("tables-promote", 3),
        ("tables-prune", 0),
    ]
    assert found[3][2] == place.current
    assert "tables-rollback  exit 0" in tables("history").expect(0).stdout
    tables("rollback", store=place.root / "mistyped").expect(3)
    assert not (place.root / "mistyped").exists()


def test_records_can_be_left_out_and_failing_to_write_one_only_warns(place, call):
    place.write_log()
    call("fit", "record.path=none").expect(0)
    assert not (place.store / place.table / "runs").exists()
    (place.root / "file").write_text("x")
    call("evaluate", f"record.path={place.root / 'file'}").expect(0, "WARNING record.path: cannot write to")


def test_a_dry_run_and_the_settings_of_records_leave_nothing(fitted, call):
    before = len(records(fitted))
    call("evaluate", "--dry-run").expect(0)
    # Nor do such settings make another run.
    call("fit", f"record.path={fitted.root / 'r'}", f"record.prometheus={fitted.root / 'a.prom'}").expect(99)
    assert len(records(fitted)) == before


def test_history(fitted, call):
    call("evaluate").expect(0)
    (fitted.store / fitted.table / "runs" / "20260101T000000-fit-x.json").write_text("{")
    store = ("--store", str(fitted.store), "--table", "ads")
    said = fitted.run("tables", "history", *store).expect(0).stdout.splitlines()
    assert "fit              exit 0" in said[0]
    assert "evaluate         exit 0" in said[1]
    assert "ECE 0." in said[1]
    assert said[2].startswith("1 file in")
    found = fitted.run("tables", "history", "--json", *store).expect(0)
    assert found.stdout.count("\n") == 1
    assert [run["job"] for run in found.json["runs"]] == ["fit", "evaluate"]


# Metrics


def read(path):
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in path.read_text().splitlines()
        if not line.startswith("#")
    }


def test_jobs_and_tables_share_a_file_of_metrics(fitted, call):
    path = fitted.root / "logcal.prom"
    call("evaluate", f"record.prometheus={path}").expect(0)
    call("score", f"record.prometheus={path}", output__path=fitted.root / "a").expect(0)
    found = read(path)
    assert found['logcal_last_exit_code{job="evaluate",table="ads"}'] == 0
    assert found['logcal_rows{job="score",table="ads",kind="rows"}'] == 3000
    assert 0 < found['logcal_measure{job="evaluate",table="ads",measure="auc"}'] < 1
    success = 'logcal_last_success_timestamp_seconds{job="score",table="ads"}'
    call("score", "output.column=label", f"record.prometheus={path}", output__path=fitted.root / "b").expect(
        3
    )
    after = read(path)
    assert after['logcal_last_exit_code{job="score",table="ads"}'] == 3
    assert after[success] == found[success]
    assert after['logcal_rows{job="score",table="ads",kind="rows"}'] == 3000
    assert after['logcal_last_run_timestamp_seconds{job="score",table="ads"}'] > found[success]
    assert [key for key in found if 'job="evaluate"' in key and key not in after] == []
    success = 'logcal_last_success_timestamp_seconds{job="evaluate",table="ads"}'
    call("evaluate", f"record.prometheus={path}").expect(99)  # nothing to do is a success
    assert read(path)[success] > after[success]
    types = [line.split()[2] for line in path.read_text().splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))


def test_infinity_is_written_as_prometheus_has_it(tmp_path):
    record = {
        "job": "evaluate", "table": "ads", "exit_code": 0, "end": "2026-01-02T03:04:05+00:00", "seconds": 1.5,
        "rows": {}, "measures": {"log_loss": "Infinity", "auc": None},
    }  # fmt: skip
    record_exports.update(tmp_path / "x.prom", record)
    assert 'measure="log_loss"} +Inf' in (tmp_path / "x.prom").read_text()
    assert "auc" not in (tmp_path / "x.prom").read_text()


def test_metrics_neither_read_nor_replace_a_fifo(tmp_path):
    path = tmp_path / "x.prom"
    os.mkfifo(path)
    with pytest.raises(OSError, match="expected a regular file, found a folder, device, FIFO or socket"):
        record_exports.update_stream(path, "ads", "scored", {"batches": 1})
    assert path.is_fifo()


# Events


def events(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_events_in_a_file(fitted, call):
    event_v2 = pytest.importorskip("openlineage.client.event_v2")
    from openlineage.client.serde import Serde

    path = fitted.root / "events.jsonl"
    call("evaluate", f"record.openlineage={path}").expect(0)
    call("evaluate", f"record.openlineage={path}").expect(99)  # nothing to do: complete, too
    call("score", "output.column=label", f"record.openlineage={path}", output__path=fitted.root / "b").expect(
        3
    )
    found = events(path)
    kinds = [event["eventType"] for event in found]
    assert kinds == [*("START", "COMPLETE") * 2, "START", "FAIL"]
    assert found[0]["run"]["runId"] == found[1]["run"]["runId"] != found[2]["run"]["runId"]
    assert found[1]["job"]["name"] == "evaluate.ads"
    own = str(fitted.store / "ads")
    assert [data["name"] for data in found[1]["inputs"]] == [str(fitted.log), own]
    assert [data["name"] for data in found[1]["outputs"]] == [str(fitted.output)]
    path.unlink()
    call("fit", "calibrator.method=platt", f"record.openlineage={path}").expect(0)
    [_, done] = events(path)
    assert [data["name"] for data in done["inputs"] + done["outputs"]] == [str(fitted.log), own]
    # Its own classes take them as they are written, and check identifiers, instants and URLs.
    for event in [*found, done]:
        sides = {
            key: [kind(**data) for data in event[key]]
            for key, kind in (("inputs", event_v2.InputDataset), ("outputs", event_v2.OutputDataset))
        }
        again = event_v2.RunEvent(
            eventTime=event["eventTime"],
            producer=event["producer"],
            run=event_v2.Run(**event["run"]),
            job=event_v2.Job(**event["job"]),
            eventType=event_v2.RunState(event["eventType"]),
            **sides,
        )
        assert json.loads(Serde.to_json(again)) == event
        assert {data["namespace"] for data in event["inputs"] + event["outputs"]} <= {"file"}


def test_datasets_have_the_names_that_openlineage_gives_them():
    naming = pytest.importorskip("openlineage.client.naming.dataset")
    for path, name in {
        "s3://ads/log/date=*/": naming.S3("ads", "log"),
        "s3a://ads/a/b.parquet": naming.S3("ads", "a/b.parquet"),
        "gcs://ads/log/": naming.GCS("ads", "log"),
        "/data/log/*.parquet": naming.LocalFileSystem("/data/log"),
        "file:///data/log": naming.LocalFileSystem("/data/log"),
        "log/": naming.LocalFileSystem(str(Path("log").absolute())),
    }.items():
        assert record_exports._dataset(path) == (name.get_namespace(), name.get_name())


class Receiver(BaseHTTPRequestHandler):
    received: ClassVar[list] = []

    def do_POST(self):
        self.received.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        self.send_response(201)
        self.end_headers()

    def log_message(self, *arguments):
        pass


def test_events_to_a_server(fitted, call):
    pytest.importorskip("openlineage.client")
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        Receiver.received.clear()
        call("evaluate", f"record.openlineage=http://127.0.0.1:{server.server_port}").expect(0)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert [event["eventType"] for _, event in Receiver.received] == ["START", "COMPLETE"]
    assert {path for path, _ in Receiver.received} == {"/api/v1/lineage"}


def test_a_server_that_is_not_there_only_warns(fitted, call):
    pytest.importorskip("openlineage.client")
    call("evaluate", "record.openlineage=http://127.0.0.1:9").expect(0, "WARNING record.openlineage: cannot")
