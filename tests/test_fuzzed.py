"""No configuration, however odd, ends in a bug, and none says more than a clear error."""

import pytest
from chaos.fuzzed_configurations import campaign

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def base(make_place, tmp_path_factory):
    """Settings that work, on a place with a log and a published table."""
    place = make_place(tmp_path_factory.mktemp("fuzzed"))
    place.write_log(place.predictions(300))
    place.job("fit").expect(0)
    paths = {
        "log.path": place.log,
        "store.path": place.store,
        "output.path": place.output,
        "data.path": place.log,
    }
    own = {
        "store.table": place.table,
        "scratch": place.scratch,
        "cluster.kind": "inline",
        "data.label": "label",
    }
    return {key: str(value) for key, value in {**paths, **own}.items()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("start", range(0, 2000, 500))
def test_no_configuration_is_a_bug(base, tmp_path, monkeypatch, start):
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_EC2_METADATA_DISABLED", "GCE_METADATA_TIMEOUT"):
        monkeypatch.setenv(name, "true" if name.startswith("AWS") else "1")
    codes, bugs = campaign(range(start, start + 500), base, tmp_path)
    assert not bugs, "\n\n".join(bugs)
    assert codes.total() == 500
    assert codes[2] > 100
