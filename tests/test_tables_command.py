"""`logcal tables`: what it says of versions, and what it does to them."""

import json
import re

import numpy as np
import pytest

from jobs import tables
from jobs.gate.agreement import agreement_lines
from logcal.errors import ConfigError, InputRejectedError
from pipeline.fit.self_check import no_check
from pipeline.table.store import TableStore
from tests.manifests import FITTED, with_value


@pytest.fixture
def store(place, call):
    """A table whose second version was refused, whose third was taken back, and whose fourth is a candidate."""
    place.write_log(place.predictions(2000))
    call("fit").expect(0)
    call("fit", "gate.min_rows=3000", "calibrator.method=platt").expect(4, "gate.min_rows")
    call("fit", "calibrator.method=histogram").expect(0)
    call("fit", "calibrator.method=abb", "store.publish=candidate").expect(0)
    tables.rollback(str(place.store), "ads", None)
    return str(place.store)


def test_a_list_of_versions(store):
    found = tables.list_versions(store, "ads")
    rows = found.summary["versions"]
    assert [row["status"] for row in rows] == ["current", "refused", "taken back", "candidate"]
    assert [row["current"] for row in rows] == [True, False, False, False]
    assert found.summary["since"] == rows[0]["since"] is not None
    assert rows[0]["gate"]["auc"] > 0.7
    assert found.lines[0].startswith(f"* {rows[0]['version']}  ")
    assert found.lines[0].endswith(f"AUC {rows[0]['gate']['auc']:.3f}  current since {rows[0]['since']}")
    assert found.lines[1].endswith("refused (min_rows)")
    assert found.lines[3].endswith("candidate")


def test_a_refused_first_fit_is_said_and_listed_as_it_is(place, call):
    own = place.predictions(2000)
    place.write_log(own | {"label": 1 - own["label"]})
    refused = call("fit", "gate.ranking=true").expect(
        4, "no version is live. gate.ranking: expected more positives"
    )
    assert "the live version" not in refused.stderr
    place.write_log(own)
    call("fit").expect(0)
    place.write_log(own | {"label": 1 - own["label"]})
    call("fit", "gate.ranking=true").expect(4, "the live version is unchanged")
    records = tables.history(str(place.store), "ads")
    assert [run["version"] for run in records.summary["runs"]] == place.versions
    assert records.lines[-1].endswith(" …)")
    assert place.versions[2] in records.lines[-1]


def test_a_list_of_tables(store, place, call):
    call("fit", store__table="shops").expect(0)
    (place.store / "notes.txt").write_text("no table")
    (place.store / "empty").mkdir()
    found = tables.list_versions(store, None)
    assert [(row["table"], row["versions"]) for row in found.summary["tables"]] == [("ads", 4), ("shops", 1)]
    assert found.lines[0].startswith(f"ads  {TableStore(store, 'ads').names()[0]}  20")
    for path in (f"{store}/none", f"{store}/empty"):
        with pytest.raises(InputRejectedError, match="expected published tables, found none"):
            tables.list_versions(path, None)
    with pytest.raises(InputRejectedError, match="expected a published table 'none'"):
        tables.list_versions(store, "none")
    with pytest.raises(ConfigError, match="cannot open"):
        tables.list_versions("nosuch://x", None)


def test_a_version_is_shown_with_its_gate_and_its_status(store):
    found = tables.show(store, "ads", "000002")
    assert found.summary["status"] == "refused"
    text = "\n".join(found.lines)
    assert "status: refused" in text
    assert "refused: gate.min_rows: expected at least 3,000 rows, found 2,000" in text
    assert "gate, auc: 0." in text
    assert "status: current since 20" in "\n".join(tables.show(store, "ads", None).lines)


def dipped(of, low=0.5, high=0.7):
    """Labels of scores that are right, except that few are positive in a range."""
    truth = np.where((of > low) & (of < high), 0.1, of)
    return (np.random.default_rng(7).random(of.size) < truth).astype(np.int8)


def said_of_rows(place):
    """What `tables show` says of a version and its rows, and the manifest's facts of it."""
    found = tables.show(str(place.store), place.table, place.versions[-1])
    return [line for line in found.lines if "its rows" in line or line.startswith("auto:")], found.summary[
        "agreement"
    ]


def test_a_version_says_whether_it_agrees_with_its_rows(place, call):
    score = np.random.default_rng(3).random(20_000)
    place.write_log({"score": score, "label": dipped(score)})
    call("fit", "calibrator.method=isotonic").expect(0)
    lines, agreement = said_of_rows(place)
    largest = agreement["ranges"]["largest"]
    if largest is None:
        assert lines == ["agrees with its rows: no difference is large enough to count"]
    else:
        share = abs(largest["deviance_residual"]) / largest["limit"]
        assert len(lines) == 1
        assert lines[0].startswith(f"agrees with its rows: largest difference {share:.2f} of its limit, for ")
    call("fit", "calibrator.method=platt", "gate.agreement=false").expect(0)
    lines, agreement = said_of_rows(place)
    misfits = agreement["ranges"]["misfits"]
    assert len(lines) == min(len(misfits), 3) + (len(misfits) > 3)
    worst = misfits[0]
    inside = (worst["first_score"] <= score) & (score <= worst["last_score"])
    assert lines[0].startswith("does not agree with its rows: for scores from ")
    assert f"but {dipped(score)[inside].sum():,} of {inside.sum():,} rows are positive" in lines[0]
    assert lines[0].endswith(f"({abs(worst['deviance_residual']):.1f} standard errors)")


@pytest.mark.parametrize(
    ("segments", "said"),
    [(0, "not monotone: "), (200, "not monotone in segments of level 1: ")],
)
def test_a_score_with_many_rows_that_are_less_often_positive_is_named(place, call, segments, said):
    """A default score: honest segments are published although their maps cannot follow it, and the user is told."""
    rows = np.arange(60_000)
    random = np.random.default_rng(5)
    score = 1 / (1 + np.exp(2 - 1.3 * random.normal(size=rows.size)))
    default = rows % 10 == 0
    label = (random.random(rows.size) < np.where(default, 0.02, score)).astype(np.int8)
    columns = {"score": np.where(default, 0.5, score), "label": label}
    of_segment = {"country": random.integers(0, segments, rows.size)} if segments else {}
    place.write_log(columns | of_segment)
    settings = ("calibrator.method=auto", "gate={}")
    fitted = call("fit", *settings, *(["log.segment=country"] if segments else [])).expect(0)
    (warning,) = [line for line in fitted.stderr.splitlines() if "scores are not monotone" in line]
    shown = tables.show(str(place.store), "ads", None)
    assert sum(line.startswith(f"scores are {said}") for line in shown.lines) == 1
    if not segments:
        return
    # As it says: such rows in a segment of their own.
    assert "segment of their own (a first column of log.segment)" in warning
    place.write_log(columns | of_segment | {"default": default})
    fitted = call("fit", *settings, "log.segment=[default, country]").expect(0)
    assert "not monotone" not in fitted.stderr


def test_a_fall_between_two_models_is_none_within_their_segments(place, call):
    """One model's scores are probabilities, the other's log-odds; a fall within the segments is still said."""
    random = np.random.default_rng(3)
    z, margins = random.normal(-1, 1.2, 80_000), random.random(80_000) < 0.4
    columns = {
        "score": np.where(margins, z, 1 / (1 + np.exp(-z))),
        "label": (random.random(z.size) < 1 / (1 + np.exp(-z))).astype(np.int8),
    }
    model, country = np.array(["gbm", "deep"])[margins.astype(int)], random.integers(0, 12, z.size)
    place.write_log(columns | {"model": model, "country": country})
    assert "not monotone: " in call("fit", "calibrator.method=auto").expect(0).stderr
    for segments in ("[model]", "[model, country]"):
        fitted = call("fit", "calibrator.method=auto", f"log.segment={segments}").expect(0)
        assert "not monotone" not in fitted.stderr
    dipped = np.where(z > 0, 0.2, 1 / (1 + np.exp(-z)))
    columns["label"] = (random.random(z.size) < dipped).astype(np.int8)
    place.write_log(columns | {"country": country, "score": z}, name="dipped")
    fitted = call(
        "fit", "calibrator.method=auto", "log.segment=country", log__path=place.root / "dipped"
    ).expect(0)
    assert "scores are not monotone: for scores from" in fitted.stderr


def test_a_version_names_its_three_worst_misfits_and_its_fallback():
    def misfit(root, **more):
        at = {"first_score": 0.25, "last_score": 0.5, "weight": 100.0, "positives": 10.0, "expected": 40.0}
        return {**at, "deviance_residual": root, "limit": 5.0, **more}

    level = {
        "misfits": [misfit(-12.0, segment=["at", None])],
        "segments_with_misfits": 9,
        "largest": misfit(-12.0, segment=["at", None]),
        "all_by_score": misfit(4.0),
        "all_by_size": misfit(6.0),
    }
    ranges = {"misfits": [misfit(-9.0), misfit(5.5)], "largest": misfit(-9.0)}
    facts = {"ranges": ranges, "levels": [level], "fallback": None, "before_fallback": None}
    lines = agreement_lines(facts)
    assert [line.partition("rows: ")[2].partition(" for ")[0] for line in lines] == [
        "in segment at, null",
        "for scores from 0.25 to 0.5 it expects 40 positives, but 10 of 100 rows are positive (9.0 standard errors)",
        "in all segments together",
        "and in 9 more ranges or segments",
    ]
    fine = {
        "ranges": {"misfits": [], "largest": misfit(-2.0)},
        "fallback": "isotonic",
        "before_fallback": ranges,
    }
    agrees, fell_back = agreement_lines(fine)
    assert agrees.startswith(
        "agrees with its rows: largest difference 0.40 of its limit, for scores from 0.25"
    )
    assert fell_back.startswith("auto: isotonic regression, since the smooth curve does not agree")
    assert agreement_lines(None) == []
    assert agreement_lines(no_check()) == ["not checked against its rows: they are too few for a map"]
    largest = {"ranges": {"misfits": [], "largest": None}, "fallback": None, "before_fallback": None}
    assert agreement_lines(largest) == ["agrees with its rows: no difference is large enough to count"]


def test_old_versions_are_removed_but_not_the_current_one_nor_its_predecessor(store, place, call):
    first, second, third, fourth = TableStore(store, "ads").names()
    tables.promote(store, "ads", "000003")
    call("fit", "calibrator.method=bbq").expect(0)
    fifth = place.current
    found = tables.prune(store, "ads", 1)
    assert found.summary == {"table": "ads", "removed": [first, second, fourth], "versions": [third, fifth]}
    assert place.versions == [third, fifth]
    assert tables.prune(store, "ads", 1).summary["removed"] == []
    # Their numbers are not given again, and their runs are new ones.
    call("fit").expect(0)
    assert place.current.startswith("000006-")
    assert place.current[7:] == first[7:]
    call("fit", "gate.min_rows=1").expect(0)
    back = tables.rollback(store, "ads", None).lines
    assert back[1:] == ["both versions have the same table: probabilities stay as they were"]
    assert [tables.rollback(store, "ads", None).summary["version"] for _ in range(2)] == [fifth, third]
    with pytest.raises(InputRejectedError, match="nothing to go back to"):
        tables.rollback(store, "ads", None)
    with pytest.raises(InputRejectedError, match="expected a published table"):
        tables.prune(store, "none", 1)


def test_versions_are_removed_on_an_object_store():
    store = TableStore("memory://prune", "ads")
    for i in range(4):
        store.publish(f"{i}" * 64, lambda name: {"lookup.parquet": b"x"}, {**FITTED, "run_id": str(i)})
    names = store.names()
    assert store.prune(1) == names[:2]
    assert store.names() == names[2:] == (store.folder / "versions").names()


def test_a_fit_keeps_as_many_versions_as_it_is_told(place, call):
    place.write_log()
    for method in ("isotonic", "histogram", "platt", "abb"):
        call("fit", f"calibrator.method={method}", "retention.versions=2").expect(0)
    assert [name[:6] for name in place.versions] == ["000003", "000004"]
    # How many are kept is no part of what a run is.
    call("fit", "calibrator.method=abb", "retention.versions=1").expect(99)


# Differences


def test_what_lies_between_two_versions(store, place):
    page = place.root / "pages" / "diff.html"
    found = tables.diff(store, "ads", "000001", "000003", str(page))
    summary = found.summary
    assert summary["facts"]["method"] == {"old": "isotonic", "new": "histogram"}
    assert 0 < summary["change"]["mean"] < summary["change"]["largest"] < 1
    assert "Probabilities change by" in found.lines[1]
    assert "  method: isotonic -> histogram" in found.lines
    assert found.lines[2].startswith("Log losses are not compared here")
    assert "The AUC, each on its own rows, changes from " in found.lines[3]
    assert "within chance" in found.lines[3]
    text = page.read_text()
    assert text.count("<svg") == 2  # both maps, and what lies between them
    assert "isotonic</td><td>histogram" in text
    assert "with evaluate.against does so" in text
    assert "http" not in text.replace("http://www.w3.org/", "")
    assert tables.diff(store, "ads", "000001", "000003", str(page)).summary == summary
    assert page.read_text().partition("</time>")[2] == text.partition("</time>")[2]
    same = tables.diff(store, "ads", "000001", "000001", None)
    assert same.summary["change"]["largest"] == 0
    assert same.lines[1] == "Both give every row the same probability."
    (place.root / "file").write_text("")
    with pytest.raises(ConfigError, match="--report: cannot write"):
        tables.diff(store, "ads", "000001", "000003", str(place.root / "file" / "page.html"))


def test_which_of_two_versions_is_better_is_said_beyond_its_error(place, call):
    place.write_log()
    call(
        "fit",
        "gate={}",
        "calibrator={method: histogram, params: {bins: 1}}",
        "gate.ranking=false",
        "gate.agreement=false",
    ).expect(0)
    place.write_log(place.predictions(6000, seed=1), name="new")
    call("fit", "gate={}", log__path=place.root / "new").expect(0)
    gate = place.newest_manifest["gate"]
    loss = gate["holdout"]["against_current"]["log_loss"]
    for pair in (("000001", "000002"), ("000002", "000001")):
        said = tables.diff(str(place.store), "ads", *pair, None).lines[2]
        assert f"its log loss was {-loss['difference']:.5f} lower than that of {place.versions[0]}" in said
        assert said.endswith(": beyond chance.")


def test_versions_whose_scores_differ_are_not_compared(fitted, place, call):
    call("fit", "log.score_transform=sigmoid").expect(0)
    found = tables.diff(str(place.store), "ads", "000001", "000002", None)
    assert found.summary["change"] is None
    assert "cannot be compared" in found.lines[1]


def test_segments_that_changed_most(place, call):
    columns = place.predictions(6000)
    columns["country"] = np.array(["at", "be", "ch"])[np.arange(6000) % 3]
    place.write_log(columns)
    settings = ("log.segment=country", "segments.min_rows=1000")
    call("fit", *settings).expect(0)
    other = dict(columns, label=columns["label"].copy(), country=columns["country"].copy())
    turned = (columns["country"] == "be") & (columns["score"] > 0.5)
    other["label"][turned] = 0
    other["country"][columns["country"] == "ch"] = "<de>"
    call("fit", *settings, log__path=place.write_log(other, name="other")).expect(0)
    page = place.root / "diff.html"
    found = tables.diff(str(place.store), "ads", "000001", "000002", str(page))
    first, second = found.summary["segments"]
    assert (first["segment"], first["rows"]) == ({"country": "be"}, 2000)
    assert first["mean"] > 0.1 > second["mean"]
    assert (found.summary["segments_only_old"], found.summary["segments_only_new"]) == (1, 1)
    text = page.read_text()
    # Two figures of all rows, and one of each segment that both versions know.
    shown = re.findall(r"<figcaption>(.*?)</figcaption>", text)
    assert shown == ["all rows", "all rows, the difference", "country = be", "country = at"]
    assert text.count("000002 (new)") >= 3
    assert found.summary["change"]["mean"] > second["mean"]


def test_the_commands(store, place):
    table = ("--store", store, "--table", "ads")
    listed = place.run("tables", "list", "--store", store).expect(0)
    assert listed.stdout.startswith("ads  000001-")
    difference = place.run("tables", "diff", *table, "000001", "3", "--json")
    difference.expect(3, "no version '3'")
    done = place.run("tables", "diff", *table, "000001", "000003", "--report", "d.html", "--json").expect(0)
    assert json.loads(done.stdout)["page"] == "d.html"
    assert (place.root / "d.html").exists()
    place.run("tables", "prune", *table, "--keep", "0").expect(2, "--keep")
    pruned = place.run("tables", "prune", *table, "--keep", "2").expect(0)
    assert "2 versions left" not in pruned.stdout
    assert "3 versions left" in pruned.stdout


def test_a_job_s_configuration_names_the_table(store, place):
    """Options go over it; other jobs' keys in it do not matter, and unknown ones do."""
    (place.root / "day.yaml").write_text("log: {path: x}\nstore: {path: store, table: ads, force: true}\n")
    config = ("--config", "day.yaml")
    listed = place.run("tables", "list", *config, "--json").expect(0).json
    assert listed == place.run("tables", "list", "--store", store, "--table", "ads", "--json").expect(0).json
    place.run("tables", "show", *config, "000002").expect(0)
    place.run("tables", "show", *config, "--table", "none").expect(3, "table 'none'")
    place.run("days", "exclude", *config, "--reason", "late", "2026-01-02").expect(0)
    assert "late" in place.run("days", "list", *config).expect(0).stdout
    assert place.run("tables", "list", *config, "--set", "a=1").code == 2
    (place.root / "store.yaml").write_text("store: {path: store}\n")
    assert place.run("tables", "list", "--config", "store.yaml").expect(0).stdout.startswith("ads  ")
    place.run("tables", "show", "--config", "store.yaml").expect(2, "expected --table NAME, or --config FILE")
    (place.root / "odd.yaml").write_text("store: {path: store, table: ads, tabel: x}\n")
    place.run("tables", "show", "--config", "odd.yaml").expect(2, "store.tabel (odd.yaml, line 1): unknown")
    said = place.run("days", "list", "--json").expect(2, "expected --store PATH and --table NAME, or")
    assert said.json["exit_code"] == 2


def test_before_the_first_table_there_is_nothing_to_watch_and_no_way_back(place, call):
    """A day's scripts go on to the fit; where that is refused, the advice is not a rollback."""
    place.write_log(place.predictions(2000))
    watch = {"evaluate": ("report.path=page",), "monitor": ("window.column=date",)}
    for job, settings in watch.items():
        call(job, *settings).expect(99, "table 'ads' in", "has no live version yet: nothing to do before")
    call("score", output__path=place.output).expect(3, "run `logcal fit` first")
    call("fit", "gate.min_rows=3000").expect(4, "gate.min_rows")
    call("evaluate", "report.path=page").expect(99)
    for error in (
        call("score", output__path=place.output),
        place.run("tables", "show", "--store", str(place.store), "--table", "ads"),
    ):
        error.expect(3, "found no live version in ", place.versions[0], "`logcal tables promote`")
    lines = tables.list_versions(str(place.store), "ads").lines
    assert lines[-1].startswith("no version has been live yet: run `logcal fit` again")
    name = TableStore(str(place.store), "ads").names()[0]
    assert lines[-1].endswith(f"`logcal tables promote {name}`")
    tables.promote(str(place.store), "ads", name)
    call("evaluate", "report.path=page").expect(0)
    (place.store / "ads" / "CURRENT").unlink()
    assert tables.list_versions(str(place.store), "ads").lines[-1].endswith("use `logcal tables rollback`")
    tables.rollback(str(place.store), "ads", None)
    assert place.current == name


@pytest.mark.parametrize(
    ("path", "value"), [("files", None), ("", [1]), ("previous_version", 5), ("created", 5)]
)
def test_a_damaged_manifest_is_refused_by_every_command(fitted, place, call, path, value):
    call("fit", "calibrator.method=histogram").expect(0)
    first, now = place.versions
    written = place.store / "ads" / "versions" / now / "manifest.json"
    manifest = json.loads(written.read_text())
    written.write_bytes(with_value(manifest, path, value))
    store = str(place.store)
    for command in (
        lambda: tables.list_versions(store, "ads"),
        lambda: tables.show(store, "ads", now),
        lambda: tables.diff(store, "ads", first, now, None),
        lambda: tables.rollback(store, "ads", now),
    ):
        with pytest.raises(InputRejectedError, match=r"manifest\.json: expected"):
            command()
    for job in ("score", "evaluate"):
        call(job).expect(3, "manifest.json: expected")
    call("fit", "calibrator.method=platt").expect(3, "manifest.json: expected")
    tables.rollback(store, "ads", first)
    call("score").expect(0)
