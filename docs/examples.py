"""Write examples/daily/ from docs/operations.md: python docs/examples.py."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "operations.md"
FOLDER = ROOT / "examples" / "daily"

FILES = {
    "day.yaml": ("", "yaml"),
    "crontab": ("Cron", ""),
    "dag.py": ("Airflow", "python"),
    "Dockerfile": ("Kubernetes", "dockerfile"),
    "cronjob.yaml": ("Kubernetes", "yaml"),
}
"""Section of each file and language of its block, the first block of that language in the section."""


def contents() -> dict[str, str]:
    """Return the contents of the files by name."""
    sections = re.split(r"^## (.*)\n", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    by_title = {"": sections[0], **dict(zip(sections[1::2], sections[2::2], strict=True))}
    files = {}
    for name, (title, language) in FILES.items():
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", by_title[title], flags=re.DOTALL | re.MULTILINE)
        files[name] = next(text for kind, text in blocks if kind == language)
    return files


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in contents().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
