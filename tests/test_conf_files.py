"""conf/ says of every key what the models say."""

from pathlib import Path

import pytest

from jobs.config.rendering import conf_files

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", sorted(conf_files()))
def test_a_file_is_the_models_own(name):
    assert (ROOT / "conf" / name).read_text() == conf_files()[name], "run `python -m jobs.config.rendering`"


def test_there_are_no_other_files():
    assert sorted(str(p.relative_to(ROOT / "conf")) for p in (ROOT / "conf").rglob("*.yaml")) == sorted(
        conf_files()
    )
