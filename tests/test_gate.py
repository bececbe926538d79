"""The gate: what must hold of a new table before it becomes the current one."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from common import predictions, prepared, simulated

from calibrators import Isotonic, Smooth, collapse
from calibrators.core.local_choice import Choice
from calibrators.core.passes import run_in_memory
from calibrators.measures.comparison import comparison_passes
from calibrators.measures.in_memory import error_bars
from jobs.config.jobs import FitConfig
from jobs.config.loading import load
from jobs.config.sections import GateConfig, WindowConfig
from jobs.gate.requirements import WHAT_TO_DO, judge, judge_held_out
from jobs.resume import older_data
from logcal.errors import CheckFailedError
from logcal.version import __version__
from pipeline.execution import InlineExecutor
from pipeline.fit import pooled_cells, pooled_segments
from pipeline.fit.holdout import HeldOut, RowWeights
from pipeline.table.map_change import one_level, ranking
from pipeline.table.published import Version

ROW = np.arange(2000)


FEW = np.repeat(np.arange(1000) / 1000, 20)


def labelled(label):
    return {"score": ROW / 2000, "label": label}


@pytest.fixture
def gated(call):
    """A fit with the gate as it is by default; its settings go over it."""
    return lambda *settings, **paths: call("fit", "gate={}", *settings, "--json", **paths)


@pytest.mark.parametrize(
    ("columns", "settings", "rule", "said"),
    [
        (predictions(3), (), "min_rows", "expected at least 1,000 rows, found 3"),
        (predictions(900), ("gate.min_rows=901",), "min_rows", "expected at least 901 rows, found 900"),
        (labelled(ROW >= 1991), (), "min_positives", "expected at least 10 rows with label 1, found 9"),
        (labelled(ROW >= 9), (), "min_positives", "expected at least 10 rows with label 0, found 9"),
        *(
            (labelled(1 - (ROW % 1999 >= 1000)), (f"calibrator.method={method}",), "ranking", "inverted?")
            for method in ("isotonic", "platt", "histogram", "abb", "near_isotonic")
        ),
    ],
)
def test_what_fails_is_kept_as_a_candidate(place, gated, columns, settings, rule, said):
    # A label of each class in any case.
    columns["label"][:2] = columns["label"][:2] if len(set(columns["label"][:])) > 1 else (0, 1)
    place.write_log(columns)
    refused = gated(*settings).expect(4, f"gate.{rule}: ", said, "was saved as a candidate", WHAT_TO_DO[rule])
    assert refused.json["exit_code"] == 4
    assert not (place.store / "ads" / "CURRENT").exists()
    (version,) = place.versions
    assert place.newest_manifest["publish"] == "candidate"
    assert rule in place.newest_manifest["gate"]["failed"]
    # The same again is refused again; another wish publishes it, and so does a person.
    gated(*settings).expect(4, said)
    assert place.versions == [version]
    warned = gated(*settings, "gate.on_fail=warn").expect(0)
    assert any(text.startswith(f"gate.{rule}: ") for text in warned.json["gate"]["warnings"])
    assert place.current == warned.json["version"] != version
    place.run("tables", "promote", "--store", str(place.store), "--table", "ads", version).expect(0)
    assert place.current == version


DIPPED = np.random.default_rng(6).random(20_000)
"""Scores that are right, except that from .5 to .7 few are positive."""


def dipped():
    truth = np.where((DIPPED > 0.5) & (DIPPED < 0.7), 0.1, DIPPED)
    return {"score": DIPPED, "label": (np.random.default_rng(7).random(DIPPED.size) < truth).astype(np.int8)}


@pytest.mark.parametrize("method", ["platt", "beta", "histogram", "smooth"])
def test_a_map_that_does_not_agree_with_its_rows_stays_a_candidate(place, gated, method, monkeypatch):
    place.write_log(dipped())
    settings = [f"calibrator.method={method}", "gate.holdout=none"]
    if method == "histogram":
        settings.append("calibrator.params.bins=3")
    if method == "smooth":
        monkeypatch.setattr(Smooth, "_passes", _shifted(Smooth._passes))
    refused = gated(*settings).expect(
        4,
        "gate.agreement: expected a map that agrees with the rows",
        "positives, but",
        "gate.agreement=false",
    )
    assert refused.json["exit_code"] == 4
    manifest = place.newest_manifest
    assert manifest["publish"] == "candidate"
    assert manifest["gate"]["failed"] == ["agreement"]
    assert manifest["method"] == method
    agreement = manifest["agreement"]
    assert agreement["fallback"] is None
    worst = agreement["ranges"]["misfits"][0]
    inside = (worst["first_score"] <= DIPPED) & (worst["last_score"] >= DIPPED)
    assert (worst["weight"], worst["positives"]) == (inside.sum(), dipped()["label"][inside].sum())
    warned = gated(*settings, "gate.on_fail=warn").expect(0)
    assert any(text.startswith("gate.agreement: ") for text in warned.json["gate"]["warnings"])
    allowed = gated(*settings, "gate.agreement=false").expect(0)
    warning = allowed.json["gate"]["warnings"][0]
    assert warning.startswith("expected a map that agrees with the rows")
    assert place.manifest(allowed.json["version"])["agreement"] == agreement
    assert place.current == allowed.json["version"]


def _shifted(passes):
    def shifted(self):
        fitted = yield from passes(self)
        return replace(fitted, prob_lo=fitted.prob_lo * 0.8, slope=fitted.slope * 0.8)

    return shifted


@pytest.mark.parametrize("method", ["auto", "isotonic", "enir"])
def test_maps_that_follow_the_rows_pass(place, gated, method):
    place.write_log(dipped())
    gated(f"calibrator.method={method}").expect(0)
    agreement = place.newest_manifest["agreement"]
    assert agreement["ranges"]["misfits"] == []
    assert agreement["ranges"]["tests"] > 100
    profile = agreement["ranges"]["profile"]
    assert sum(profile["weight"]) == DIPPED.size
    assert sum(profile["positives"]) == dipped()["label"].sum()


@pytest.mark.parametrize("method", ["platt", "isotonic", "smooth"])
def test_a_segment_whose_map_does_not_agree_is_named(place, gated, method, monkeypatch):
    columns = dipped() | {"country": np.array(["at", "be", "ch"])[np.arange(DIPPED.size) % 3]}
    right = np.random.default_rng(1).random(DIPPED.size) < DIPPED
    columns["label"] = np.where(columns["country"] == "be", columns["label"], right).astype(np.int8)
    place.write_log(columns)
    settings = (
        f"calibrator.method={method}",
        "log.segment=country",
        "segments={shrinkage: none, min_rows: 50}",
    )
    outcome = gated(*settings)
    agreement = place.newest_manifest["agreement"]
    (level,) = agreement["levels"]
    assert level["tests"] >= 3
    assert {entry["segment"][0] for entry in level["most_informative"]} == {"at", "be", "ch"}
    for entry in level["most_informative"]:
        rows = columns["country"] == entry["segment"][0]
        assert (entry["weight"], entry["positives"]) == (rows.sum(), columns["label"][rows].sum())
        assert entry["expected"] == pytest.approx(entry["positives"], rel=0.02)
    if method != "platt":
        outcome.expect(0)
        assert level["misfits"] == []
        assert level["agrees"]
        return
    outcome.expect(
        4, "in segment be for scores from 0.", "standard errors", "auto and isotonic follow the rows"
    )
    assert [entry["segment"] for entry in level["misfits"]] == [["be"]]
    assert level["segments_with_misfits"] == 1
    gated(*settings, "gate.agreement=false").expect(0)


@pytest.mark.parametrize("method", ["auto", "isotonic"])
@pytest.mark.parametrize("off", [0.0, 0.6])
def test_an_adjusted_map_that_does_not_agree_is_named(place, gated, method, off, monkeypatch):
    def adjusted(*arguments):
        bend, found = pooled(*arguments)
        shift = found.shift.copy()
        shift[1] += off
        return bend, replace(found, shift=shift)

    pooled = pooled_segments.bend_in_common
    monkeypatch.setattr(pooled_segments, "bend_in_common", adjusted)
    # otherwise it has a map of its own rows
    monkeypatch.setattr(pooled_cells, "least_evidence", lambda segments: np.inf)
    columns = predictions(20_000, country=np.array(["at", "be", "ch"])[np.arange(20_000) % 3])
    place.write_log(columns)
    settings = (f"calibrator.method={method}", "log.segment=country", "segments.min_positives=100000")
    outcome = gated(*settings).expect(4 if off else 0)
    agreement = place.newest_manifest["agreement"]
    (level,) = agreement["levels"]
    assert agreement["ranges"]["misfits"] == []
    for entry in level["most_informative"]:
        rows = columns["country"] == entry["segment"][0]
        assert (entry["weight"], entry["positives"]) == (rows.sum(), columns["label"][rows].sum())
        if not off:
            assert entry["expected"] == pytest.approx(entry["positives"], rel=0.05)
    if off:
        outcome.expect(
            4, "gate.agreement: ", "in segment be ", "Use other columns in log.segment, or another order"
        )
        assert [entry["segment"] for entry in level["misfits"]] == [["be"]]
        assert level["misfits"][0]["difference"] == pytest.approx(off, abs=0.3)


def test_auto_says_that_it_fell_back(place, gated, monkeypatch):
    place.write_log(predictions(20_000))
    knots = Choice.knots
    monkeypatch.setattr(Choice, "knots", lambda self: (knots(self)[0], knots(self)[1] + 0.4))
    done = gated("calibrator.method=auto").expect(0)
    (warning,) = done.json["gate"]["warnings"]
    assert warning.startswith(
        "auto: isotonic regression, since the smooth curve does not agree with the rows: for"
    )
    agreement = place.newest_manifest["agreement"]
    assert agreement["fallback"] == "isotonic"
    assert agreement["ranges"]["misfits"] == []
    assert agreement["before_fallback"]["misfits"]
    assert place.newest_manifest["data"]["isotonic_share"] == 1


@pytest.mark.parametrize(
    ("columns", "said", "setting"),
    [
        (
            predictions(1999, seed=1),
            "expected at least 2,000 rows, since the current version {first} has 4,000, found 1,999",
            "gate.max_rows_drop=0.6",
        ),
        (
            predictions(4000) | {"score": 100 * predictions(4000)["score"]},
            "gate.scale: expected scores from",
            "gate.on_fail=warn",
        ),
    ],
    ids=["fewer rows", "percent"],
)
def test_what_is_refused_beside_the_current_version(place, gated, columns, said, setting):
    place.write_log(predictions(4000))
    first = gated().expect(0).json["version"]
    other = place.write_log(columns, name="other")
    gated(log__path=other).expect(4, said.format(first=first))
    assert place.current == first
    gated(setting, log__path=other).expect(0)


def test_a_large_change_is_warned_of_and_refused_where_that_is_wanted(place, gated):
    columns = predictions(4000)
    place.write_log(columns)
    gated().expect(0)
    other = dict(
        columns, label=(np.random.default_rng(3).random(4000) < columns["score"] ** 12).astype(np.int8)
    )
    moved = place.write_log(other, name="moved")
    gated("gate.max_change=0.3", log__path=moved).expect(4, "gate.max_change: expected 0.3 at most, found")
    done = gated(log__path=moved).expect(0)
    (warning,) = done.json["gate"]["warnings"]
    assert warning.startswith("the probability changes by")
    assert 0.5 < done.json["gate"]["change"]["relative"] <= 1


def test_a_large_change_names_what_differs_besides_the_rows(place, gated, monkeypatch):
    """Where the live version is another program's or another method's, its rows may not be why the maps moved."""
    columns = predictions(4000)
    place.write_log(columns)
    gated("calibrator.method=smooth").expect(0)
    moved = place.write_log(dict(columns, score=columns["score"] ** 4), name="moved")
    monkeypatch.setattr("jobs.gate.requirements.__version__", "9.1.0")
    gated("gate.max_change=0.001", "calibrator.method=isotonic", log__path=moved).expect(
        4,
        f"made by logcal {__version__}, this one by 9.1.0",
        "the live version has calibrator.method=smooth, this one isotonic",
    )


def test_a_table_with_one_probability_is_compared_over_the_rows_of_the_log(place, gated):
    random = np.random.default_rng(2)
    score = random.random(4000) ** 6
    label = (random.random(4000) < score).astype(np.int8)
    place.write_log({"score": score, "label": label})
    gated().expect(0)
    wrong = place.write_log({"score": score, "label": 1 - label}, name="wrong")
    gated(log__path=wrong).expect(
        4,
        "inverted? Correct the log; if lower scores mean more positives, write the negative scores.",
        "; the live version is unchanged. gate.ranking",
    )
    change = place.manifest(place.versions[-1])["gate"]["change"]
    assert (change["mean_old"], change["mean_new"]) == pytest.approx(
        (label.mean(), 1 - label.mean()), abs=0.01
    )


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (labelled(ROW >= 1500), "were the scores made from the labels?"),
        ({"score": np.arange(6000) / 6000, "label": np.arange(6000) % 7 == 0}, "those of other rows?"),
        (
            {name: np.tile(column, 2) for name, column in predictions(3000).items()},
            "is each row there 2 times?",
        ),
        # Twenty thousand rows of exactly a thousand scores are no copies.
        ({"score": FEW, "label": np.random.default_rng(4).random(FEW.size) < FEW**2}, None),
    ],
)
def test_implausible_rows_are_warned_of(place, gated, columns, said):
    place.write_log(columns)
    gated().expect(0)
    warnings = place.newest_manifest["gate"]["warnings"]
    assert (said in warnings[0] and len(warnings) == 1) if said else warnings == []


@pytest.mark.parametrize("meaning", ["counts", "sampling"])
@pytest.mark.parametrize(
    ("negative", "positive", "said"),
    [
        (20.0, 1.0, "log.negative_sampling_rate=0.05 "),
        (1 / 0.03, 1.0, "log.negative_sampling_rate=0.03 "),
        (1.0, 7.0, "log.positive_sampling_rate=0.1429 "),
        (1.0, 1.0, None),
        (0.01, 0.03, None),
        # Counts of equal rows, whose totals have a whole ratio: 1,500 rows of 10 against 1,500 of 1 to 3.
        (10.0, 1.0 + ROW[:1500] % 3, None),
    ],
)
def test_weights_that_undo_a_sampling_by_label_are_warned_of(place, gated, meaning, negative, positive, said):
    label = (ROW >= 1500) == (ROW % 7 > 0)
    count = int(label.sum())
    weight = np.full(ROW.size, negative)
    weight[label] = np.resize(positive, count)
    place.write_log(dict(labelled(label), weight=weight))
    gated("log.weight=weight", f"log.weights={meaning}", "gate.on_fail=warn").expect(0)
    warnings = [text for text in place.newest_manifest["gate"]["warnings"] if "sampling_rate" in text]
    assert (said in warnings[0] and len(warnings) == 1) if said else warnings == []


def test_the_cure_of_a_drift_is_not_refused(place, gated):
    """A table that is off on the last day goes live where the current one is further off."""
    columns, day = predictions(20_000), np.arange(20_000) % 3
    settings = ("gate.holdout=1d", "window.column=day", "window.last=3d", "window.suspect_days=use")
    for first, powers in ((20260101, [1.0, 1.0, 1.0]), (20260104, [3.0, 3.0, 9.0])):
        label = np.random.default_rng(7).random(20_000) < columns["score"] ** np.array(powers)[day]
        log = place.write_log(dict(columns, label=label, day=first + day), name=f"log-{first}")
        done = gated(*settings, log__path=log).expect(0)
    assert done.json["gate"]["holdout"]["against_current"]["log_loss"]["difference"] < 0
    assert any("the current version is further off" in text for text in done.json["gate"]["warnings"])


def test_thin_segments_have_a_gate_too(place, gated):
    columns = predictions(900, country=np.array(["at", "be"])[np.arange(900) % 2])
    place.write_log(columns)
    gated("log.segment=country", "segments.min_rows=100").expect(4, "gate.min_rows")
    assert place.newest_manifest["gate"]["auc"] > 0.7
    gated("log.segment=country", "gate.min_rows=900").expect(0)


def test_the_configuration_says_what_it_expects(place, gated):
    place.write_log()
    for setting, said in (
        ("gate.max_rows_drop=2", "gate.max_rows_drop"),
        ("gate.holdout=2.0", "expected a share of the rows such as 0.2"),
        ("gate.holdout=0d", "expected a share"),
        ("gate.refit=false", "only goes with gate.holdout"),
        ("gate.on_fail=shout", "gate.on_fail"),
    ):
        gated(setting).expect(2, said)


# The measures


def test_the_ranking_of_a_map_is_that_of_its_intervals():
    score, label = simulated(500, 0, decimals=2)
    isotonic = Isotonic(ends=0).fit(score, label).calibration_map_
    from sklearn.metrics import roc_auc_score

    auc, error = ranking(isotonic)
    assert auc == pytest.approx(roc_auc_score(label, isotonic.predict(score)), abs=1e-12)
    assert 0 < error < 0.03
    assert not one_level(isotonic)
    assert one_level(Isotonic().fit(score, ~label).calibration_map_)


def test_nothing_is_measured_of_a_map_that_is_not_there():
    data = {"rows_used": 2000, "rows_positive": 900, "lowest_score": 0.0, "highest_score": 1.0}
    data |= {"weight": 2000.0, "positives": 900.0}
    config = FitConfig.model_construct(gate=GateConfig(), window=WindowConfig())
    verdict = judge(config, SimpleNamespace(facts={"data": data}, whole=None), None, None)
    assert verdict.refusals == verdict.warnings == []
    assert set(verdict.facts) == {"rows", "rows_positive"}


@pytest.mark.parametrize(("error", "refused"), [(0.03, False), (0.005, True)])
def test_a_ranking_of_held_out_rows_is_refused_beyond_chance(error, refused):
    label = ROW % 2 == 0
    bars = replace(error_bars(label, np.full(ROW.size, 0.5)), auc=0.48, auc_error=error)
    held = HeldOut(RowWeights(2000.0, 1000.0), expected=1000.0, bars=bars, fresh=RowWeights(2000.0, 1000.0))
    reasons = [refusal["rule"] for refusal in judge_held_out(GateConfig(), held, 1e5, 0.0).refusals]
    assert reasons == (["ranking"] if refused else [])


def test_days_that_vary_refuse_no_table():
    """Simulated: a day's level is a draw; the table nearer to it by chance is not the better one."""
    random = np.random.default_rng(0)
    refused = {0.0: 0, 0.3: 0}
    for _ in range(200):
        x = random.normal(-2.5, 1.3, 20_000)
        live, new = (1 / (1 + np.exp(-x - level)) for level in random.normal(0, 0.3 / np.sqrt(7), 2))
        label = random.random(x.size) < 1 / (1 + np.exp(-x - random.normal(0, 0.3)))
        places = np.arange(x.size, dtype=float)
        by_place = [lambda s, p=p: p[s.astype(int)] for p in (live, new)]
        found = run_in_memory(comparison_passes(*by_place), collapse(places, label))
        rows = RowWeights(float(x.size), float(label.sum()))
        held = HeldOut(rows, expected=float(label.sum()), against=found, fresh=rows, current=True)
        for spread in refused:
            refused[spread] += bool(judge_held_out(GateConfig(), held, 1e5, spread).refusals)
    assert refused[0.0] > 40
    assert refused[0.3] <= 2


# A run whose data end earlier than those of the current version does not take its place unasked


def version(name, *, last=None, stamps=(), started="2026-01-01"):
    window = {"window": {"last": last}} if last else {}
    files = {"files": [{"stamp": stamp} for stamp in stamps]}
    return Version(name, "", {"log": files, "started": started, **window})


CASES = [
    # what the run says, what is current, what was current at its start, told when to end: refused, and why
    ({"last": "2026-01-02"}, {"last": "2026-01-03"}, "a", False, "The data end on 2026-01-02"),
    ({"last": "2026-01-02"}, {"last": "2026-01-03"}, "b", True, "The data end on 2026-01-02"),
    ({"last": "2026-01-02"}, {"last": "2026-01-03"}, "b", False, None),
    ({"last": "2026-01-03"}, {"last": "2026-01-03"}, "a", True, None),
    ({"stamps": ("1.5", "2.5")}, {"stamps": ("3",)}, "a", False, "The log's newest file is older"),
    ({"stamps": ("1.5", "3")}, {"stamps": ("3",)}, "a", False, None),
    ({"stamps": ("1",)}, {"stamps": ("3",)}, "b", False, None),
    ({"stamps": ("tag",)}, {"stamps": ("3",), "started": "2026-01-02"}, "a", False, "The run began before"),
    ({"stamps": ("tag",), "started": "2026-01-03"}, {"stamps": ("3",)}, "a", False, None),
]


@pytest.mark.parametrize(("run", "current", "seen", "until", "said"), CASES)
def test_what_is_refused(run, current, seen, until, said):
    settings = ["log.path=log", "store.path=s", "store.table=ads", "window.column=day"]
    config = load(FitConfig, (), [*settings, *(["window.until=2026-01-02"] if until else [])])
    found = older_data(version("", **run).manifest, version("b", **current), seen, config)
    assert bool(found) == (said is not None)
    if said is not None:
        (refusal,) = found
        assert refusal["rule"] == "older_data"
        assert said in refusal["message"]
        assert ("meanwhile" in refusal["message"]) == (seen != "b")
    assert older_data(version("", **run).manifest, None, None, config) == []


@pytest.fixture
def days(place):
    for day in (1, 2, 3):
        place.write_log(place.predictions(1500, seed=day), name=f"log/date=2026-01-0{day}", files=1)
    return ("window.column=date", "window.last=2d")


def planned(place, *settings):
    store = {"path": place.store, "table": "ads"}
    return prepared("fit", *settings, log={"path": place.log}, store=store, scratch=place.scratch)


def test_a_slow_run_does_not_move_current_back(place, days):
    slow = planned(place, *days, "window.until=2026-01-02")
    fast = planned(place, *days, "window.until=2026-01-03")
    newest = fast.execute(InlineExecutor()).summary["version"]
    with pytest.raises(CheckFailedError, match=r"The data end on 2026-01-02.*which was published meanwhile"):
        slow.execute(InlineExecutor())
    assert place.current == newest
    kept = place.manifest(place.versions[1])
    assert kept["publish"] == "candidate"
    # Run again it is refused again, and --force finds what it made.
    with pytest.raises(CheckFailedError, match="saved as a candidate"):
        planned(place, *days, "window.until=2026-01-02")
    forced = planned(place, *days, "window.until=2026-01-02", "store.force=true")
    assert forced.execute(InlineExecutor()).summary["version"] == place.versions[1] == place.current


def test_a_deleted_day_is_no_reason(place, days, call):
    call("fit", *days).expect(0)
    first = place.current
    late = place.write_log(place.predictions(1500, seed=9), name="log/date=2026-01-04", files=1)
    call("fit", *days).expect(0)
    (late / "part-0.parquet").unlink()
    late.rmdir()
    call("fit", *days).expect(0)
    assert place.current == first
