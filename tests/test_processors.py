"""How many processors a process may use."""

import os

import pytest

from pipeline.execution import processors as module


@pytest.fixture
def groups(monkeypatch, tmp_path):
    """A folder in place of the one where Linux shows control groups, on a machine of 8 processors."""
    monkeypatch.setattr(module, "_GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000\n", 8), ("250000 100000\n", 3), ("10000 100000\n", 1), ("1600000 100000\n", 8), ("", 8)],
)
def test_a_quota_of_the_control_group_counts(groups, quota, expected):
    (groups / "cpu.max").write_text(quota)
    assert module.processors() == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1\n", 8), ("200000\n", 2), ("50000\n", 1)])
def test_so_does_one_of_the_first_version(groups, quota, expected):
    (groups / "cpu").mkdir()
    (groups / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (groups / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert module.processors() == expected


def test_without_control_groups_the_affinity_alone_counts(groups, monkeypatch):
    assert module.processors() == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3}, raising=False)
    assert module.processors() == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert module.processors() == 1
