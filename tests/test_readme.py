"""The commands and the code in README.md and docs/ run as they are printed."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from common import run_command

import logcal
from jobs.config.loading import known_keys
from jobs.registry import JOBS

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(600),
]  # the first of them waits for all of README's commands

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def shell(commands: str, folder: Path):
    environment = {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder)}
    return run_command("bash", "-euo", "pipefail", "-c", commands, cwd=folder, env=environment)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A folder, empty at first, in which the shell blocks of the first pages have run, in order."""
    folder = tmp_path_factory.mktemp("readme")
    ran = ""
    for document in ("README.md", "docs/start.md", "docs/few-labels.md"):
        for block in blocks(document, "sh"):
            # The pages repeat README's demo, which would find all that it makes.
            if f"\n{block}" in ran:
                continue
            shell(block, folder)
            ran += f"\n{block}"
    return folder


def test_readme_commands_leave_what_readme_says(demo):
    assert (demo / "demo-output" / "report" / "report.html").exists()
    assert (demo / "report" / "report.html").exists()
    assert (demo / "income" / "evaluate" / "report.html").exists()
    of_init = pq.read_table(demo / "income" / "scored")["probability"]
    assert of_init.equals(pq.read_table(demo / "scored")["probability"])
    assert (demo / "report" / "run.json").exists()
    scored = pq.read_table(demo / "scored")
    assert scored.column_names[-2:] == ["probability", "table_version"]
    decided = pq.read_table(demo / "decided")
    assert decided.column_names[-4:] == ["score", "probability", "decision", "table_version"]
    right = decided["decision"].to_numpy() == (decided["label"].to_numpy() == 1)
    assert right.mean() > 0.8
    versions = sorted(p.name for p in (demo / "tables" / "income" / "versions").iterdir())
    assert [name[:7] for name in versions] == ["000001-", "000002-"]
    assert (demo / "tables" / "income" / "CURRENT").read_text().strip() == versions[0]


# Dask's, of pandas.
@pytest.mark.filterwarnings("ignore:The inplace keyword")
@pytest.mark.parametrize(
    "page", ["table-a-day", "labels", "judge", "rare-events", "clusters", "streaming", "faq"]
)
def test_every_block_of_a_page_runs(demo, monkeypatch, page):
    monkeypatch.chdir(demo)
    names: dict = {}
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for language, block in re.findall(r"^```(sh|python)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        if language == "python":
            exec(compile(block, page, "exec"), names)
            continue
        shell(block, demo)


def test_what_was_followed_is_what_score_writes(demo):
    settings = "--set log.path=demo-output/log/held-out --set store.path=tables --set store.table=income"
    shell(f"logcal follow --once {settings} --set output.path=followed-again", demo)
    followed = pq.read_table(demo / "followed-again")
    assert followed["probability"].equals(pq.read_table(demo / "scored")["probability"])


PAGES = [path for path in sorted((ROOT / "docs").glob("*.md")) if "```yaml" in path.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_yaml_of_a_page_has_keys_that_jobs_know(page):
    known = {key for job in JOBS.values() for key in known_keys(job.config_class())}
    for block in blocks(f"docs/{page.name}", "yaml"):
        found = yaml.safe_load(block)
        if isinstance(found, dict) and set(found) <= {key.partition(".")[0] for key in known}:
            assert set(_dotted(found, known)) <= known


def _dotted(found, known, above=""):
    """Paths of a block's keys, down to those that hold a value; what a known key holds is its value."""
    for key, value in found.items():
        path = f"{above}{key}"
        if isinstance(value, dict) and path not in known:
            yield from _dotted(value, known, f"{path}.")
        elif value is not None or path in known:
            yield path


def test_pages_about_python(demo, monkeypatch):
    import matplotlib as mpl

    mpl.use("agg")
    monkeypatch.chdir(demo)
    names: dict = {}
    for page in ("README.md", "docs/python.md"):
        for block in blocks(page, "python"):
            exec(compile(block, page, "exec"), names)
    names["plt"].close("all")
    assert Path("calibration.png").stat().st_size > 10_000
    scored = pq.read_table(demo / "scored")
    assert names["table"].predict(scored["score"].to_numpy()).tolist() == scored["probability"].to_pylist()


def test_commands_for_few_labels(tmp_path):
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    (commands,) = blocks("docs/generate.md", "sh")
    inline = r"\g<0> --set cluster.kind=inline"
    shell(re.sub(r"^logcal \w+", inline, commands, flags=re.MULTILINE), tmp_path)
    assert pq.read_table(tmp_path / "decided").num_rows == 748


@pytest.mark.parametrize(
    ("document", "number"), [(d, i) for d in ("docs/recipes.md",) for i in range(len(blocks(d, "sql")))]
)
def test_sql_gives_what_logcal_gives(demo, document, number, monkeypatch):
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.chdir(demo)
    sql = blocks(document, "sql")[number]
    query = f"SELECT row_id, probability FROM ({sql.strip().rstrip(';')}) ORDER BY row_id"
    found = duckdb.sql(query).fetchnumpy()
    expected = pq.read_table(demo / "demo-output" / "scored").sort_by("row_id")
    assert found["row_id"].tolist() == expected["row_id"].to_pylist()
    assert found["probability"].tolist() == expected["probability"].to_pylist()


@pytest.mark.parametrize("number", range(len(blocks("docs/recipes.md", "sql"))))
def test_sql_at_the_edges(demo, number, monkeypatch):
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.chdir(demo)
    duckdb.sql(
        "COPY (SELECT unnest(['NaN'::DOUBLE, NULL, 'infinity'::DOUBLE, '-infinity'::DOUBLE]) AS score) "
        "TO 'edges.parquet' (FORMAT parquet)"
    )
    sql = blocks("docs/recipes.md", "sql")[number].replace(
        "demo-output/log/held-out/*.parquet", "edges.parquet"
    )
    found = duckdb.sql(f"SELECT score::VARCHAR, probability FROM ({sql.strip().rstrip(';')})").fetchall()
    values = dict(found)
    assert values["nan"] is None
    assert values[None] is None
    table = logcal.load("demo-output/store", "adult-income")
    assert values["inf"] == table.predict(np.inf)
    assert values["-inf"] == table.predict(-np.inf)


def test_recipes_for_dataframes(demo, monkeypatch, capsys):
    pytest.importorskip("polars")
    monkeypatch.chdir(demo)
    names: dict = {}
    for block in blocks("docs/recipes.md", "python"):
        exec(compile(block, "docs/recipes.md", "exec"), names)
    expected = pq.read_table("demo-output/scored")["probability"].to_pylist()
    assert names["log"]["probability"].tolist() == expected
    assert names["frame"]["probability"].to_list() == expected
    assert names["table"].facts.data["rows_used"] > names["count"] > 0
    edges = names["calibrate"]([float("nan"), float("inf"), float("-inf")], names["lookup"])
    table = logcal.load("demo-output/store", "adult-income")
    np.testing.assert_array_equal(edges, table.predict([np.nan, np.inf, -np.inf]))
    assert "auto" in capsys.readouterr().out


def test_methods_in_python(capsys):
    for block in blocks("docs/methods.md", "python"):
        exec(compile(block, "docs/methods.md", "exec"), {})
    assert capsys.readouterr().out.count("[") == 2


def test_links_between_documents_lead_somewhere():
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")]:
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name}: {link}"


# MLflow's own.
@pytest.mark.filterwarnings("ignore")
def test_a_table_in_mlflow(demo, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(demo)
    monkeypatch.syspath_prepend(ROOT / "examples" / "mlflow")
    from log_table import log_table

    names = {"address": log_table("tables", "income", "report")}
    (block,) = blocks("docs/mlflow.md", "python")
    exec(compile(block, "docs/mlflow.md", "exec"), names)
    assert names["probabilities"].tolist() == logcal.load("tables", "income").predict([0.2, 0.93]).tolist()
    (run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert 0.8 < run.data.metrics["auc"] < 1


# The site is built strictly


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    build = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder)
    done = run_command(*build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert "WARNING" not in done.stderr
    return folder


def test_every_page_of_docs_is_in_the_site_and_in_its_navigation(site):
    home = (site / "index.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").exists()
        assert f'href="{page.stem}.html"' in home or page.stem == "index"
    assert (site / "search" / "search_index.json").exists()


def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.glob("*.html"):
        fetched = re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="?(https?://[^"> ]+)', page.read_text())
        assert fetched == [], page.name


def test_the_reference_has_every_public_name_and_key(site):
    names = (site / "reference-python.html").read_text()
    for name in logcal.__all__:
        if name != "measures":
            assert f'id="logcal.{name}"' in names, name
    keys = re.sub(r"<[^>]+>", "", (site / "reference-configuration.html").read_text())
    for key in ("negative_sampling_rate", "on_bad_rows", "score_transform"):
        assert key in keys
    commands = (site / "reference-commands.html").read_text()
    assert "logcal tables rollback" in commands


def test_figures_are_there_in_light_and_dark():
    for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        for figure in re.findall(r"figures/[\w-]+\.svg", page.read_text()):
            assert (ROOT / "docs" / figure).exists(), figure
            other = figure.replace("light", "\0").replace("dark", "light").replace("\0", "dark")
            assert (ROOT / "docs" / other).exists(), other
