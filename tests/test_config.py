"""Configurations: what is read, what goes over what, and what is said of mistakes."""

import ast
import json
import re
from pathlib import Path

import fsspec
import numpy as np
import pytest
import yaml

import logcal
from calibrators import METHODS
from jobs.config.cluster import ClusterConfig, parse_bytes
from jobs.config.jobs import JOB_CONFIGS, EvaluateConfig, FitConfig, FollowConfig, ScoreConfig
from jobs.config.loading import Values, known_keys, load, resolve_paths
from jobs.config.naming import JOB, call_in_keys, in_keys, key_of
from jobs.config.rendering import OVERLAYS, conf_files, meanings
from jobs.config.sections import CalibratorConfig
from jobs.day_steps import job_config
from jobs.registry import JOBS
from logcal.errors import ConfigError, InputRejectedError, TemporaryError
from pipeline.log.log_files import find_files

FIT = ("log.path=log", "store.path=store", "store.table=ads")
SCORE = (*FIT, "output.path=scored")


def message(model=FitConfig, files=(), settings=(), base=FIT):
    """What is said of a configuration that is wrong."""
    with pytest.raises(ConfigError) as caught:
        load(model, files, [*base, *settings])
    return str(caught.value)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a YAML file into the current folder and return its name."""
    monkeypatch.chdir(tmp_path)

    def written(text, name="fit.yaml"):
        (tmp_path / name).write_text(text)
        return name

    return written


# What goes over what


def test_later_files_go_over_earlier_ones_key_by_key_and_settings_over_all(write):
    first = write(
        "log: {path: a, score: s, label: y}\ncluster: {memory: 1GiB, workers: 3}\nscratch: /first\n"
    )
    second = write("log:\n  label: clicked\ncluster:\nscratch: /second\n", "second.yaml")
    config = load(
        FitConfig, [first, second], ["store={path: p, table: t}", "log.score=z", "cluster.workers=4"]
    )
    assert (config.log.path, config.log.score, config.log.label) == (("a",), "z", "clicked")
    assert (config.cluster.memory, config.cluster.workers, config.scratch) == ("1GiB", 4, "/second")


def test_a_setting_replaces_a_map_where_a_file_adds_to_it(write):
    first = write("calibrator: {method: histogram, params: {bins: 20}}\n")
    second = write("calibrator: {params: {smoothing: 1}}\n", "second.yaml")
    assert load(FitConfig, [first, second], FIT).calibrator.params == {"bins": 20, "smoothing": 1}
    assert load(FitConfig, [first], [*FIT, "calibrator.params={smoothing: 1}"]).calibrator.params == {
        "smoothing": 1
    }
    assert load(FitConfig, [first], [*FIT, "calibrator.params={}"]).calibrator.params == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.parquet", ("a.parquet",)),
        ("[a, b]", ("a", "b")),
        ("*.parquet", ("*.parquet",)),
        ("s3://bucket/day=1/", ("s3://bucket/day=1/",)),
        ("'2024'", ("2024",)),
        ("#1", ("#1",)),
    ],
)
def test_a_settings_value_is_yaml_or_else_text(text, value):
    assert load(FitConfig, [], [*FIT, f"log.path={text}"]).log.path == value


@pytest.mark.parametrize("text", ["", "null", "~", "Null"])
def test_a_setting_can_be_null(text):
    assert load(FitConfig, [], [*FIT, "log.weight=w", f"log.weight={text}"]).log.weight is None


def test_an_empty_file_and_empty_sections_say_nothing(write):
    files = [write("# nothing\n"), write("cluster:\nlog:\ncalibrator:\n  params:\n", "second.yaml")]
    assert load(FitConfig, files, FIT) == load(FitConfig, [], FIT)


DAY = """
log: {path: log, label: clicked, segment: country}
store: {path: store, table: ads, version: 000001-abc}
calibrator: {method: abb, params: {max_cuts: 5}}
window: {column: date}
evaluate: {bins: 5}
report: {path: report}
score: {max_outside_range: 0.1}
output: {path: scored, mode: replace}
generate: {repeats: 5}
"""


def test_one_file_serves_all_jobs(write):
    day = write(DAY, "day.yaml")
    fitted, scored, measured = (load(model, [day]) for model in (FitConfig, ScoreConfig, EvaluateConfig))
    assert (fitted.calibrator.method, fitted.log.segment, fitted.store.table) == ("abb", ("country",), "ads")
    assert (scored.output.path, scored.output.mode, scored.score.max_outside_range) == (
        "scored",
        "replace",
        0.1,
    )
    assert (measured.report.path, measured.evaluate.bins) == ("report", 5)
    assert scored.store.version == measured.store.version == "000001-abc"


@pytest.mark.parametrize("model", [FitConfig, ScoreConfig, EvaluateConfig])
def test_what_no_job_knows_is_an_error_wherever_it_stands(write, model):
    day = write(DAY.replace("repeats", "repaets") + "calibratr: {}\nqqqq: 1\n", "day.yaml")
    with pytest.raises(ConfigError) as caught:
        load(model, [day])
    assert "generate.repaets (day.yaml, line 10): unknown key; did you mean generate.rep" in str(caught.value)
    assert "calibratr (day.yaml, line 11): unknown key" in str(caught.value)
    assert "qqqq (day.yaml, line 12): unknown key" in str(caught.value)


def test_keys_that_are_options_are_taken_and_not_shown(write):
    assert load(FollowConfig, [write("follow: {once: true}\n")], SCORE).follow.once
    assert not any(key in known_keys(FollowConfig) for key in ("follow.once", "follow.retry"))
    with pytest.raises(ConfigError, match=r"report\.path: REQUIRED"):
        load(EvaluateConfig, [], SCORE)


def test_a_configuration_cannot_be_changed_and_is_json():
    config = load(FitConfig, [], FIT)
    with pytest.raises(ValueError, match="frozen"):
        config.log.label = "other"
    again = FitConfig.model_validate_json(json.dumps(config.model_dump(mode="json")))
    assert again == config


# Types that YAML guesses


@pytest.mark.parametrize(
    ("written", "found", "hint"),
    [
        ("NO", "the boolean False", "YAML reads an unquoted NO as false: put it in quotes"),
        ("off", "the boolean False", "YAML reads an unquoted off as false: put it in quotes"),
        ("{y: 1}", "a map", None),
        ("2024-01-01", "the date 2024-01-01", "put it in quotes"),
        ("12", "the number 12", "put it in quotes"),
        ("1.50", "the number 1.5", "put it in quotes"),
        ("1e5", "the number 100000.0", "put it in quotes"),
        ("[a]", "a list", None),
    ],
)
def test_text_that_yaml_reads_as_something_else(write, written, found, hint):
    said = message(files=[write(f"log:\n  label: {written}\n")])
    assert said.startswith(f"log.label (fit.yaml, line 2): expected text, found {found}")
    assert (hint or found) in said
    assert load(FitConfig, [write(f"log:\n  label: '{written}'\n")], FIT).log.label == written


def test_numbers_need_no_point():
    numbers = ("calibrator.params={max_error: 1.5e-7}", "log.max_bad_fraction=1e-3", "score_table.grid=1e-6")
    config = load(FitConfig, settings=[*FIT, *numbers])
    assert (config.calibrator.params, config.log.max_bad_fraction) == ({"max_error": 1.5e-7}, 1e-3)
    assert config.score_table.grid == "1e-6"


def test_the_hint_for_a_setting_is_quoted_for_the_shell():
    said = message(settings=["log.label=NO"])
    assert said == (
        "log.label (--set log.label=NO): expected text, found the boolean False; YAML reads an unquoted NO as "
        """false: put it in quotes: --set "log.label='NO'\""""
    )
    assert load(FitConfig, [], [*FIT, "log.label='NO'"]).log.label == "NO"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("cluster.workers=1e1", "expected a whole number, found the number 10.0"),
        ("cluster.workers='4'", "expected a whole number, found the text '4'"),
        ("cluster.workers=2.5", "expected a whole number, found the number 2.5"),
        ("cluster.workers=true", "expected a whole number, found the boolean True"),
        ("cluster.workers=0", "expected a number >= 1, found the number 0"),
        ("log.max_bad_fraction=1.5", "expected a number <= 1, found the number 1.5"),
        ("log.max_bad_fraction=.nan", "expected a finite number, found the number nan"),
        ("cluster.timeout=0", "expected a number > 0, found the number 0"),
        ("score_table.keep='yes'", "expected true or false, found the text 'yes'"),
        ("log.on_bad_rows=quarantin", "of fail, quarantine, found the text 'quarantin'; did you mean quara"),
        ("log.on_bad_rows=null", "expected one of fail, quarantine, found nothing"),
        ("cluster.kind=locl", "did you mean local?"),
        ("cluster=local", "expected a map of keys and values, found the text 'local'"),
        ("calibrator.params=20", "expected a map of keys and values, found the number 20"),
        ("log.path=[]", "expected at least one, found an empty list"),
        ("log.segment=null", "expected text, or a list of texts, found nothing: write [] for none"),
        ("log.path=[a, 1]", "expected text, found the number 1"),
        ("log.path=''", "expected text that is not empty, found the text ''"),
        ("store.table=a/b", "choose a plain name"),
        ("store.table=..", "choose a plain name"),
        # Unknown keys
        ("log.scoer=x", "unknown key; did you mean log.score?"),
        ("log.lable=x", "unknown key; did you mean log.label?"),
        ("memory=x", "unknown key; did you mean cluster.memory?"),
        ("clusters.kind=x", "unknown key; did you mean cluster?"),
        ("log.memory=x", "unknown key; did you mean cluster.memory?"),
        ("calibrator.parms=x", "unknown key; did you mean calibrator.params?"),
        ("store.xyzzy=1", "xyzzy (--set store.xyzzy=***): unknown key; known here: path, table"),
        ("qqq=1", "known here: log, store, calibrator"),
        # Keys that do not go together
        ("log.score=label", "log.label: expected another column than log.score, found 'label' for both"),
        ("log.weight=score", "log.weight (--set log.weight=score): expected another column than log.score"),
        ("log.quarantine_path=bad", "is only written with log.on_bad_rows=quarantine"),
        ("cluster.kind=address", "cluster.address: REQUIRED with cluster.kind=address"),
        ("cluster.kind=scheduler_file", "cluster.scheduler_file: REQUIRED with cluster.kind=scheduler"),
        ("cluster.address=tcp://a:1", "only goes with cluster.kind=address, found cluster.kind=auto"),
        ("cluster.arguments={a: 1}", "only go with a cluster class, found cluster.kind=auto"),
        # What is no setting
        ("log.label", "--set log.label: expected KEY.PATH=VALUE, such as --set log.label=clicked"),
        ("=x", "found an empty key"),
        ("log..label=x", "found an empty key"),
        ("log.path=[a", "--set log.path=[a: the value is not valid YAML"),
        ("log.path='a", "the value is not valid YAML"),
    ],
)
def test_a_setting_that_is_wrong(setting, said):
    assert said in message(settings=[setting])


def test_a_key_that_yaml_takes_for_a_boolean_keeps_its_name(write):
    assert "log.no (fit.yaml, line 2): unknown key" in message(files=[write("log:\n  no: x\n")])


# Everything at once


def test_all_problems_are_said_together_each_with_its_place(write):
    first = write("log:\n  scoer: s\n  label: NO\ncalibrator: {method: isotonik}\n")
    second = write("log:\n  label: off\n", "second.yaml")
    said = message(files=[first, second], settings=["cluster.workers=two"], base=())
    assert said.startswith("the configuration has 7 problems:\n- ")
    for line in (
        "- log.path: REQUIRED; give it in a file or with --set log.path=...",
        "- log.scoer (fit.yaml, line 2): unknown key; did you mean log.score?",
        "- log.label (second.yaml, line 2): expected text, found the boolean False",
        "- store.path: REQUIRED",
        "- store.table: REQUIRED",
        "- cluster.workers (--set cluster.workers=two): expected a whole number",
        "- calibrator.method: expected one of",
    ):
        assert line in said


def test_null_is_no_value_for_a_required_key(write):
    assert message(base=FIT[1:], files=[write("log:\n  path:\n")]).startswith(
        "log.path (fit.yaml, line 2): REQUIRED"
    )


# Files that cannot be read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("log: [a\n", "fit.yaml: not valid YAML: "),
        ("log: {path: a}\nlog: {path: b}\n", "log (fit.yaml, line 2): the key is given twice"),
        ("- a\n", "fit.yaml: expected keys with values, found list"),
        ("log: &a {b: *a}\n", "fit.yaml: not valid YAML: a map that contains itself (line 1, column 6)"),
        ("log: {path: !!python/object:os.system x}\n", "not valid YAML: could not determine a constructor"),
        ("log: {label: 2024-13-45}\n", "log.label (fit.yaml, line 1): month must be in 1..12; if this is"),
        ("? [a, b]\n: c\n", "fit.yaml: not valid YAML: a key that is not text (line 1, column 3)"),
    ],
)
def test_a_file_that_cannot_be_read(write, text, said):
    assert said in message(files=[write(text)])


def test_a_file_that_is_not_there_or_not_text(write, tmp_path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    said = message(files=["missing.yaml", "binary.yaml", "."])
    assert "- missing.yaml: expected a YAML file, found no such file" in said
    assert "- binary.yaml: expected YAML in UTF-8, found other bytes" in said
    assert "- .: cannot be read: Is a directory" in said


# Sizes


SIZES = {"2GiB": 2 << 30, "1500MB": 1_500_000_000, "1.5 gib": 3 << 29, "300000000B": 300_000_000}


@pytest.mark.parametrize("text", SIZES)
def test_sizes(text):
    assert parse_bytes(text) == ClusterConfig(memory=text).memory_bytes == SIZES[text]


@pytest.mark.parametrize("text", ["2", "2G", "GiB", "-1GiB", "1e9B", "2 XiB", "1GiB 2", "9" * 400 + "GiB"])
def test_texts_that_are_no_sizes(text):
    with pytest.raises(ValueError, match="expected a size with its unit, such as 2GiB or 1500MB"):
        parse_bytes(text)


# conf/ and the registry


DATED = ("report.path", "output.path")
"""Paths that must name the day in a daily job, and may in others."""


@pytest.mark.parametrize(
    "job", [job for job in JOBS.values() if f"{job.name}.yaml" in conf_files()], ids=lambda j: j.name
)
def test_a_rendered_file_holds_every_key_with_its_default(job, write):
    model = job.config_class()
    text = conf_files()[f"{job.name}.yaml"]
    required = [f"{key}={'given/{day}' if key in DATED else 'given'}" for key in job.required]
    rendered = load(model, [write(text)], required)
    assert rendered == load(model, [], required)
    values = yaml.safe_load(text)
    for key in known_keys(model):
        inner = values
        for part in key.split("."):
            assert part in inner, key
            inner = inner[part]


@pytest.mark.parametrize("job", JOBS.values(), ids=lambda job: job.name)
def test_help_names_the_keys_that_are_required(job):
    with pytest.raises(ConfigError) as caught:
        load(job.config_class(), [], ["cluster.workers=0"])
    said = [line.removeprefix("- ").split(":")[0] for line in str(caught.value).splitlines()]
    missing = [
        key for key, line in zip(said, str(caught.value).splitlines(), strict=True) if "REQUIRED" in line
    ]
    # What a job cannot do without, though others can, it says when the others are there.
    later = {"window.column"} if job.name in ("monitor", "days") else set()
    assert {*missing, *later} == set(job.required)


@pytest.mark.parametrize("job", JOBS.values(), ids=lambda job: job.name)
def test_every_key_has_a_meaning(job):
    def check(model):
        for name, info in model.model_fields.items():
            assert meanings(model)[name], name
            if hasattr(info.annotation, "model_fields"):
                check(info.annotation)

    check(job.config_class())


@pytest.mark.parametrize("name", sorted(OVERLAYS))
def test_an_overlay_goes_over_any_job(name, write):
    overlay = write(conf_files()[f"cluster/{name}.yaml"], "overlay.yaml")
    for model in (FitConfig, ScoreConfig, EvaluateConfig):
        outputs = {
            FitConfig: (),
            ScoreConfig: ("output.path=scored",),
            EvaluateConfig: ("report.path=reports",),
        }
        settings = (*FIT, *outputs[model])
        cluster = load(model, [overlay], settings).cluster
        given = yaml.safe_load(conf_files()[f"cluster/{name}.yaml"])["cluster"]
        assert cluster.model_dump(include=set(given)) == given


def test_every_method_is_explained():
    meaning = meanings(CalibratorConfig)["method"]
    assert [method for method in METHODS if not re.search(rf"\b{method}\b[^.]*:\s", meaning)] == []


@pytest.mark.parametrize(
    "setting",
    [
        "storage.options={s3: SECRET}",
        "storage.options=SECRET",
        "storage=SECRET",
        "storage={options: SECRET}",
        "storage.options={s3: {secret: [SECRET",
        "storage.optionz={s3: {key: SECRET}}",
        "storage={optionz: SECRET}",
        "storage.options.s3=SECRET",
        "storrage.options={s3: SECRET}",
        "log.optionz=SECRET",
        "log={optionz: SECRET}",
        "store.secret=SECRET",
    ],
)
def test_values_of_storage_and_of_unknown_keys_are_neither_shown_nor_recorded(place, setting):
    place.write_log()
    done = place.job("fit", setting, "--json")
    assert done.code == 2
    assert "SECRET" not in done.stdout + done.stderr
    written = [path.read_text() for path in place.root.rglob("*.json")]
    assert not any("SECRET" in text for text in written)
    key, _, value = setting.partition("=")
    if not value.count("[") and "." not in key:
        file = place.root / "storage.yaml"
        file.write_text(f"{key}: {value}\n")
        done = place.run(*place.arguments("fit", "--json"), "-c", str(file))
        assert done.code == 2
        assert "SECRET" not in done.stdout + done.stderr


def test_a_key_of_other_jobs_is_refused_as_a_setting_and_passed_over_in_a_file(write):
    keys = "window: {column: day, half_life: 3d}\ngate: {ranking: false}\nevaluate: {last: 1d}\n"
    config = load(ScoreConfig, [write(keys)], SCORE)
    assert config.window.column == "day"
    assert config.window.half_life is None
    expected = {
        "window.half_life=3d": ("score", "fit, follow, days"),
        "window.min_labelled=0.5": ("monitor", "fit, follow, evaluate, days"),
        "gate={ranking: false}": ("evaluate", "fit, follow, days"),
        "evaluate.last=1d": ("days", "evaluate"),
        "compare.seed=1": ("fit", "compare"),
        "log.quarantine_path=bad": ("monitor", "fit, follow, evaluate, compare, days"),
    }
    for setting, (job, users) in expected.items():
        key = "gate.ranking" if setting.startswith("gate") else setting.partition("=")[0]
        said = message(JOB_CONFIGS[job], [write(keys)], [setting], ())
        assert f"{key} (--set {setting}): this command does not use it: leave it out; used by {users}" in said


# Paths


def test_relative_paths_belong_to_the_file_that_sets_them(write, tmp_path, monkeypatch):
    """Overlays too; --set and mappings are relative to the working folder, absolute paths and URLs stay."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "over").mkdir()
    write(
        "log: {path: [log, /abs, 's3://b/log']}\nstore: {path: ../store, table: t}\nscratch: tmp\n",
        "conf/a.yaml",
    )
    write(
        "log: {quarantine_path: bad, on_bad_rows: quarantine}\nrecord: {path: none, prometheus: m.prom}\n",
        "over/b.yaml",
    )
    config = load(FitConfig, ["conf/a.yaml", "over/b.yaml"], ["scratch=here"])
    assert config.log.path == ("conf/log", "/abs", "s3://b/log")
    assert (config.store.path, config.scratch) == ("conf/../store", "here")
    assert (config.log.quarantine_path, config.record.path) == ("over/bad", "none")
    assert config.record.prometheus == "over/m.prom"
    monkeypatch.chdir("conf")
    assert load(FitConfig, ["a.yaml"]).log.path[0] == "log"
    assert load(FitConfig, [tmp_path / "conf/a.yaml"]).log.path[0] == f"{tmp_path}/conf/log"
    mapping = {"log": {"path": "log"}, "store": {"path": "~/s", "table": "t"}}
    values = Values(mapping)
    resolve_paths(values)
    assert (values.get(("log", "path")), values.get(("store", "path"))) == ("log", str(Path.home() / "s"))


def test_a_configuration_at_a_url_has_paths_below_its_folder():
    fsspec.filesystem("memory").pipe(
        "/conf/day.yaml", b"log: {path: ../log}\nstore: {path: 's3://b/s', table: t}\nscratch: /tmp\n"
    )
    config = load(FitConfig, ["memory://conf/day.yaml"])
    assert (config.log.path, config.store.path, config.scratch) == (("memory://log",), "s3://b/s", "/tmp")
    with pytest.raises(
        ConfigError, match=r"memory://conf/none\.yaml: expected a YAML file, found no such file"
    ):
        load(FitConfig, ["memory://conf/none.yaml"])


def test_the_folders_own_name_is_no_pattern(write, tmp_path):
    (tmp_path / "[a]").mkdir()
    for name in ("part-1.parquet", "part-2.parquet"):
        (tmp_path / "[a]" / name).touch()
    write("log: {path: '*.parquet'}\nstore: {path: s, table: t}\n", "[a]/fit.yaml")
    config = load(FitConfig, ["[a]/fit.yaml"])
    assert [file.relative.rpartition("/")[2] for file in find_files(config.log.path).files] == [
        "part-1.parquet",
        "part-2.parquet",
    ]
    assert config.store.path == "[a]/s"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("${LOGCAL_DATA}/log", "/data/log"),
        ("x${LOGCAL_DATA}", "x/data"),
        ("~/log", f"{Path.home()}/log"),
        ("cost$1", "cost$1"),
        ("$LOGCAL_DATA/log", "expected environment variables as ${NAME}, found $LOGCAL_DATA"),
        ("${LOGCAL_DATA", "expected environment variables as ${NAME}, found ${LOGCAL_DATA"),
        ("${LOGCAL_NONE}/log", "expected the environment variable LOGCAL_NONE to be set, found none"),
    ],
)
def test_variables_in_paths(write, monkeypatch, path, expected):
    monkeypatch.setenv("LOGCAL_DATA", "/data")
    file = write(f"output: {{path: '{path}'}}\nlog: {{path: [log, '{path}']}}\n")
    if expected.startswith("expected"):
        with pytest.raises(ConfigError) as raised:
            load(ScoreConfig, [file], FIT[1:])
        assert f"- log.path ({file}, line 2): {expected}" in str(raised.value)
        assert f"- output.path ({file}, line 1): {expected}" in str(raised.value)
        return
    config = load(ScoreConfig, ["fit.yaml"], FIT[1:])
    assert (config.output.path, config.log.path) == (expected, ("log", expected))


def test_a_step_of_the_daily_job_has_its_own_keys_of_its_day():
    given = ["window={column: day, half_life: 3d}", "report.path=r/{day}", "output.path=o/{day}"]
    config = load(
        JOB_CONFIGS["days"], [], [*FIT, *given, "log.give_up=1m", "storage.options={s3: {anon: true}}"]
    )
    monitor = job_config(config, JOB_CONFIGS["monitor"], 20_000, window={"last": "1d"})
    assert monitor.window.model_dump(include={"until", "last"}) == {"until": "2024-10-04", "last": "1d"}
    assert (monitor.report.path, monitor.storage) == ("r/{day}", config.storage)
    score = job_config(config, ScoreConfig, 20_000, score={"last": "1d"})
    assert (score.log.give_up, score.score.last, score.window.last) == ("1m", "1d", "30d")
    assert job_config(config, FitConfig, 20_000).window.half_life == "3d"


# Messages of pipeline


def texts_of_pipeline():
    """Yield the place and the text of every string of pipeline that is no docstring."""
    root = Path(__file__).parents[1]
    for path in sorted((root / "pipeline").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                text = "".join(
                    part.value if isinstance(part, ast.Constant) else "{path}" for part in node.values
                )
            elif (
                isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
            ):
                text = node.value
            else:
                continue
            yield f"{path.relative_to(root)}:{node.lineno}", text


def test_pipeline_names_no_key():
    keys = {key for model in JOB_CONFIGS.values() for key in known_keys(model) if "." in key}
    key = re.compile(rf"(?<![\w./])({'|'.join(map(re.escape, keys))})(?!\w|\.[a-z])")
    texts = list(texts_of_pipeline())
    assert len(texts) > 3000
    assert [place for place, text in texts if key.search(text.replace("{path}", "path"))] == []


def test_every_parameter_that_pipeline_names_has_a_key():
    names = {
        name for _, text in texts_of_pipeline() for name in re.findall(r"\$\[([a-z_]+(?:\.[a-z_]+)?)\]", text)
    }
    assert len(names) > 50
    for name in names:
        assert key_of(name, None) or key_of(name.split(".")[0], None), name


@pytest.mark.parametrize(
    ("job", "text", "said"),
    [
        ("fit", "$[label], $[labels.time], $[labels]", "log.label, log.labels.time, log.labels.path"),
        ("generate", "$[label], $[labels.time], $[labels]", "data.label, data.labels.time, data.labels.path"),
        ("days", "$[date]=day, $[last]; $[probability]", "window.column=day, window.last; output.column"),
        (
            "score",
            "$[paths], $[params].bins, $[output].mode=replace",
            "log.path, calibrator.params.bins, output.mode=replace",
        ),
        ("compare", "$[params]", "compare.params"),
        (
            "follow",
            "a/$HOME, $1, column $label, $[unknown.name], $[recipe.interval].",
            "a/$HOME, $1, column $label, unknown.name, calibrator.interval.",
        ),
    ],
)
def test_parameters_have_the_names_of_the_jobs_keys(job, text, said):
    token = JOB.set(JOB_CONFIGS[job])
    assert in_keys({"lines": [text]}) == {"lines": [said]}
    JOB.reset(token)


def test_names_of_users_are_no_parameters(place):
    """MongoDB's exports have columns such as $date; a file, a segment or a label may be named so, too."""
    columns = place.predictions()
    columns["$label"], columns["$time"] = columns.pop("label"), np.arange(len(columns["score"])) % 2
    place.write_log(columns)
    done = place.job("fit", "log.label=$label", "log.segment=[$time]", "--json").expect(0)
    assert json.loads(done.stdout)["segments"]["columns"] == ["$time"]
    place.job("fit", "log.label=$date").expect(3, "column '$date' (log.label) is not in any file")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (InputRejectedError("check $[label]"), InputRejectedError, "^check log.label$"),
        (MemoryError("buffer"), TemporaryError, "cut for cluster.memory; lower it, or cluster.workers"),
        (BrokenPipeError("store"), TemporaryError, "broke off"),
    ],
)
def test_errors_of_jobs_say_keys(error, kind, said):
    def fail():
        raise error

    with pytest.raises(kind, match=said):
        call_in_keys(fail)


def test_errors_of_programs_settings_say_keys(tmp_path):
    options = {"s3": {"key": "${NO_SUCH_VARIABLE}"}}
    sections = {"log": {"path": str(tmp_path)}, "store": {"path": str(tmp_path), "table": "ads"}}
    with pytest.raises(ConfigError, match=r"^storage\.options\.s3\.key: "):
        logcal.run("fit", sections | {"storage": {"options": options}})
