"""The site is built strictly: no page, link or name leads nowhere."""

import os
import re
import sys
from pathlib import Path

import pytest
from common import run_command

import logcal

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")
pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
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
