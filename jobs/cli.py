"""The command `logcal`. Imports are lazy: --help needs none of the libraries."""

from __future__ import annotations

import gc
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from jobs import interrupts
from jobs.cluster.worker_process import PRELOADED
from jobs.progress import log_to_stderr
from jobs.registry import JOBS, Job
from logcal.version import __version__

if TYPE_CHECKING:
    from jobs.outcome import Outcome

_processes = sys.modules.get("multiprocessing")
if _processes is not None and _processes.parent_process() is not None:
    # Imported by a worker process, as its parent's main module.
    interrupts.ignore_interrupts()
else:
    PRELOADED.append(__name__)

# numpy and scipy each load an OpenBLAS, which starts one busy-waiting thread per core. No job multiplies matrices, and
# classifiers are trained on one thread.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Otherwise Pydantic reads the metadata of all installed packages to look for plugins.
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
_EACH = "Run once for each FILE, on one cluster."
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


class _Logcal(click.Group):
    """Reports usage errors like job errors: in one line, and with --json as JSON."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in the order in which they were added."""
        return list(self.commands)

    def main(self, args: Sequence[str] | None = None, *parameters: Any, **options: Any) -> NoReturn:
        """Run the command and end the process."""
        arguments = sys.argv[1:] if args is None else list(args)
        try:
            code = super().main(arguments, *parameters, **{**options, "standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            _exit_with_usage_error(error, as_json="--json" in arguments)
        except click.Abort:
            sys.stderr.write(f"{self.name}: interrupted; nothing was published\n")
            sys.exit(130)
        sys.exit(code)


def _exit_with_usage_error(error: click.ClickException, as_json: bool) -> NoReturn:
    from jobs.run import show

    context = getattr(error, "ctx", None)
    name = context.command_path if context else "logcal"
    message = f"{error.format_message()} See `{name} --help`."
    sys.stderr.write(f"{name}: {message}\n")
    if as_json:
        show({"error": message, "exit_code": error.exit_code}, [], as_json)
    sys.exit(error.exit_code)


def run() -> NoReturn:
    """Run the command line and end the process."""
    _replace_closed_streams()
    interrupts.own_process()
    try:
        main(prog_name="logcal")
    finally:
        interrupts.ignore_until_exit()
    raise AssertionError("a command ends the process")


def _replace_closed_streams() -> None:
    """Open the null device for standard streams that are closed, as daemons do: no stream is needed to run.

    Otherwise Python has no object for them, and the next file that is opened gets their descriptor.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is not None:
            continue
        stream = open(os.devnull, mode)  # noqa: PTH123, SIM115 - open until the process ends
        if stream.fileno() == number:
            os.set_inheritable(number, True)  # worker processes have it, too
        setattr(sys, name, stream)


@click.group(
    "logcal",
    cls=_Logcal,
    help=_HELP,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.version_option(__version__)
def main() -> None:
    """Set up logging for all commands."""
    log_to_stderr()


def _complete_setting(name: str) -> Callable[..., Any]:
    """Return a function that completes --set of a job: keys, and values of keys with a fixed set of values."""

    def complete(context: click.Context, parameter: click.Parameter, prefix: str) -> list[str]:
        from jobs.config.loading import known_keys
        from jobs.registry import JOBS

        key, equals, value = prefix.partition("=")
        choices = known_keys(JOBS[name].config_class())
        if equals:
            return [f"{key}={choice}" for choice in choices.get(key, ()) if choice.startswith(value)]
        return [f"{choice}=" for choice in choices if choice.startswith(key)]

    return complete


def _add_job(job: Job) -> None:
    def command(
        files: tuple[str, ...],
        settings: tuple[str, ...],
        dry_run: bool,
        graph: str | None,
        as_json: bool,
        **options: Any,
    ) -> None:
        each, each_files = options.pop("each", False), options.pop("each_files", ())
        _check_each(each, each_files, graph)
        from jobs.each import run_each
        from jobs.run import run_job

        names = {shortcut.key: shortcut.option.lstrip("-").replace("-", "_") for shortcut in job.shortcuts}
        values = {key: options[name] for key, name in names.items()}
        short = [f"{key}={value}" for key, value in values.items() if value]
        settings = (*settings, *short)
        if each:
            _exit(run_each(job, each_files, files, settings, dry_run=dry_run, as_json=as_json))
        _exit(run_job(job, files, settings, dry_run=dry_run, as_json=as_json, graph=graph))

    setting = click.option("--set", "settings", **_SET, shell_complete=_complete_setting(job.name))
    for option in (_JSON, _GRAPH, _DRY_RUN, setting, _CONFIG):
        command = option(command)
    for shortcut in job.shortcuts:
        extra = {"metavar": shortcut.metavar} if shortcut.metavar else {"is_flag": True}
        command = click.option(shortcut.option, help=shortcut.help, **extra)(command)
    if job.each:
        command = click.option("--each", is_flag=True, help=_EACH)(command)
        command = click.argument("each_files", nargs=-1, metavar="[FILE]...")(command)
    group: click.Group = main
    name = job.name
    if job.command:
        group, name = _days, job.command.rpartition(" ")[2]
        main.add_command(group)
    group.command(name, help=_help(job), short_help=job.help)(command)


def _check_each(each: bool, files: Sequence[str], graph: str | None) -> None:
    """Raise UsageError if --each has no files, or files have no --each."""
    if files and not each:
        raise click.UsageError(
            f"Got unexpected extra argument ({files[0]}): expected --config or --each before it."
        )
    if each and not files:
        raise click.UsageError("--each: expected configuration files after it, found none.")
    if each and graph is not None:
        raise click.UsageError("--graph: draws one job: expected no --each with it.")


def _exit(code: int) -> NoReturn:
    # Otherwise the last garbage collection visits all objects of the libraries, which takes some tenths of a second.
    gc.freeze()
    sys.exit(code)


def _help(job: Job) -> str:
    start = f"  logcal {job.command or job.name} "
    # Two columns narrower than the screen, since click indents by two.
    example = textwrap.fill(
        job.example.replace("--set ", "--set\0"),
        78,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = [job.help, "", "\b", example.replace("\0", " ")]
    if job.required:
        lines += [
            "",
            f"Required keys: {', '.join(job.required)}. All keys, with meanings: logcal config {job.name}.",
        ]
    return "\n".join(lines)


_days = click.Group("days", help="Do the daily job; list, exclude and include days.")

for _job in JOBS.values():
    _add_job(_job)


def _command(
    group: click.Group, *options: Any, name: str = "", changes: bool = False
) -> Callable[[Callable[..., Outcome]], None]:
    """Return a decorator that makes a function a command; what the function needs is imported when it is called.

    name : command's name; '': the function's name
    changes : whether the command changes a table; such commands leave a run record
    """

    def add(body: Callable[..., Outcome]) -> None:
        command_name = name or body.__name__
        path = f"{'logcal' if group is main else f'logcal {group.name}'} {command_name}"

        def command(as_json: bool, **arguments: Any) -> None:
            from jobs.records import Attempt
            from jobs.run import guarded, show

            attempt = Attempt(f"{group.name}-{command_name}")

            def run() -> None:
                if _TABLE_FILES in options:
                    _resolve_table(arguments, required=_TABLE in options)
                if "files" not in body.__annotations__:
                    arguments.pop("files", None)
                if changes:
                    attempt.set_table(arguments["store"], arguments["table"])
                attempt.outcome = body(**arguments)
                show(attempt.outcome.summary, attempt.outcome.lines, as_json)

            code = guarded(path, run, as_json, attempt)
            attempt.end(code)
            _exit(code)

        decorated: Any = command
        for option in (_JSON, *reversed(options)):
            decorated = option(decorated)
        group.command(command_name, help=body.__doc__)(decorated)

    return add


_tables = click.Group("tables", help="List, promote, roll back and prune published versions.")
main.add_command(_tables)


def _resolve_table(arguments: dict[str, Any], required: bool) -> None:
    """Fill in a command's store and table from its configuration files, where they are not given."""
    files, store, table = arguments["files"], arguments["store"], arguments.get("table")
    if files or store is None or (required and table is None):
        from jobs.tables import resolve_table

        arguments["store"], named = resolve_table(files, store, table, required=required)
        if "table" in arguments:
            arguments["table"] = named


_STORE = click.option("--store", metavar="PATH", help="Folder of the published tables.")
_TABLE = click.option("--table", metavar="NAME", help="Name of the table.")
_TABLE_FILES = click.option(
    "--config", "files", multiple=True, metavar="FILE", help="A job's configuration: its store and table."
)
_ANY_TABLE = click.option("--table", metavar="NAME", help="Name of the table; without it all are listed.")
_VERSION = click.argument("name", metavar="[VERSION]", required=False)
_REASON = click.option("--reason", required=True, metavar="TEXT", help="The reason, kept with the decision.")
_KEEP = click.option(
    "--keep", type=click.IntRange(min=1), required=True, metavar="N", help="Newest versions to keep."
)
_OF_TABLE = (_STORE, _TABLE, _TABLE_FILES)
_DAY = (*_OF_TABLE, click.argument("day"))
_DAY_OR_FILE = (
    *_OF_TABLE,
    click.option(
        "--file", metavar="NAME", help="Instead of DAY: a file of the log, by its path there; needs --config."
    ),
    click.argument("day", required=False),
)
_Texts = tuple[str, ...]


@_command(_tables, _STORE, _ANY_TABLE, _TABLE_FILES, name="list")
def list_versions(store: str, table: str | None) -> Outcome:
    """List all tables, or all versions of one. They are listed oldest first; a star marks the current one."""
    from jobs import tables

    return tables.list_versions(store, table)


@_command(_tables, *_OF_TABLE, _VERSION)
def show(store: str, table: str, name: str | None) -> Outcome:
    """Show VERSION, or the current one. Shows its log, its method and its settings."""
    from jobs import tables

    return tables.show(store, table, name)


@_command(
    _tables,
    *_OF_TABLE,
    click.option("--dialect", required=True, metavar="NAME", help="duckdb, spark, postgres, ..."),
    click.option("--inline", is_flag=True, help="Write the table into the query."),
    click.option(
        "--max-error",
        type=float,
        metavar="NUMBER",
        help="With --inline: largest error of a probability (default: 1e-6); 0 writes every row.",
    ),
    click.option(
        "--log",
        default="log",
        metavar="NAME",
        show_default=True,
        help="The log's table, or the path of a .parquet file.",
    ),
    click.option("--score", metavar="NAME", help="Its score column (default: that of the fit)."),
    _VERSION,
)
def sql(store: str, table: str, name: str | None, **options: Any) -> Outcome:
    """Print SQL that applies VERSION, or the current one. The query adds the probability to a log's rows."""
    from jobs import tables

    return tables.sql(store, table, name, **options)


@_command(
    _tables,
    *_OF_TABLE,
    click.option("--format", "format_", required=True, metavar="NAME", help="json, pmml or onnx."),
    click.option("--version", "name", metavar="VERSION", help="The version (default: the current one)."),
    click.option("--output", required=True, metavar="FILE", help="The file; - prints it."),
)
def export(store: str, table: str, name: str | None, format_: str, output: str) -> Outcome:
    """Write the map of a version for programs that read no Parquet. The page on recipes describes the format."""
    from jobs import map_export

    return map_export.export(store, table, name, format_, output)


@_command(_tables, *_OF_TABLE)
def history(store: str, table: str) -> Outcome:
    """List every attempt of a job on the table. Shows exit code, rows and measures."""
    from jobs import tables

    return tables.history(store, table)


@_command(
    _tables,
    _STORE,
    _TABLE_FILES,
    click.option("--output", required=True, metavar="FILE", help="The page, such as page.html."),
)
def page(store: str, output: str) -> Outcome:
    """Write a page with all tables of a store. Shows versions, days, alarms, last runs, links to reports."""
    from jobs import store_page

    return store_page.page(store, output)


@_command(_tables, *_OF_TABLE, _VERSION, changes=True)
def rollback(store: str, table: str, name: str | None) -> Outcome:
    """Make VERSION, or the version before, live again."""
    from jobs import tables

    return tables.rollback(store, table, name)


@_command(_tables, *_OF_TABLE, click.argument("name", metavar="VERSION"), changes=True)
def promote(store: str, table: str, name: str) -> Outcome:
    """Make VERSION live, such as a saved candidate."""
    from jobs import tables

    return tables.promote(store, table, name)


@_command(
    _tables,
    *_OF_TABLE,
    click.option("--report", metavar="FILE", help="Draw both versions in an HTML page, FILE."),
    click.argument("old"),
    click.argument("new"),
)
def diff(store: str, table: str, old: str, new: str, report: str | None) -> Outcome:
    """Compare versions OLD and NEW. Shows facts, probabilities, segments."""
    from jobs import tables

    return tables.diff(store, table, old, new, report)


@_command(_tables, *_OF_TABLE, _KEEP, changes=True)
def prune(store: str, table: str, keep: int) -> Outcome:
    """Remove old versions. The newest N, the current one and its predecessor stay."""
    from jobs import tables

    return tables.prune(store, table, keep)


@_command(_days, *_OF_TABLE, name="list")
def list_days(store: str, table: str, files: _Texts) -> Outcome:
    """List all days with --config: what happened to each, or why not. Without it: the days that were decided on."""
    from jobs import tables

    return tables.list_days(store, table, files)


@_command(_days, *_DAY_OR_FILE, _REASON, changes=True)
def exclude(store: str, table: str, day: str | None, reason: str, file: str | None, files: _Texts) -> Outcome:
    """Leave DAY out. This holds until the files of DAY, such as 2026-01-31, change.

    With --file leave out one file whose days cannot be told, until it changes.
    """
    from jobs import tables

    return tables.decide_on(store, table, tables.day_or_file(day, file), "exclude", reason, files)


@_command(_days, *_DAY, _REASON, changes=True)
def include(store: str, table: str, day: str, reason: str) -> Outcome:
    """Let DAY into fits, however strange it looks. This holds until the files of DAY, such as 2026-01-31, change."""
    from jobs import tables

    return tables.decide_on(store, table, day, "include", reason)


@_command(_days, *_DAY, _REASON, changes=True)
def acknowledge(store: str, table: str, day: str, reason: str) -> Outcome:
    """Close the alarm of drift that DAY, such as 2026-01-31, raised. The test of the table begins anew."""
    from jobs import alarms

    return alarms.acknowledge(store, table, day, reason)


@_command(_days, *_DAY_OR_FILE, changes=True)
def judge(store: str, table: str, day: str | None, file: str | None, files: _Texts) -> Outcome:
    """Undo exclude or include of DAY, or of a file. The next fit judges the day itself."""
    from jobs import tables

    return tables.decide_on(store, table, tables.day_or_file(day, file), None, files=files)


# Commands that set up, check and explain the installation.


def _complete_name(context: click.Context, parameter: click.Parameter, prefix: str) -> list[str]:
    from jobs.config.rendering import conf_files

    return [name for name in (file.removesuffix(".yaml") for file in conf_files()) if name.startswith(prefix)]


@_command(main, click.argument("name", required=False, shell_complete=_complete_name))
def config(name: str | None) -> Outcome:
    """Print a job's configuration: every key, commented.

    \b
      logcal config fit > fit.yaml
      logcal config cluster/slurm > slurm.yaml

    Without NAME: list all names.
    """  # noqa: D301
    from jobs.config import rendering

    return rendering.show_configuration(name)


@_command(
    main,
    click.argument("log"),
    click.argument("folder", default="."),
    click.option("--daily", is_flag=True, help="For a log of days: day.yaml, for `logcal days run`."),
    click.option("--set", "settings", **_SET),
)
def init(log: str, folder: str, settings: _Texts, daily: bool) -> Outcome:
    """Write a configuration for a log from its columns.

    \b
      logcal init demo-output/log/calibration income
      logcal init --daily /data/log ads

    Writes one for LOG, ready to run, to FOLDER (default: here). Finds the columns
    that can be the score, the label, a weight, a date or a segment; reads only the
    Parquet footers. One file serves all jobs; nothing is overwritten.
    """  # noqa: D301
    from jobs import init

    return init.init(log, folder, settings, daily=daily)


@_command(
    main,
    _CONFIG,
    click.option("--set", "settings", **_SET),
    click.option("--report", is_flag=True, help="Print what a report of a fault needs, without secrets."),
)
def doctor(files: _Texts, settings: _Texts, report: bool) -> Outcome:
    """Check the machine, the cluster and the storage.

    \b
      logcal doctor
      logcal doctor --config fit.yaml --config slurm.yaml

    Checks versions, compiled code, memory, scratch space, cluster, store and log.
    Takes any job's configuration and lists all obstacles at once.
    """  # noqa: D301
    from jobs import doctor

    return doctor.examine(files, settings, report=report)


@_command(main)
def warm() -> Outcome:
    """Compile all code in advance.

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
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    script = completion_class(context.command, {}, "logcal", "_LOGCAL_COMPLETE").source()
    if shell == "bash":
        # A key is followed by its value, not by a space.
        script = script.replace(
            "    return 0\n", "    [[ ${COMPREPLY-} == *= ]] && compopt -o nospace\n    return 0\n", 1
        )
    click.echo(script)
