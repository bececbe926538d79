"""The repository around the code: one version, the lock, and workflows that call make."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from everything import CHECKS
from mutants import MUTANTS
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from release import problems

import logcal

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def run_lines(node):
    """All `run:` texts below a node of a workflow."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "run":
                yield value
            else:
                yield from run_lines(value)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_only_call_make(path):
    lines = list(run_lines(yaml.safe_load(path.read_text("utf-8"))))
    assert lines
    for line in lines:
        assert re.fullmatch(r"make [\w-]+", line), line
        assert line.removeprefix("make ") in TARGETS


def test_one_version():
    assert PROJECT["dynamic"] == ["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"] == logcal.__version__
    assert f"\n## {logcal.__version__} (" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def requirements(extras):
    """Direct requirements of the project with some extras, those of its own extras resolved."""
    optional = PROJECT["optional-dependencies"]
    for text in [*PROJECT["dependencies"], *(line for extra in extras for line in optional[extra])]:
        requirement = Requirement(text)
        if requirement.name == "logcal":
            yield from requirements(requirement.extras)
        else:
            yield requirement


@pytest.mark.parametrize(
    ("name", "extras"), [("run", ()), ("dev", ("dev",)), ("system", ("dev", "system")), ("docs", ("docs",))]
)
def test_lock_has_what_the_project_requires(name, extras):
    text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
    locked: dict[str, list[str]] = {}
    for package, version in re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==([^\s;\\]+)", text, re.MULTILINE):
        locked.setdefault(canonicalize_name(package), []).append(version)
    for requirement in requirements(extras):
        versions = locked.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement} is not locked: run `make lock`"
        assert all(version in requirement.specifier for version in versions), (requirement, versions)
    assert "://" not in text
    packages = [block for block in text.split("\n") if re.match(r"[\w.-]+(\[[\w,]+\])?==", block)]
    assert all(block.endswith("\\") for block in packages), "expected a hash for each package"


def test_each_dependency_has_a_line_of_its_cost():
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = text.split("## What dependencies cost")[1].split("\n## ")[0]
    named = " ".join(re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE))
    for requirement in requirements(()):
        assert re.search(rf"\b{requirement.name}\b", named), requirement


def test_the_picture_of_rooms_is_that_of_the_contracts():
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "docs" / "rooms.py")
    rooms = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rooms)
    packages, of_container = rooms.contracts()
    assert packages == ["jobs", "pipeline", "logcal", "calibrators"]
    assert len(of_container) >= 3
    for palette in rooms.PALETTES:
        picture = rooms.draw(palette)
        for contract in of_container.values():
            for room in re.findall(r"\w+", " ".join(contract["layers"])):
                assert f">{room}</text>" in picture
        drawn = (ROOT / "docs" / "figures" / f"rooms-{palette}.svg").read_text("utf-8")
        assert drawn == picture, (
            "expected the picture of pyproject.toml's contracts: run python docs/rooms.py"
        )


def test_release_says_what_is_missing():
    log = "# Changes\n\n## 0.1.0 (2026-12-01)\n"
    assert problems("0.1.0", log, "", None, "a" * 40) == []
    assert problems("0.1.0", log, "", "a" * 40, "a" * 40) == []
    assert len(problems("0.2.0", log.replace("2026-12-01", "unreleased"), " M x", "b" * 40, "a" * 40)) == 3


def test_everything_runs_every_target_that_checks():
    others = {
        "demo", "setup", "lint", "types", "lock", "figures", "first-minutes", "reproduce", "release", "everything",
        "coverage", "clean",
    }  # fmt: skip
    assert set(CHECKS) == TARGETS - others


def _luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(
    ("scheme", "backgrounds"), [("default", ("ffffff", "f5f5f5")), ("slate", ("1e2129", "272a35"))]
)
def test_links_of_the_site_can_be_read(scheme, backgrounds):
    """WCAG 2.2 asks for a contrast of 4.5; the backgrounds are the theme's, of text and of code."""
    css = (ROOT / "docs" / "assets" / "site.css").read_text()
    [own] = re.findall(rf"\[data-md-color-scheme={scheme}\]\[[^]]*\] \{{([^}}]*)\}}", css)
    colours = re.findall(r"(?:a-color|accent-fg-color): #([0-9a-f]{6})", own)
    assert len(colours) == (1 if scheme == "default" else 2)
    for colour in colours:
        for background in backgrounds:
            bright, dark = sorted((_luminance(colour), _luminance(background)), reverse=True)
            assert (bright + 0.05) / (dark + 0.05) >= 4.5, (colour, background)


def test_each_mutant_changes_one_place():
    for path, old, *_ in MUTANTS:
        assert (ROOT / path).read_text().count(old) == 1, (path, old)
