"""Text of a report of a fault: configuration without secrets, the plan, the last record of the table."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from jobs.config.jobs import FitConfig
from jobs.config.loading import Values, load_values, read_values
from jobs.run import exit_code_and_message
from logcal.errors import ConfigError
from pipeline.files.records import read_records, to_json
from pipeline.files.storage import HIDDEN, is_secret_name, redacted, remember_urls


def fault_report(files: Sequence[str], settings: Sequence[str], values: Values) -> list[str]:
    """Return the parts of a report as text lines; a part that fails says why.

    values : what the files and settings say
    """
    remember_urls(values.values)
    parts: dict[str, Callable[[], str]] = {
        "configuration": lambda: yaml.safe_dump(_hidden(copy.deepcopy(values.values)), sort_keys=False),
        "plan of fit": lambda: _plan(files, settings),
        "last record": lambda: _last_record(values),
    }
    lines = []
    for title, part in parts.items():
        try:
            text = part()
        except Exception as error:  # noqa: BLE001 - reports what is there
            text = exit_code_and_message(error)[1]
        lines += ["", f"== {title}", *text.rstrip().splitlines()]
    return [redacted(line) for line in lines]


def _hidden(values: dict[str, Any]) -> dict[str, Any]:
    """Replace what may be secret in the options of storage; nothing else of a configuration is."""

    def hide(value: Any, name: str, secret: bool) -> Any:
        secret = secret or is_secret_name(name)
        if isinstance(value, dict):
            return {key: hide(inner, str(key), secret) for key, inner in value.items()}
        if isinstance(value, list):
            return [hide(inner, name, secret) for inner in value]
        return HIDDEN if secret else value

    return {key: hide(value, "", False) if key == "storage" else value for key, value in values.items()}


def _plan(files: Sequence[str], settings: Sequence[str]) -> str:
    from jobs import fit

    # Without provenance, settings that fit does not use are no error.
    values = Values(read_values(files, settings).values)
    return "\n".join(fit.prepare(load_values(FitConfig, values)).plan.lines())


def _last_record(values: Values) -> str:
    from jobs.records import RUNS

    store, table = values.get(("store", "path")), values.get(("store", "table"))
    if store is None or table is None:
        raise ConfigError("store.path, store.table: not given, so there is no record")
    records, _ = read_records(f"{str(store).rstrip('/')}/{table}/{RUNS}")
    return to_json(records[-1]) if records else "none"
