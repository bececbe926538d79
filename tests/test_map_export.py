"""`logcal tables export`: its JSON, read by the code that the page on recipes prints."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import logcal
from jobs import map_export
from logcal.errors import ConfigError, InputRejectedError

pytestmark = pytest.mark.filterwarnings("ignore:the table was fitted to probabilities")


def recipe(language):
    """The page's readers of exported maps."""
    text = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text()
    section = text.split("## JSON: any language")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, flags=re.DOTALL | re.MULTILINE)


def readers():
    names: dict = {}
    for block in recipe("python"):
        exec(compile(block, "docs/recipes.md", "exec"), names)
    return names


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def scores_to_try(edges, rows=10_000):
    """Scores at edges of rows, next to them, between and outside them, and those that are no numbers."""
    edges = np.asarray(edges)[:1000]
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 1e300, -1e300, 5e-324]
    known = np.concatenate([special, edges, np.nextafter(edges, -np.inf), np.nextafter(edges, np.inf)])
    return np.append(known, np.random.default_rng(5).normal(0.5, 0.4, rows - known.size))


def test_a_map_as_json_gives_plain_python_the_same_probabilities(fitted, tmp_path):
    table = ("--store", str(fitted.store), "--table", "ads", "--format", "json")
    file = tmp_path / "map.json"
    assert fitted.run("tables", "export", *table, "--output", str(file)).expect(0).stdout == f"{file}\n"
    found = json.loads(file.read_text(), parse_constant=refuse)
    printed = fitted.run("tables", "export", *table, "--version", "000001", "--output", "-").expect(0)
    assert printed.stdout == file.read_text()
    assert (found["format"], found["format_version"]) == ("logcal-map", 1)
    assert (found["table"], found["version"]) == ("ads", fitted.current)
    assert (found["score_transform"], found["grid"], found["rows"][0]["score_lo"]) == ("none", None, None)
    loaded = logcal.load(str(fitted.store), "ads")
    scores = scores_to_try(loaded.map.score_lo[1:])
    assert scores.size == 10_000
    predict = readers()["predictor"](file)
    np.testing.assert_array_equal([predict(score) for score in scores.tolist()], loaded.predict(scores))
    file.write_text(json.dumps(found | {"format_version": 2}))
    with pytest.raises(ValueError, match="another format"):
        readers()["predictor"](file)
    code = [line for line in recipe("python")[0].splitlines() if line.strip()]
    assert len(code) <= 20


def test_a_transform_and_a_grid_are_said_and_the_transform_is_applied(place, call, tmp_path):
    columns = place.predictions(2000)
    margins = 8 * np.asarray(columns["score"]) - 4
    place.write_log({"score": margins, "label": columns["label"]})
    call("fit", "log.score_transform=sigmoid", "score_table.grid=1e-3").expect(0)
    file = tmp_path / "map.json"
    map_export.export(str(place.store), "ads", None, "json", str(file))
    found = json.loads(file.read_text(), parse_constant=refuse)
    assert (found["score_transform"], found["grid"]) == ("sigmoid", "1e-3")
    random = np.random.default_rng(6)
    scores = np.append([np.nan, np.inf, -np.inf, 800.0, -800.0], random.normal(0, 4, 9995))
    expected = logcal.load(str(place.store), "ads").predict(scores)
    read = list(map(readers()["predictor"](file), scores.tolist()))
    np.testing.assert_allclose(read, expected, rtol=0, atol=1e-15)


def test_what_export_refuses(fitted, tmp_path):
    arguments = (str(fitted.store), "ads", None)
    with pytest.raises(ConfigError, match="--format: expected json, found 'xml'"):
        map_export.export(*arguments, "xml", "-")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--output: cannot write"):
        map_export.export(*arguments, "json", str(tmp_path / "file" / "map.json"))
    with pytest.raises(InputRejectedError, match="no version '9'"):
        map_export.export(str(fitted.store), "ads", "9", "json", str(tmp_path / "map.json"))
    assert not (tmp_path / "map.json").exists()


SEGMENTED = {
    "own": ("segments.shrinkage=none", "segments.min_rows=300"),
    "pooled": (),
    "sigmoids": ("segments.shrinkage=none", "segments.min_rows=300", "calibrator.method=platt"),
    "log-odds": (
        "segments.shrinkage=none",
        "segments.min_rows=300",
        "calibrator.method=platt",
        "calibrator.params={input: logit}",
    ),
    "margins": ("log.score_transform=sigmoid",),
}
NAMES = ["at", 'o"brien\\', None, "ünknown"]
NUMBERS = [2**53, 2**53 + 1, None, -7]


def write_segmented_log(place, *, margins):
    """Segments that differ; doubles do not tell two of the numbers apart."""
    columns, random = place.predictions(12_000), np.random.default_rng(3)
    name, number = random.integers(0, 4, (2, 12_000))
    label = np.asarray(columns["label"])
    flipped = ((name == 0) & (random.random(12_000) < 0.3)) | ((number == 1) & (random.random(12_000) < 0.5))
    score = np.asarray(columns["score"])
    place.write_log(
        {
            "score": 8 * score - 4 if margins else score,
            "label": np.where(flipped, 0, label).astype(label.dtype),
            "name": pa.array(NAMES).take(pa.array(name)),
            "number": pa.array(NUMBERS, pa.int64()).take(pa.array(number)),
            "new": random.random(12_000) < 0.5,
        }
    )


def in_javascript(file, scores, rows):
    """Run the page's reader in JavaScript; numbers go in and come out as text, with infinity and NaN."""
    program = (
        recipe("javascript")[0]
        + """
const input = JSON.parse(require("node:fs").readFileSync(0, "utf-8"));
const predict = predictor(JSON.parse(require("node:fs").readFileSync(input.file, "utf-8")));
console.log(JSON.stringify(input.scores.map((s, i) => String(predict(Number(s), input.rows[i])))));
"""
    )
    texts = [repr(s).replace("inf", "Infinity").replace("nan", "NaN") for s in scores.tolist()]
    as_text = [{k: str(v) if type(v) is int else v for k, v in row.items()} for row in rows]
    given = json.dumps({"file": str(file), "scores": texts, "rows": as_text})
    done = subprocess.run(["node", "-e", program], input=given, capture_output=True, text=True, check=True)
    return np.array([float(text) for text in json.loads(done.stdout)])


@pytest.mark.system
@pytest.mark.parametrize("kind", SEGMENTED)
def test_maps_of_segments_as_json_give_other_languages_the_same(place, call, tmp_path, kind):
    write_segmented_log(place, margins=kind == "margins")
    call("fit", "log.segment=[name, number, new]", *SEGMENTED[kind]).expect(0)
    file = tmp_path / "map.json"
    done = map_export.export(str(place.store), "ads", None, "json", str(file))
    found = json.loads(file.read_text(), parse_constant=refuse)
    assert [column["type"] for column in found["columns"]] == ["text", "whole numbers", "booleans"]
    assert done.summary["maps"] == len(found["maps"])
    kinds = {(segment["adjustment"] or {"logit_from": None})["logit_from"] for segment in found["segments"]}
    wanted = {"own": {None}, "sigmoids": {"score"}, "log-odds": {"log_odds"}}
    assert wanted.get(kind, {"map"}) <= kinds
    random = np.random.default_rng(8)
    scores = scores_to_try([row["score_lo"] for row in found["maps"][0][1:]])
    values = [[*NAMES, "never"], [*NUMBERS, 3], [True, False, None]]
    picks = [random.integers(0, len(known), scores.size).tolist() for known in values]
    names = ("name", "number", "new")
    columns = {n: [known[i] for i in pick] for n, known, pick in zip(names, values, picks, strict=True)}
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    expected = logcal.load(str(place.store), "ads").predict(scores, columns)
    predict = readers()["segment_predictor"](file)
    close = {"rtol": 0, "atol": 0 if kind == "own" else 1e-15}
    read = [predict(score, **row) for score, row in zip(scores.tolist(), rows, strict=True)]
    np.testing.assert_allclose(read, expected, **close)
    if shutil.which("node"):
        np.testing.assert_allclose(in_javascript(file, scores, rows), expected, **close)
