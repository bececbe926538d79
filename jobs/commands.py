"""The commands of the first minutes: configurations to start from, a look at the machine, completion in the shell."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from jobs.outcome import Outcome

_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_CONFIG = click.option(
    "--config", "files", multiple=True, metavar="FILE", help="YAML file; later ones go over earlier ones."
)
_SET = click.option(
    "--set", "settings", multiple=True, metavar="KEY.PATH=VALUE", help="Set one key; goes over all files."
)
SHELLS = ("bash", "zsh", "fish")


def add_to(group: click.Group) -> None:
    """Add the commands to the command `logcal`."""
    for command in (_config, _init, _doctor, _warm, _completion):
        group.add_command(command)


def _run(name: str, action: Callable[[], Outcome], as_json: bool) -> NoReturn:
    from jobs.run import guarded, show

    def run() -> None:
        outcome = action()
        show(outcome.summary, outcome.lines, as_json)

    sys.exit(guarded(f"logcal {name}", run, as_json))


def _names(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    from jobs.config.rendering import conf_files

    return [name for name in (file.removesuffix(".yaml") for file in conf_files()) if name.startswith(begun)]


@click.command("config", short_help="Print a job's configuration: every key, commented.")
@click.argument("name", required=False, shell_complete=_names)
@_JSON
def _config(name: str | None, as_json: bool) -> None:
    """Print the configuration NAME: every key with its meaning and default.

    \b
      logcal config fit > fit.yaml
      logcal config cluster/slurm > slurm.yaml

    Without NAME: the names there are.
    """  # noqa: D301

    def action() -> Outcome:
        from jobs.config import rendering as config_rendering
        from jobs.outcome import Outcome

        files = {key.removesuffix(".yaml"): text for key, text in config_rendering.conf_files().items()}
        if name is None:
            return Outcome({"names": list(files)}, list(files))
        if name not in files:
            raise _unknown(name, list(files))
        return Outcome({"name": name, "yaml": files[name]}, [files[name].removesuffix("\n")])

    _run("config", action, as_json)


def _unknown(name: str, names: list[str]) -> Exception:
    import difflib

    from logcal.errors import ConfigError

    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
    return ConfigError(f"NAME: expected a configuration that logcal has, found '{name}'; {hint}")


@click.command("init", short_help="Write a configuration for a log, after a look at it.")
@click.argument("log")
@click.argument("folder", default=".")
@click.option("--daily", is_flag=True, help="For a log of days: day.yaml, and day.sh to run once a day.")
@_SET
@_JSON
def _init(log: str, folder: str, daily: bool, settings: tuple[str, ...], as_json: bool) -> None:
    """Write one configuration for LOG, ready to run, to FOLDER (default: here).

    \b
      logcal init demo-output/log/calibration income
      logcal init --daily /data/log ads

    Looks at the log's footers alone: which columns can be the score, the label, a
    weight, a date, a segment. One file serves all jobs; nothing is overwritten.
    """  # noqa: D301

    def action() -> Outcome:
        from jobs.init import init

        return init(log, folder, settings, daily=daily)

    _run("init", action, as_json)


@click.command("doctor", short_help="Say whether logcal can work here.")
@_CONFIG
@_SET
@_JSON
def _doctor(files: tuple[str, ...], settings: tuple[str, ...], as_json: bool) -> None:
    """Look at versions, compiled code, memory, scratch space, cluster, store, log.

    \b
      logcal doctor
      logcal doctor --config fit.yaml --config slurm.yaml

    Takes any job's configuration; all that is in the way is said at once.
    """  # noqa: D301

    def action() -> Outcome:
        from jobs.doctor import examine

        return examine(files, settings)

    _run("doctor", action, as_json)


@click.command("warm", short_help="Compile all that jobs can meet, ahead of them.")
@_JSON
def _warm(as_json: bool) -> None:
    """Compile all that jobs can meet, and keep it.

    \b
      logcal warm
      LOGCAL_CACHE=/opt/logcal logcal warm

    Once after an installation, or while an image is built: the first jobs take
    some seconds otherwise. This takes a minute or two, in a process for each
    processor, and seconds when done.
    """  # noqa: D301

    def action() -> Outcome:
        from jobs.warm import warm

        return warm()

    _run("warm", action, as_json)


@click.command("completion", short_help="Print a script that completes commands and keys.")
@click.argument("shell", type=click.Choice(SHELLS))
def _completion(shell: str) -> None:
    """Print what makes SHELL complete commands, options and the keys of --set.

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


def complete_setting(name: str) -> Callable[..., Any]:
    """Complete --set of a job: its keys, and the values of keys that have few."""

    def complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
        from jobs.config.loading import key_choices
        from jobs.registry import JOBS

        key, equals, value = begun.partition("=")
        choices = key_choices(JOBS[name].config_class())
        if equals:
            return [f"{key}={choice}" for choice in choices.get(key, ()) if choice.startswith(value)]
        return [f"{known}=" for known in choices if known.startswith(key)]

    return complete
