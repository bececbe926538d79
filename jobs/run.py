"""Run a job: configuration, preparation, cluster, outcome; errors become exit codes."""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from jobs import interrupts
from jobs.config.naming import JOB, call_in_keys, in_keys
from jobs.outcome import Outcome, Plan, Startable
from jobs.records import Attempt
from jobs.registry import Job
from logcal.errors import CheckFailedError, ConfigError, LogcalError, NothingToDoError, TemporaryError
from pipeline.files.faults import as_fault
from pipeline.files.storage import remember_urls, use, without_secrets

if TYPE_CHECKING:
    from jobs.cluster.starting import SharedCluster
    from jobs.config.jobs import JobConfig
    from jobs.config.loading import Values

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("logcal")

BUG = 1

__all__ = ["Outcome", "Plan", "guarded", "run_job", "run_values", "show"]


@dataclass(frozen=True)
class Member:
    """A run as one of a command's several runs.

    Attributes
    ----------
    file : name of the run, which precedes its results and messages; '': the only run
    cluster : cluster of all runs; None: of this run alone
    """

    file: str = ""
    cluster: SharedCluster | None = None


ALONE = Member()


def run_job(
    job: Job,
    files: Sequence[str],
    settings: Sequence[str],
    *,
    dry_run: bool,
    as_json: bool,
    graph: str | None = None,
) -> int:
    """Run a job, print its result, and return the exit code.

    Results go to stdout, everything else to stderr. With `as_json` stdout is one JSON line, also for errors.

    graph : with `dry_run`, file to draw the job's graph to
    """

    def read() -> Values:
        from jobs.config.loading import read_values

        return read_values(files, settings)

    return run_values(job, read, dry_run=dry_run, as_json=as_json, graph=graph)


def run_values(
    job: Job,
    read: Callable[[], Values],
    *,
    dry_run: bool,
    as_json: bool,
    graph: str | None = None,
    member: Member = ALONE,
) -> int:
    """Run a job on values that have been or can be read; see `run_job`."""
    attempt = Attempt(job.name)
    show_result = partial(show, as_json=as_json, file=member.file)

    def run() -> None:
        if graph is not None and not dry_run:
            raise ConfigError("--graph: draws what a job would do: expected --dry-run with it")
        config = _load(job, read, None if dry_run else attempt)
        if dry_run:
            plan = in_settings_of(config, _planned, job, config, graph)
            show_result(asdict(plan), plan.lines())
        else:
            outcome = carry_out(job, config, attempt, cluster=member.cluster)
            show_result(outcome.summary, outcome.lines)

    code = guarded(f"logcal {job.command or job.name}", run, as_json, attempt, member.file)
    attempt.end(code)
    return code


def begin_process() -> None:
    """Import what loads configurations, and prepare this process for a job."""
    with no_garbage("jobs.config.loading"):
        import jobs.config.loading  # noqa: F401 - for the callers
        from jobs.cluster.starting import process_memory

    process_memory.check_address_space()
    process_memory.begin()


def _load(job: Job, read: Callable[[], Values], attempt: Attempt | None) -> JobConfig:
    """Load the job's configuration and prepare the process for it. attempt : recorded attempt; None in a dry run."""
    begin_process()
    from jobs.config.loading import load_values
    from jobs.progress import announce_compiling

    values = read()
    read_keys = copy.deepcopy(values.values)
    try:
        config = load_values(job.config_class(), values)
    except ConfigError:
        if attempt is not None:
            attempt.keep_record_keys(read_keys)
        raise
    if attempt is not None:
        announce_compiling()
    return config


def _planned(job: Job, config: JobConfig, graph: str | None) -> Plan:
    """Prepare a job, and return its plan. graph : file to draw its graph to; None: it is not drawn."""
    prepared = job.load_module().prepare(config)
    plan: Plan = prepared.plan
    if graph is not None:
        _draw(prepared, graph)
    return plan


def _draw(prepared: Any, path: str) -> None:
    """Draw the graph of a prepared job.

    Raises
    ------
    ConfigError
        The file has another suffix or cannot be written, or the job has no graph.
    """
    from pipeline.execution.graph import KINDS, drawing

    if PurePath(path).suffix not in KINDS:
        raise ConfigError(f"--graph: expected a file that ends in {', '.join(KINDS)}, found {path}")
    if not hasattr(prepared, "graph"):
        raise ConfigError(
            "--graph: this job has no graph before it runs: draw fit, score, evaluate, generate, "
            "compare or monitor"
        )
    content = drawing(prepared.graph(), path)
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise ConfigError(f"--graph: cannot write {path} ({error.strerror}): choose another place") from None


def in_settings_of(config: JobConfig, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in the settings of a configuration, which end with it: the caller may be a program."""

    def call() -> T:
        JOB.set(type(config))
        _set_up_environment(config)
        return function(*args, **kwargs)

    return copy_context().run(call_in_keys, call)


def _set_up_environment(config: JobConfig) -> None:
    """Apply the storage options, register URLs whose secrets messages must hide, and import the cluster class."""
    from jobs.cluster.kinds import check_class
    from jobs.config.sections import DEFAULT_GIVE_UP, parse_duration
    from pipeline.log.log_files import GIVE_UP

    use(config.storage.options)
    GIVE_UP.set(parse_duration(getattr(getattr(config, "log", None), "give_up", DEFAULT_GIVE_UP)))
    remember_urls(config.model_dump(mode="json"))
    check_class(config.cluster)


def carry_out(
    job: Job,
    config: JobConfig,
    attempt: Attempt,
    client: Any = None,
    cluster: SharedCluster | None = None,
) -> Outcome:
    """Prepare a job and execute it, on the configuration's cluster or on that of a client.

    cluster : where the configuration's cluster stays for further runs; None: it is stopped
    """
    return in_settings_of(config, _carry_out, job, config, attempt, client, cluster)


def _carry_out(
    job: Job, config: JobConfig, attempt: Attempt, client: Any, cluster: SharedCluster | None
) -> Outcome:
    from jobs.cluster.starting import given_executor, starting_executor
    from jobs.day_commands import record_command

    attempt.begin(config)
    # A cluster that is needed in any case starts while the job is being prepared.
    if client is None:
        starting = starting_executor(config.cluster, job.workers_import, cluster)
    else:
        starting = given_executor(client, config.cluster)
    with starting as executor:
        try:
            with no_garbage(job.module):
                prepared: Startable = job.load_module().prepare(config)
        except NothingToDoError as error:
            error.tidy()
            raise
        attempt.plan = prepared.plan
        try:
            outcome = prepared.execute(executor(threads=prepared.threads))
        except LogcalError as error:
            attempt.outcome = error.outcome
            raise
        attempt.outcome = outcome
        record_command(job.name, config, prepared, outcome)
        interrupts.ignore()
    return outcome


@contextlib.contextmanager
def no_garbage(module: str) -> Iterator[None]:
    """Disable the garbage collector during imports, then freeze: imports make many objects, and all stay.

    module : has no effect if this was imported before, in an earlier run of this process
    """
    if module in sys.modules:
        yield
        return
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def show(summary: dict[str, Any], lines: Sequence[str], as_json: bool, file: str = "") -> None:
    """Print a result to stdout, unless its reader has closed it.

    file : name of a command's run among several; it precedes the result

    Raises
    ------
    TemporaryError
        Writing fails although stdout is open.
    """
    if file:
        summary, lines = {"file": file, "exit_code": 0, **summary}, [f"{file}:", *lines]
    text = json.dumps(summary, allow_nan=False, default=str) if as_json else "\n".join(lines)
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _silence_stdout()
        raise TemporaryError(
            f"stdout: expected a place to write to, found an error ({error.strerror}); "
            "all but showing the result is done"
        ) from None


def _silence_stdout() -> None:
    """Redirect stdout to the null device, so that flushing its buffer at the end does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def guarded(
    name: str, action: Callable[[], None], as_json: bool, attempt: Attempt | None = None, file: str = ""
) -> int:
    """Run an action; report an exception as a message, which the attempt keeps, and return the exit code.

    file : name of a command's run among several
    """
    try:
        with interrupts.catching():
            action()
    except BrokenPipeError:
        # The reader of stdout has gone: the job itself is done.
        _silence_stdout()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last resort
        code, message = exit_code_and_message(error)
        outcome = error.outcome if isinstance(error, LogcalError) else None
        if attempt is not None:
            attempt.message = message
            attempt.refused = error.version if isinstance(error, CheckFailedError) else None
        if code == BUG:
            traceback.print_exc()
        if outcome is not None and not as_json:
            with contextlib.suppress(TemporaryError):
                show(outcome.summary, outcome.lines, as_json, file)
        sys.stderr.write(f"{name}: {f'{file}: ' if file else ''}{message}\n")
        if as_json:
            summary = {} if outcome is None else outcome.summary
            with contextlib.suppress(TemporaryError):
                show({**summary, "error": message, "exit_code": code}, [], as_json, file)
        return code
    return 0


def exit_code_and_message(error: BaseException) -> tuple[int, str]:
    """Return exit code and message of an exception: an error of the user, a fault of the environment, or a bug."""
    if isinstance(error, KeyboardInterrupt):
        return interrupts.exit_code(), str(error) or "interrupted; nothing was published"
    fault = as_fault(error)
    if fault is not None:
        return fault.exit_code, without_secrets(in_keys(str(fault)))
    message = f"a bug in logcal, please report it with the lines above: {type(error).__name__}: {error}"
    return BUG, without_secrets(message)
