"""`logcal warm`: compiled code for all jobs, ahead of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibrators._kernels import compiled
from calibrators._kernels.compilation_cache import CompilationCache
from jobs import warm
from jobs.config.loading import load
from jobs.registry import JOBS
from pipeline.fit.calibration import METHODS

system = pytest.mark.system
ROOT = Path(__file__).parents[1]
COMPILING = "compiling for this machine"


def test_jobs_take_all_cases(monkeypatch, tmp_path):
    taken = set()

    def prepared(name, settings):
        config = load(JOBS[name].config_class(), (), settings)
        if name == "fit":  # others need its table
            JOBS[name].load_module().prepare(config)
            taken.add(config.calibrator.method)

    monkeypatch.setattr(warm, "_job", prepared)
    (tmp_path / "small").mkdir()
    warm._write_log(tmp_path / "small" / "log", 40)
    for number, case in enumerate(warm.cases()):
        warm._run(number, case, tmp_path / "small")
    assert taken == set(METHODS)


@system
def test_it_says_what_it_did(monkeypatch, tmp_path):
    monkeypatch.setattr(warm, "cases", lambda: iter([warm.Case((), (("score",),))]))
    monkeypatch.setattr(warm.tempfile, "tempdir", str(tmp_path))
    outcome = warm.warm()
    summary = outcome.summary
    assert summary["kernels"] >= summary["compiled"] >= 0
    assert summary["kernels"] == sum(len(types) for types in compiled.used().values())
    assert "kernels compiled in" in outcome.lines[0]
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_kept_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(CompilationCache, "cache_path", None)
    monkeypatch.setattr(warm, "_run", lambda *given: None)
    monkeypatch.setattr(warm.tempfile, "tempdir", str(tmp_path))
    assert "kept nowhere" in warm.warm().lines[0]


@system
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_after_it_no_job_compiles(place, tmp_path):
    place.environment["LOGCAL_CACHE"] = str(tmp_path / "cache")
    done = place.run("warm", "--json", timeout=1500).expect(0).json
    assert done["compiled"] == done["kernels"] > 100
    assert place.run("warm", "--json", timeout=1500).expect(0).json["compiled"] == 0
    for path in (tmp_path / "cache").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    rng = np.random.default_rng(1)
    rows = 40_000
    score = rng.random(rows)
    label = rng.random(rows) < score
    logs = {
        "plain": ({"score": score, "label": label.astype(np.int8)}, ()),
        "digits": ({"score": score.round(2).astype(np.float32), "label": label.astype(np.int64)}, ()),
        "weights": ({"score": score, "label": label, "w": score + 1}, ("log.weight=w",)),
        "texts": (
            {"score": score, "label": label, "s": rng.integers(0, 50, rows).astype(str)},
            ("log.segment=[s]",),
        ),
        "two": (
            {
                "score": score,
                "label": label,
                "s": rng.integers(0, 5, rows).astype(str),
                "n": rng.integers(0, 9, rows),
            },
            ("log.segment=[s, n]",),
        ),
    }
    for name, (columns, settings) in logs.items():
        log = place.write_log(columns, name=name)
        paths = {"log__path": log, "store__table": name, "output__path": None}
        for method in METHODS if name in ("plain", "weights") else ("isotonic",):
            if method in ("sbb", "abb", "auto"):
                settings = (*settings, "score_table.grid=0.01")
            fitted = place.job("fit", *settings, f"calibrator.method={method}", **paths).expect(0)
            assert COMPILING not in fitted.stderr, (name, method)
        last = [text for text in settings if not text.startswith("score_table")]
        known = [text for text in last if not text.startswith("log.weight")]
        scored = place.job("score", *known, **paths | {"output__path": place.root / f"{name}-scored"}).expect(
            0
        )
        report = {**paths, "report__path": place.root / f"{name}-report"}
        measured = place.job("evaluate", *last, "evaluate.allow_in_sample=true", **report).expect(0)
        assert COMPILING not in scored.stderr + measured.stderr, name
    for path in (tmp_path / "cache", *(tmp_path / "cache").rglob("*")):
        path.chmod(0o755)
