"""The command `logcal`. Imports are lazy: --help needs none of the libraries."""

from __future__ import annotations

import gc
import logging
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import click

from jobs import interrupts
from jobs.cluster.worker_process import PRELOADED
from jobs.progress import log_to_stderr
from jobs.registry import JOBS, Job

if TYPE_CHECKING:
    from jobs.outcome import Outcome

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
    "--config", "files", multiple=True, metavar="FILE", help="YAML file; later files override earlier ones."
)
_SET: Any = {"multiple": True, "metavar": "KEY.PATH=VALUE", "help": "Set one key; overrides all files."}
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Check all without reading rows; print the plan.")
_GRAPH = click.option(
    "--graph", metavar="FILE", help="With --dry-run: draw the Dask graph (.svg, .png, .dot)."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


class _Logcal(click.Group):
    """Report usage errors like job errors: in one line, and as JSON if asked for."""

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


def _complete_setting(name: str) -> Callable[..., Any]:
    """Complete --set of a job: its keys, and the values of keys that have few."""

    def complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
        from jobs.config.loading import known_keys
        from jobs.registry import JOBS

        key, equals, value = begun.partition("=")
        choices = known_keys(JOBS[name].config_class())
        if equals:
            return [f"{key}={choice}" for choice in choices.get(key, ()) if choice.startswith(value)]
        return [f"{known}=" for known in choices if known.startswith(key)]

    return complete


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

    setting = click.option("--set", "settings", **_SET, shell_complete=_complete_setting(job.name))
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


def _command(group: click.Group, short: str, *options: Any, changes: bool = False) -> Callable[[Any], None]:
    """Make a command of a function whose outcome is shown. changes : whether it changes a table, which is recorded."""

    def add(function: Callable[..., Outcome]) -> None:
        name = function.__name__.strip("_").partition("_")[0]
        path = "logcal" if group is main else f"logcal {group.name}"

        def command(as_json: bool, **given: Any) -> None:
            from jobs.records import Attempt
            from jobs.run import guarded, show

            attempt = None
            if _TABLE_FILES in options:
                known = partial(_find_table, given, required=_TABLE in options)
                if code := guarded(f"{path} {name}", known, as_json):
                    _leave(code)
            if changes:
                attempt = Attempt.of_table(f"{group.name}-{name}", given["store"], given["table"])

            def run() -> None:
                outcome = function(**given)
                if attempt is not None:
                    attempt.outcome = outcome
                show(outcome.summary, outcome.lines, as_json)

            code = guarded(f"{path} {name}", run, as_json, attempt)
            if attempt is not None:
                attempt.end(code)
            _leave(code)

        made: Any = command
        for option in (_JSON, *reversed(options)):
            made = option(made)
        group.command(name, short_help=short, help=function.__doc__)(made)

    return add


@main.group("tables")
def _tables() -> None:
    """List, promote, roll back and prune published versions."""


@main.group("days")
def _days() -> None:
    """List, exclude and include the days of a table's log."""


def _actions() -> Any:
    from jobs import tables

    return tables


def _find_table(given: dict[str, Any], required: bool) -> None:
    """Put the store and the table that a configuration names among a command's arguments."""
    files, store, table = given.pop("files"), given["store"], given["table"]
    if files or store is None or (required and table is None):
        given["store"], given["table"] = _actions().named(files, store, table, required=required)


_STORE = click.option("--store", metavar="PATH", help="Folder of the published tables.")
_TABLE = click.option("--table", metavar="NAME", help="Name of the table.")
_TABLE_FILES = click.option(
    "--config", "files", multiple=True, metavar="FILE", help="A job's configuration: its store and table."
)
_ANY_TABLE = click.option("--table", metavar="NAME", help="Name of the table; without it all are listed.")
_VERSION = click.argument("name", metavar="[VERSION]", required=False)
_OF_TABLE = (_STORE, _TABLE, _TABLE_FILES)
_REASON = click.option("--reason", required=True, metavar="TEXT", help="The reason, kept with the decision.")
_DAY = (*_OF_TABLE, click.argument("day"))


@_command(_tables, "List all tables, or all versions of one.", _STORE, _ANY_TABLE, _TABLE_FILES)
def list_versions(**given: Any) -> Outcome:
    """List all versions of a table, oldest first; a star marks the current one."""
    return _actions().list_versions(**given)


@_command(_tables, "Show VERSION, or the current one.", *_OF_TABLE, _VERSION)
def show(**given: Any) -> Outcome:
    """Show VERSION, or the current one: what it was fitted to, and how."""
    return _actions().show(**given)


@_command(
    _tables,
    "Print the SQL that applies VERSION, or the current one.",
    *_OF_TABLE,
    click.option("--dialect", required=True, metavar="NAME", help="duckdb, spark, postgres, ..."),
    click.option("--inline", is_flag=True, help="Write the table into the query."),
    click.option(
        "--log",
        default="log",
        metavar="NAME",
        show_default=True,
        help="The log's table, or the path of a .parquet file.",
    ),
    click.option("--score", default="score", metavar="NAME", show_default=True, help="Its score column."),
    _VERSION,
)
def sql(**given: Any) -> Outcome:
    """Print the query that adds the probability to a log's rows, with VERSION or the current one."""
    return _actions().sql(**given)


@_command(_tables, "List every attempt of a job on the table.", *_OF_TABLE)
def history(**given: Any) -> Outcome:
    """List every attempt of a job on the table, with exit code, rows and measures."""
    return _actions().history(**given)


@_command(_tables, "Make VERSION current again, or the one before.", *_OF_TABLE, _VERSION, changes=True)
def rollback(**given: Any) -> Outcome:
    """Make VERSION current again; without it, the one before the current."""
    return _actions().rollback(**given)


@_command(
    _tables,
    "Make VERSION live, such as a saved candidate.",
    *_OF_TABLE,
    click.argument("name", metavar="VERSION"),
    changes=True,
)
def promote(**given: Any) -> Outcome:
    """Make VERSION live, also a candidate that a fit only saved."""
    return _actions().promote(**given)


@_command(
    _tables,
    "Compare versions OLD and NEW.",
    *_OF_TABLE,
    click.option("--report", metavar="FILE", help="Draw both versions in an HTML page, FILE."),
    click.option("--output", metavar="FILE", hidden=True),
    click.argument("old"),
    click.argument("new"),
)
def diff(report: str | None, output: str | None, **given: Any) -> Outcome:
    """Compare versions OLD and NEW: facts, probabilities, segments."""
    if output is not None:
        logging.getLogger("logcal").info("--output: this option is called --report now")
    return _actions().diff(**given, report=report or output)


_KEEP: Any = {
    "type": click.IntRange(min=1),
    "required": True,
    "metavar": "N",
    "help": "How many of the newest stay.",
}


@_command(_tables, "Remove old versions.", *_OF_TABLE, click.option("--keep", **_KEEP), changes=True)
def prune(**given: Any) -> Outcome:
    """Remove all versions but the newest N, the current one and its predecessor."""
    return _actions().prune(**given)


@_command(_days, "List the days that are excluded, included or set aside.", *_OF_TABLE)
def list_days(**given: Any) -> Outcome:
    """List the days that a person decided on, and those that the newest fit set aside, with reasons."""
    return _actions().list_days(**given)


@_command(_days, "Leave DAY out of fits.", *_DAY, _REASON, changes=True)
def exclude(**given: Any) -> Outcome:
    """Leave DAY, such as 2026-01-31, out of fits, until its files change."""
    return _actions().decide_on(**given, decision="exclude")


@_command(_days, "Let DAY into fits, however strange it looks.", *_DAY, _REASON, changes=True)
def include(**given: Any) -> Outcome:
    """Let DAY, such as 2026-01-31, into fits, however strange it looks, until its files change."""
    return _actions().decide_on(**given, decision="include")


@_command(_days, "Undo exclude or include of DAY.", *_DAY, changes=True)
def judge(**given: Any) -> Outcome:
    """Undo `exclude` or `include` of DAY: the next fit judges the day itself."""
    return _actions().decide_on(**given)


# The commands of the first minutes.


def _names(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    from jobs.config.rendering import conf_files

    return [name for name in (file.removesuffix(".yaml") for file in conf_files()) if name.startswith(begun)]


@_command(
    main,
    "Print a job's configuration: every key, commented.",
    click.argument("name", required=False, shell_complete=_names),
)
def config(name: str | None) -> Outcome:
    """Print the configuration NAME: every key with its meaning and default.

    \b
      logcal config fit > fit.yaml
      logcal config cluster/slurm > slurm.yaml

    Without NAME: list all names.
    """  # noqa: D301
    from jobs.config.rendering import show_configuration

    return show_configuration(name)


@_command(
    main,
    "Write a configuration for a log from its columns.",
    click.argument("log"),
    click.argument("folder", default="."),
    click.option("--daily", is_flag=True, help="For a log of days: day.yaml, and day.sh to run once a day."),
    click.option("--set", "settings", **_SET),
)
def init(**given: Any) -> Outcome:
    """Write one configuration for LOG, ready to run, to FOLDER (default: here).

    \b
      logcal init demo-output/log/calibration income
      logcal init --daily /data/log ads

    Finds the columns that can be the score, the label, a weight, a date or a
    segment; reads only the Parquet footers. One file serves all jobs; nothing is
    overwritten.
    """  # noqa: D301
    from jobs import init

    return init.init(**given)


@_command(
    main,
    "Check the machine, the cluster and the storage.",
    _CONFIG,
    click.option("--set", "settings", **_SET),
)
def doctor(**given: Any) -> Outcome:
    """Look at versions, compiled code, memory, scratch space, cluster, store, log.

    \b
      logcal doctor
      logcal doctor --config fit.yaml --config slurm.yaml

    Takes any job's configuration and lists all obstacles at once.
    """  # noqa: D301
    from jobs.doctor import examine

    return examine(**given)


@_command(main, "Compile all code in advance.")
def warm() -> Outcome:
    """Compile all code in advance, and keep it.

    \b
      logcal warm
      LOGCAL_CACHE=/opt/logcal logcal warm

    Run it once after an installation, or when an image is built; otherwise each
    kind of job compiles its code when it first runs. It takes some minutes on
    one processor; a minute if nothing is left to compile.
    """  # noqa: D301
    from jobs import warm

    return warm.warm()


@main.command("completion", short_help="Print a script that completes commands and keys.")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def _completion(shell: str) -> None:
    """Print a script that makes SHELL complete commands, options and the keys of --set.

    \b
      eval "$(logcal completion bash)"                         in ~/.bashrc
      eval "$(logcal completion zsh)"                          in ~/.zshrc
      logcal completion fish > ~/.config/fish/completions/logcal.fish
    """  # noqa: D301
    from click.shell_completion import get_completion_class

    context = click.get_current_context().find_root()
    found = get_completion_class(shell)
    assert found is not None
    script = found(context.command, {}, "logcal", "_LOGCAL_COMPLETE").source()
    if shell == "bash":
        # A key is followed by its value, not by a space.
        script = script.replace(
            "    return 0\n", "    [[ ${COMPREPLY-} == *= ]] && compopt -o nospace\n    return 0\n", 1
        )
    click.echo(script)
