"""Versions, the pointer to the current one, and what survives trouble."""

import hashlib
import json
import uuid

import fsspec
import pytest

from logcal.errors import ConfigError, InputRejectedError
from pipeline.table.store import TableStore
from tests.manifests import FITTED, WRONG, with_value


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    path = str(tmp_path / "store") if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    return TableStore(path, "ads")


def publish(store, content=b"x", **more):
    return store.publish(
        hashlib.sha256(content).hexdigest(),
        lambda name: content + name.encode(),
        {**FITTED, "run_id": hashlib.sha256(content).hexdigest(), **more},
    )


def test_versions_follow_each_other(store):
    assert store.current() is None
    assert store.names() == []
    first, second = publish(store), publish(store, b"y", run_id="r2")
    assert [v.name for v in store.versions()] == [first.name, second.name] == store.names()
    assert first.name.startswith("000001-")
    assert second.name.startswith("000002-")
    assert store.current().name == second.name
    assert second.manifest["previous_version"] == first.name
    assert store.filesystem.cat_file(second.lookup_path) == b"y" + second.name.encode()
    assert store.find_run("r2").name == second.name
    assert store.find_run("r3") is None
    store.verify(second)


def test_a_version_says_where_it_is_to_those_who_do_not_know_the_store(store):
    published = publish(store)
    for version in (published, store.current()):
        with fsspec.open(version.lookup_path) as file:
            assert file.read() == b"x" + version.name.encode()


def test_a_damaged_version_is_not_gone_back_to(store):
    first, second = publish(store), publish(store, b"y")
    store.filesystem.pipe_file(first.lookup_path, b"damaged")
    with pytest.raises(InputRejectedError, match="expected the sha256"):
        store.rollback(first.name)
    assert store.current().name == second.name


def test_a_current_that_names_nothing(store):
    publish(store)
    store.filesystem.pipe_file(f"{store.root}/CURRENT", b"000007-gone\n")
    with pytest.raises(InputRejectedError, match="names version '000007-gone', which is not there; found"):
        store.current()
    assert store.rollback(store.names()[0])[1].name == store.names()[0]
    assert store.current().name == store.names()[0]


def test_a_line_of_the_journal_that_a_crash_cut_off_is_passed_over_and_a_damaged_one_is_not(tmp_path):
    """At any byte: the same run, run again, goes on."""
    store, journal = TableStore(str(tmp_path), "ads"), tmp_path / "ads" / "journal.jsonl"
    first, second = publish(store), publish(store, b"y")
    lines = journal.read_bytes().splitlines(keepends=True)
    for cut in range(len(lines[1])):
        journal.write_bytes(lines[0] + lines[1][:cut])
        (tmp_path / "ads" / "CURRENT").write_text(first.name)
        store.make_current(second)
        assert [entry.version for entry in store.journal.entries()][:1] == [first.name]
        assert store.rollback()[1].name == first.name
    journal.write_bytes(lines[0].replace(b"0", b"1", 1) + lines[1])
    with pytest.raises(InputRejectedError, match=r"found line 1 of journal\.jsonl damaged .* restore it"):
        store.rollback()


def test_no_version_yet(store):
    with pytest.raises(InputRejectedError, match="run `logcal fit` first"):
        store.version()


def test_a_version_without_a_manifest_does_not_exist(store):
    version = publish(store)
    store.filesystem.rm(f"{version.folder}/manifest.json")
    assert store.names() == []


def test_a_manifest_of_another_format_is_refused(store):
    version = publish(store)
    path = f"{version.folder}/manifest.json"
    store.filesystem.pipe_file(path, json.dumps({**version.manifest, "format_version": "99"}).encode())
    with pytest.raises(InputRejectedError, match="expected format_version 1, 2, 3 or 4, found 99"):
        store.version()
    store.filesystem.pipe_file(path, b"{")
    with pytest.raises(InputRejectedError, match="expected JSON, found a damaged file"):
        store.version()


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_a_manifest_with_something_else_than_expected(tmp_path, path, value):
    store = TableStore(str(tmp_path), "ads")
    version = publish(store)
    written = tmp_path / "ads" / "versions" / version.name / "manifest.json"
    written.write_bytes(with_value(version.manifest, path, value))
    with pytest.raises(InputRejectedError, match=r"manifest\.json: expected .*, found .*: \w+"):
        store.version()


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"[" * 200_000, "nested too deeply"), (b" " * (64 << 20) + b"{}", "at most 67,108,864")],
)
def test_a_manifest_without_bounds(tmp_path, content, said):
    store = TableStore(str(tmp_path), "ads")
    name = publish(store).name
    (tmp_path / "ads" / "versions" / name / "manifest.json").write_bytes(content)
    with pytest.raises(InputRejectedError, match=said):
        store.version()


@pytest.mark.parametrize("key", ["previous_version", "files", *FITTED])
def test_a_manifest_without_a_key(tmp_path, key):
    store = TableStore(str(tmp_path), "ads")
    version = publish(store)
    manifest = {name: value for name, value in version.manifest.items() if name != key}
    manifest.pop("checksum", None)
    (tmp_path / "ads" / "versions" / version.name / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputRejectedError, match=f"expected {key} to be .*, found nothing"):
        store.version()


def test_the_score_table_is_kept_with_its_checksums(store, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "part-00000.parquet").write_bytes(b"part")
    version = store.publish("f" * 64, lambda name: b"x", FITTED, kept)
    assert version.manifest["files"]["score_table/part-00000.parquet"] == {
        "bytes": 4,
        "sha256": hashlib.sha256(b"part").hexdigest(),
    }
    assert store.filesystem.cat_file(f"{version.folder}/score_table/part-00000.parquet") == b"part"


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b"])
def test_names_that_are_not_plain(tmp_path, name):
    with pytest.raises(ConfigError, match="choose a plain name"):
        TableStore(str(tmp_path), name)


def test_a_store_that_cannot_be_opened_or_written_to(tmp_path):
    with pytest.raises(ConfigError, match="cannot open"):
        TableStore("nosuchprotocol://x", "ads")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"the file .* in the way"):
        TableStore(str(tmp_path / "file"), "ads").check_writable()
