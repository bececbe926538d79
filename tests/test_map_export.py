"""`logcal tables export`: JSON, read by the code that the page on recipes prints, PMML and ONNX."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pyarrow as pa
import pytest

import logcal
from calibrators.core.map import CalibrationMap
from jobs import map_export
from logcal.errors import ConfigError, InputRejectedError
from logcal.lookup_table import LookupFacts, LookupTable
from logcal.schema import apply_transform
from pipeline.table.json_map import json_map
from pipeline.table.onnx_map import onnx_map
from pipeline.table.pmml_map import pmml_map

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
    assert (found["format"], found["format_version"]) == ("logcal-map", "1")
    assert (found["table"], found["version"]) == ("ads", fitted.current)
    assert (found["score_transform"], found["grid"], found["rows"][0]["score_lo"]) == ("none", None, None)
    loaded = logcal.load(str(fitted.store), "ads")
    scores = scores_to_try(loaded.map.score_lo[1:])
    assert scores.size == 10_000
    predict = readers()["predictor"](file)
    np.testing.assert_array_equal([predict(score) for score in scores.tolist()], loaded.predict(scores))
    for other in ({"format_version": "2"}, {"features": ["rays"]}):
        file.write_text(json.dumps(found | other))
        with pytest.raises(ValueError, match="another format, or unknown features"):
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
    with pytest.raises(ConfigError, match="--format: expected json, pmml or onnx, found 'xml'"):
        map_export.export(*arguments, "xml", "-")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--output: cannot write"):
        map_export.export(*arguments, "json", str(tmp_path / "file" / "map.json"))
    with pytest.raises(InputRejectedError, match="no version '9'"):
        map_export.export(str(fitted.store), "ads", "9", "json", str(tmp_path / "map.json"))
    assert not (tmp_path / "map.json").exists()
    with pytest.raises(ConfigError, match="ONNX is no text"):
        map_export.export(*arguments, "onnx", "-")


def test_onnx_without_its_package_says_what_to_install(fitted, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'logcal[onnx]'")):
        map_export.export(str(fitted.store), "ads", None, "onnx", str(tmp_path / "map.onnx"))
    assert not list(tmp_path.glob("map*"))


def test_pmml_and_onnx_have_no_segments(place, call, tmp_path):
    write_segmented_log(place, margins=False)
    call("fit", "log.segment=[name]").expect(0)
    for format_ in ("pmml", "onnx"):
        arguments = ("--store", str(place.store), "--table", "ads", "--format", format_)
        done = place.run("tables", "export", *arguments, "--output", str(tmp_path / "map"))
        done.expect(2, f"--format {format_}: table 'ads' has maps of segments (name)")
        assert not (tmp_path / "map").exists()


SEGMENTED = {
    "own": ("segments.shrinkage=none", "segments.min_rows=300"),
    "pooled": (),
    "bent": (),
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


def write_segmented_log(place, *, margins, far=False):
    """Segments that differ; doubles do not tell two of the numbers apart. far : their rates differ much."""
    rows = 40_000 if far else 12_000
    columns, random = place.predictions(rows), np.random.default_rng(3)
    name, number = random.integers(0, 4, (2, rows))
    if far:
        score = np.asarray(columns["score"])
        odds = score / (1 - score) * np.exp(np.array([-3, -1, 1, 3])[name])
        columns["label"] = (random.random(rows) < odds / (1 + odds)).astype(np.int8)
    label = np.asarray(columns["label"])
    flipped = ((name == 0) & (random.random(rows) < 0.3)) | ((number == 1) & (random.random(rows) < 0.5))
    flipped &= not far
    score = np.asarray(columns["score"])
    place.write_log(
        {
            "score": 8 * score - 4 if margins else score,
            "label": np.where(flipped, 0, label).astype(label.dtype),
            "name": pa.array(NAMES).take(pa.array(name)),
            "number": pa.array(NUMBERS, pa.int64()).take(pa.array(number)),
            "new": random.random(rows) < 0.5,
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
    write_segmented_log(place, margins=kind == "margins", far=kind == "bent")
    call("fit", "log.segment=[name, number, new]", *SEGMENTED[kind]).expect(0)
    file = tmp_path / "map.json"
    done = map_export.export(str(place.store), "ads", None, "json", str(file))
    found = json.loads(file.read_text(), parse_constant=refuse)
    assert [column["type"] for column in found["columns"]] == ["text", "whole numbers", "booleans"]
    assert done.summary["maps"] == len(found["maps"])
    assert ("bent" in logcal.load(str(place.store), "ads").facts.features) == (kind == "bent")
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


# Tables without segments in other formats: lines, steps, jumps between neighbouring doubles, ranges of every size.


def plain_tables():
    random = np.random.default_rng(4)
    scores, zeros = np.sort(random.normal(0.5, 0.3, 300)), np.zeros
    level = np.sort(random.random(301))
    maps = {
        "lines": CalibrationMap.from_knots(scores, level[1:], zeros(301), zeros(301)),
        "steps": CalibrationMap.from_bins(scores, level, zeros(301), zeros(301)),
        "ends": CalibrationMap.from_bins(scores, np.linspace(0, 1, 301), zeros(301), zeros(301)),
        "falling": CalibrationMap.from_knots(scores, level[:0:-1], zeros(301), zeros(301)),
        "one row": CalibrationMap.from_bins(np.empty(0), level[:1], zeros(1), zeros(1)),
        "ties": CalibrationMap.from_blocks(
            scores[::2], scores[1::2], level[::2][:150], zeros(150), zeros(150)
        ),
        "neighbours": CalibrationMap.from_bins(
            np.nextafter(0.5, [0, 1]), np.array([0.1, 0.4, 0.9]), zeros(3), zeros(3)
        ),
        "far": CalibrationMap.from_knots(
            np.array([-1e300, -1e-300, 0.0, 5e-324, 1.0, 1e300]), level[::60], zeros(7), zeros(7)
        ),
    }
    for name, map_ in maps.items():
        yield name, as_table(map_)
    yield "sigmoid", as_table(maps["lines"], "sigmoid")


def as_table(map_, transform="none"):
    facts = LookupFacts("000001", "isotonic", {}, transform, map_.monotone, {}, "", len(map_))
    return LookupTable.of_map(map_, facts)


PLAIN = pytest.mark.parametrize("table", [pytest.param(t, id=name) for name, t in plain_tables()])


def tried(table):
    """Scores, and the probabilities that the table gives them."""
    scores = scores_to_try(table.map.score_lo[1:])
    if table.facts.score_transform == "sigmoid":
        scores = np.append(scores, [800.0, -800.0, *np.random.default_rng(9).normal(0, 5, 1000)])
    return scores, table.map.predict(apply_transform(scores, table.facts.score_transform))


def close_to(table):
    return {"rtol": 0, "atol": 1e-12 if table.facts.score_transform == "sigmoid" else 0}


@pytest.mark.system
@PLAIN
def test_the_reader_in_java(table, tmp_path):
    if not shutil.which("javac"):
        pytest.skip("no Java compiler")
    scores, expected = tried(table)
    (tmp_path / "map.json").write_text(json.dumps(json_map(table, "ads")))
    np.savetxt(tmp_path / "scores", scores, fmt="%.17g")
    (tmp_path / "CalibrationMap.java").write_text(recipe("java")[0])
    (tmp_path / "Main.java").write_text(
        """
import java.nio.file.*;
class Main {
  public static void main(String[] args) throws Exception {
    CalibrationMap map = new CalibrationMap(Files.readString(Path.of("map.json")));
    for (String line : Files.readAllLines(Path.of("scores"))) {
      String s = line.replace("inf", "Infinity").replace("nan", "NaN");
      System.out.println(map.probability(Double.parseDouble(s)));
    }
  }
}
"""
    )
    subprocess.run(["javac", "Main.java", "CalibrationMap.java"], cwd=tmp_path, check=True)
    command = ["java", "-cp", str(tmp_path), "Main"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = [float(line) for line in done.stdout.split()]
    np.testing.assert_allclose(found, expected, **close_to(table))


@pytest.mark.system
@PLAIN
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # of the reference's arithmetic
def test_onnx_gives_runtimes_the_same_probabilities(table):
    onnx = pytest.importorskip("onnx")
    data = onnx_map(table, "ads")
    assert data == onnx_map(table, "ads")
    scores, expected = tried(table)
    model = onnx.load_from_string(data)
    assert {node.domain for node in model.graph.node} == {""}
    from onnx.reference import ReferenceEvaluator

    (found,) = ReferenceEvaluator(model).run(None, {"score": scores})
    np.testing.assert_allclose(found, expected, **close_to(table))
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"score": scores})
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, **close_to(table))
    assert session.get_modelmeta().custom_metadata_map["version"] == "000001"


NAMESPACE = {"p": "http://www.dmg.org/PMML-4_4"}


def as_pmml_says(text, scores):
    """Evaluate the document by the formula of the standard."""
    root = ET.fromstring(text)
    assert (root.tag, root.get("version")) == (f"{{{NAMESPACE['p']}}}PMML", "4.4")
    (predictor,) = root.findall(".//p:NumericPredictor", NAMESPACE)
    assert (predictor.get("name"), predictor.get("coefficient")) == ("calibrated_score", "1")
    norm = root.find(".//p:DerivedField[@name='calibrated_score']/p:NormContinuous", NAMESPACE)
    assert norm.get("outliers") == "asExtremeValues"
    orig, level = (
        np.array([float(knot.get(name)) for knot in norm.iterfind("p:LinearNorm", NAMESPACE)])
        for name in ("orig", "norm")
    )
    assert (np.diff(orig) > 0).all()
    assert orig.size >= 2
    if norm.get("field") != "score":
        apply = root.find(f".//p:DerivedField[@name='{norm.get('field')}']/p:Apply", NAMESPACE)
        scores = np.array([value_of(apply, score) for score in scores.tolist()])
    below = np.clip(np.searchsorted(orig, scores, side="right") - 1, 0, orig.size - 2)
    with np.errstate(invalid="ignore", over="ignore"):
        part = (scores - orig[below]) / (orig[below + 1] - orig[below])
        line = level[below] + part * (level[below + 1] - level[below])
    return np.where(scores <= orig[0], level[0], np.where(scores >= orig[-1], level[-1], line))


def value_of(node, score):
    """Evaluate an expression; NaN stands for a missing value."""
    tag = node.tag.split("}")[1]
    if tag == "FieldRef":
        return score
    if tag == "Constant":
        return float(node.text)
    function, arguments = node.get("function"), [value_of(child, score) for child in node[:1]]
    if function == "if":
        return value_of(node[1], score) if arguments[0] else np.nan
    arguments += [value_of(child, score) for child in node[1:]]
    with np.errstate(over="ignore"):
        return {
            "isNotMissing": lambda x: x == x,
            "exp": np.exp,
            "+": lambda a, b: a + b,
            "*": lambda a, b: a * b,
            "/": lambda a, b: a / b,
        }[function](*arguments)


@PLAIN
def test_pmml_evaluated_by_its_standard_gives_the_same_probabilities(table):
    scores, expected = tried(table)
    found = as_pmml_says(pmml_map(table, "a<d>s & more"), scores)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.system
@PLAIN
def test_pmml_in_the_reference_evaluator(table, tmp_path):
    """`make recipes` installs it; it needs Java."""
    jpmml = pytest.importorskip("jpmml_evaluator")
    if not shutil.which("java"):
        pytest.skip("no Java")
    from jpmml_evaluator.jpype import JPypeBackend

    (tmp_path / "map.pmml").write_text(pmml_map(table, "ads"))
    evaluator = jpmml.make_evaluator(str(tmp_path / "map.pmml"), backend=JPypeBackend()).verify()
    scores, expected = tried(table)
    found = [evaluator.evaluate({"score": score}).get("probability") for score in scores.tolist()]
    np.testing.assert_allclose(np.array(found, float), expected, rtol=0, atol=1e-12)


def test_pmml_of_a_fit(fitted, tmp_path):
    table = ("--store", str(fitted.store), "--table", "ads", "--format", "pmml")
    file = tmp_path / "map.pmml"
    assert fitted.run("tables", "export", *table, "--output", str(file)).expect(0).stdout == f"{file}\n"
    assert fitted.run("tables", "export", *table, "--output", "-").expect(0).stdout == file.read_text()
    loaded = logcal.load(str(fitted.store), "ads")
    scores = scores_to_try(loaded.map.score_lo[1:])
    found = as_pmml_says(file.read_text(), scores)
    np.testing.assert_allclose(found, loaded.predict(scores), rtol=0, atol=1e-12)
