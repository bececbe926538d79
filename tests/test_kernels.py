"""Caches of compiled kernels."""

import os

from calibrators import _kernels


def test_caches_older_than_any_source_are_dropped(tmp_path):
    (tmp_path / "__pycache__").mkdir()
    files = {
        name: tmp_path / name for name in ("a.py", "b.py", "__pycache__/a.old.nbi", "__pycache__/a.new.nbc")
    }
    for path in files.values():
        path.write_text("")
    for name, seconds in (
        ("a.py", 100),
        ("b.py", 200),
        ("__pycache__/a.old.nbi", 150),
        ("__pycache__/a.new.nbc", 250),
    ):
        os.utime(files[name], (seconds, seconds))
    assert _kernels._drop_stale_caches(tmp_path) == 1
    assert sorted(p.name for p in tmp_path.rglob("*.nb*")) == ["a.new.nbc"]
