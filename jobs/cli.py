"""The command `logcal`. Imports are lazy: --help needs none of the libraries."""

from __future__ import annotations

import gc
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click

from jobs import commands, interrupts
from jobs.cluster.worker_process import PRELOADED
from jobs.logging_setup import log_to_stderr
from jobs.registry import JOBS, Job

_processes = sys.modules.get("multiprocessing")
if _processes is not None and _processes.parent_process() is not None:
    # Imported by a worker process, as its parent's main module.
    interrupts.ignore_interrupts()
else:
    PRELOADED.append(__name__)

# OpenBLAS, once in numpy and once in scipy, starts a thread a core as it is loaded, which wait at full speed. No job
# multiplies matrices, and classifiers are held to one thread in any case.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Pydantic reads the facts of every package that is installed, to see whether any is a plugin of its.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

_HELP = """Calibrate binary classifiers from their Parquet prediction logs.

\b
  logcal demo
  logcal fit --set log.path=log/ --set store.path=store --set store.table=ads
"""

_EPILOG = """\b
Exit codes: 0 done, 1 bug, 2 usage or configuration, 3 input rejected,
4 a check failed, 75 temporary, 99 nothing to do, 130/143 interrupted."""

_CONFIG = click.option(
    "--config", "files", multiple=True, metavar="FILE", help="YAML file; later ones go over earlier ones."
)
_SET = "Set one key; goes over all files."
_DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Check all, read only footers, say what would happen."
)
_GRAPH = click.option(
    "--graph", metavar="FILE", help="With --dry-run: draw the Dask graph (.svg, .png, .dot)."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


class _Logcal(click.Group):
    """Says what is wrong with the usage as jobs say their errors: one line, and as JSON where that is wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in the order in which they were added."""
        return list(self.commands)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run the command and end the process."""
        given = sys.argv[1:] if args is None else list(args)
        try:
            code = super().main(given, prog_name, complete_var, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            _refuse(error, as_json="--json" in given)
        except click.Abort:
            sys.stderr.write(f"{self.name}: interrupted; nothing was published\n")
            sys.exit(130)
        sys.exit(code)


def _refuse(error: click.ClickException, as_json: bool) -> NoReturn:
    from jobs.run import show

    context = getattr(error, "ctx", None)
    name = context.command_path if context else "logcal"
    message = f"{error.format_message()} See `{name} --help`."
    sys.stderr.write(f"{name}: {message}\n")
    if as_json:
        show({"error": message, "exit_code": error.exit_code}, [], as_json)
    sys.exit(error.exit_code)


def run() -> NoReturn:
    """Be the command's process."""
    try:
        main(prog_name="logcal")
    finally:
        interrupts.ended()
    raise AssertionError("a command ends the process")


@click.group(
    "logcal",
    cls=_Logcal,
    help=_HELP,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.version_option(package_name="logcal")
def main() -> None:
    """Set up what all commands need."""
    log_to_stderr()


def _add_job(job: Job) -> None:
    def command(
        files: tuple[str, ...],
        settings: tuple[str, ...],
        dry_run: bool,
        graph: str | None,
        as_json: bool,
        **more: Any,
    ) -> None:
        from jobs.run import run_job

        short = [
            f"{shortcut.key}={more[shortcut.option.lstrip('-')]}"
            for shortcut in job.shortcuts
            if more[shortcut.option.lstrip("-")]
        ]
        _leave(run_job(job, files, [*settings, *short], dry_run=dry_run, as_json=as_json, graph=graph))

    setting = click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY.PATH=VALUE",
        help=_SET,
        shell_complete=commands.complete_setting(job.name),
    )
    for option in (_JSON, _GRAPH, _DRY_RUN, setting, _CONFIG):
        command = option(command)
    for shortcut in job.shortcuts:
        extra = {"metavar": shortcut.metavar} if shortcut.metavar else {"is_flag": True}
        command = click.option(shortcut.option, help=shortcut.help, **extra)(command)
    main.command(job.name, help=_help(job), short_help=job.help)(command)


def _leave(code: int) -> NoReturn:
    # Otherwise the interpreter looks through all that the libraries made, for some tenths of a second.
    gc.freeze()
    sys.exit(code)


def _help(job: Job) -> str:
    start = f"  logcal {job.name} "
    # Two columns less than the screen: click indents by two.
    example = textwrap.wrap(
        job.example.replace("--set ", "--set\0"),
        78 - len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = [job.help, "", "\b", f"{start}{example[0]}", *(" " * len(start) + line for line in example[1:])]
    lines = [line.replace("\0", " ") for line in lines]
    if job.required:
        lines += [
            "",
            f"Required keys: {', '.join(job.required)}. All keys, with meanings: logcal config {job.name}.",
        ]
    return "\n".join(lines)


for _job in JOBS.values():
    _add_job(_job)


@main.group()
def tables() -> None:
    """Look after published tables and their versions."""


_STORE = click.option("--store", required=True, metavar="PATH", help="Folder of the published tables.")
_TABLE = click.option("--table", required=True, metavar="NAME", help="Name of the table.")


def _table_command(
    name: str,
    action: Callable[..., Any],
    as_json: bool,
    changed: tuple[str, str] | None = None,
    group: str = "tables",
) -> None:
    """Changed : store and table of a command that changes something, which leaves a record."""
    from jobs.records import Attempt
    from jobs.run import guarded, show

    attempt = None if changed is None else Attempt.of_table(f"{group}-{name}", *changed)

    def run() -> None:
        from jobs import tables as actions

        outcome = action(actions)
        if attempt is not None:
            attempt.outcome = outcome
        show(outcome.summary, outcome.lines, as_json)

    code = guarded(f"logcal {group} {name}", run, as_json, attempt)
    if attempt is not None:
        attempt.end(code)
    _leave(code)


@tables.command("list", short_help="List all tables, or all versions of one.")
@_STORE
@click.option("--table", metavar="NAME", help="Name of the table; without it all are listed.")
@_JSON
def list_versions(store: str, table: str | None, as_json: bool) -> None:
    """List all versions of a table, oldest first; a star marks the current one."""
    _table_command("list", lambda actions: actions.list_versions(store, table), as_json)


@tables.command(short_help="Show VERSION, or the current one.")
@_STORE
@_TABLE
@_JSON
@click.argument("version", required=False)
def show(store: str, table: str, version: str | None, as_json: bool) -> None:
    """Show VERSION, or the current one: what it was fitted to, and how."""
    _table_command("show", lambda actions: actions.show(store, table, version), as_json)


@tables.command(short_help="Print the SQL that applies VERSION, or the current one.")
@_STORE
@_TABLE
@click.option("--dialect", required=True, metavar="NAME", help="duckdb, spark, postgres, ...")
@click.option("--inline", is_flag=True, help="Write the table into the query.")
@click.option("--log", default="log", metavar="NAME", show_default=True, help="The log's table.")
@click.option("--score", default="score", metavar="NAME", show_default=True, help="Its score column.")
@_JSON
@click.argument("version", required=False)
def sql(
    store: str,
    table: str,
    version: str | None,
    dialect: str,
    inline: bool,
    log: str,
    score: str,
    as_json: bool,
) -> None:
    """Print the query that adds the probability to a log's rows, with VERSION or the current one."""
    _table_command(
        "sql", lambda actions: actions.sql(store, table, version, dialect, inline, log, score), as_json
    )


@tables.command(short_help="Tell what was done with the table.")
@_STORE
@_TABLE
@_JSON
def history(store: str, table: str, as_json: bool) -> None:
    """Tell what was done with the table: every attempt of a job, with exit code, rows and measures."""
    _table_command("history", lambda actions: actions.history(store, table), as_json)


@tables.command(short_help="Make VERSION current again, or the one before.")
@_STORE
@_TABLE
@_JSON
@click.argument("version", required=False)
def rollback(store: str, table: str, version: str | None, as_json: bool) -> None:
    """Make VERSION current again; without it, the one before the current."""
    _table_command(
        "rollback", lambda actions: actions.rollback(store, table, version), as_json, (store, table)
    )


@tables.command(short_help="Make VERSION current, such as a candidate.")
@_STORE
@_TABLE
@_JSON
@click.argument("version")
def promote(store: str, table: str, version: str, as_json: bool) -> None:
    """Make VERSION current, such as one that was kept as a candidate."""
    _table_command("promote", lambda actions: actions.promote(store, table, version), as_json, (store, table))


@tables.command(short_help="Say what lies between versions OLD and NEW.")
@_STORE
@_TABLE
@_JSON
@click.option("--report", "--output", metavar="FILE", help="Write a page with both maps there (HTML).")
@click.argument("old")
@click.argument("new")
def diff(store: str, table: str, old: str, new: str, report: str | None, as_json: bool) -> None:
    """Say what lies between versions OLD and NEW: facts, probabilities, segments."""
    _table_command("diff", lambda actions: actions.diff(store, table, old, new, report), as_json)


@tables.command(short_help="Remove old versions.")
@_STORE
@_TABLE
@_JSON
@click.option(
    "--keep", type=click.IntRange(min=1), required=True, metavar="N", help="How many of the newest stay."
)
def prune(store: str, table: str, keep: int, as_json: bool) -> None:
    """Remove all versions but the newest N, the current one and its predecessor."""
    _table_command("prune", lambda actions: actions.prune(store, table, keep), as_json, (store, table))


@main.group()
def days() -> None:
    """Decide which days of a table's log are fitted to."""


_DAY = click.argument("day")
_REASON = click.option("--reason", required=True, metavar="TEXT", help="Why, for whoever asks later.")


def _change_day(
    store: str, table: str, day: str, decision: str | None, reason: str, as_json: bool, name: str
) -> None:
    from jobs import days as actions

    _table_command(
        name, lambda _: actions.change(store, table, day, decision, reason), as_json, (store, table), "days"
    )


@days.command("list", short_help="List days that are decided on or set aside.")
@_STORE
@_TABLE
@_JSON
def list_days(store: str, table: str, as_json: bool) -> None:
    """List the days that a person decided on, and those that the newest fit set aside, with reasons."""
    from jobs import days as actions

    _table_command("list", lambda _: actions.list_days(store, table), as_json, None, "days")


@days.command(short_help="Leave DAY out of fits.")
@_STORE
@_TABLE
@_REASON
@_JSON
@_DAY
def exclude(store: str, table: str, reason: str, as_json: bool, day: str) -> None:
    """Leave DAY, such as 2026-01-31, out of fits, until its files change."""
    _change_day(store, table, day, "exclude", reason, as_json, "exclude")


@days.command(short_help="Let DAY into fits, however strange it looks.")
@_STORE
@_TABLE
@_REASON
@_JSON
@_DAY
def include(store: str, table: str, reason: str, as_json: bool, day: str) -> None:
    """Let DAY, such as 2026-01-31, into fits, however strange it looks, until its files change."""
    _change_day(store, table, day, "include", reason, as_json, "include")


@days.command(short_help="Take a decision on DAY back.")
@_STORE
@_TABLE
@_JSON
@_DAY
def judge(store: str, table: str, as_json: bool, day: str) -> None:
    """Take the decision on DAY back: the next fit judges it."""
    _change_day(store, table, day, None, "", as_json, "judge")


commands.add_to(main)
