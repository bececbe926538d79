"""Hooks of MkDocs: generated pages, pages from files outside docs/, and links to files outside docs/."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

SOURCES = {
    "changes.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "benchmarking.md": "benchmarks/README.md",
}
"""Pages from files outside docs/."""

SECTIONS = {
    "operations.md": "How-to", "segments.md": "How-to", "few-labels.md": "How-to", "security.md": "How-to",
    "reliability.md": "Explanation", "statistics.md": "Explanation",
}  # fmt: skip
"""Sections of pages that the navigation does not name; the default is Explanation."""


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    pages = {page: (ROOT / source).read_text("utf-8") for page, source in SOURCES.items()}
    pages["reference-configuration.md"] = configuration_page()
    pages["reference-commands.md"] = commands_page()
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_config(config: Any) -> Any:
    """Add pages that the navigation does not name to their sections."""
    sections = {next(iter(entry)): next(iter(entry.values())) for entry in config.nav}
    named = {
        path
        for pages in sections.values()
        if isinstance(pages, list)
        for page in pages
        for path in _path(page)
    }
    for path in sorted(Path(config.docs_dir).glob("*.md")):
        if path.name not in named and path.name != "index.md":
            sections[SECTIONS.get(path.name, "Explanation")].append(path.name)
    return config


def _path(page: Any) -> list[str]:
    return [page] if isinstance(page, str) else list(page.values())


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links to files outside docs/ to their pages, and remove links to files that are not on the site."""
    by_source = {source: name for name, source in SOURCES.items()} | {"conf": "reference-configuration.md"}
    folder = (ROOT / SOURCES[page.file.src_uri]).parent if page.file.src_uri in SOURCES else ROOT / "docs"

    def resolved(match: re.Match[str]) -> str:
        text, target, anchor = match.groups(default="")
        path = (folder / target).resolve()
        if not path.is_relative_to(ROOT):
            return text
        name = path.relative_to(ROOT).as_posix()
        if name in by_source:
            return f"[{text}]({by_source[name]}{anchor})"
        if name.startswith("docs/") and path.is_file():
            return f"[{text}]({name.removeprefix('docs/')}{anchor})"
        return f"[{text}]({target}{anchor})" if target in files.src_uris else text

    return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)", resolved, markdown)


def configuration_page() -> str:
    """Make the page of every job's keys, from the models."""
    from jobs.config.rendering import conf_files

    parts = [
        "# All keys",
        "As `logcal config NAME` prints them. What a key means, its default, and which keys have none: REQUIRED.",
    ]
    for name, text in conf_files().items():
        parts += [f"## {name.removesuffix('.yaml')}", f"```yaml\n{text.rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"


def commands_page() -> str:
    """Make the page of every command's help."""
    import click

    from jobs.cli import main

    parts = ["# Commands", "Exit codes are explained in [schedulers](schedulers.md)."]

    def add(command: click.Command, names: tuple[str, ...]) -> None:
        context = click.Context(command, info_name=" ".join(names), max_content_width=80, terminal_width=80)
        parts.append(f"{'##' if len(names) < 3 else '###'} {' '.join(names)}")
        parts.append(f"```text\n{command.get_help(context).rstrip()}\n```")
        if isinstance(command, click.Group):
            for name, inner in command.commands.items():
                add(inner, (*names, name))

    add(main, ("logcal",))
    return "\n\n".join(parts) + "\n"
