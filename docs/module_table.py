"""Rewrite the table of modules in docs/architecture.md from the modules' docstrings: python docs/module_table.py."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("logcal", "calibrators", "pipeline", "jobs")


def summary(path: Path) -> str:
    """The first paragraph of a module's docstring, as one line."""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def table(package: Path) -> list[str]:
    """A heading and a row a module, a package's own files before its sub-packages'."""
    folders = [package, *sorted(p.parent for p in package.rglob("__init__.py") if p.parent != package)]
    lines = [f"### {package.name}/", "", "| module | |", "|---|---|"]
    for folder in folders:
        if folder != package:
            lines.append(f"| **`{folder.relative_to(package)}/`** | **{summary(folder / '__init__.py')}** |")
        lines += [
            f"| `{path.relative_to(package).with_suffix('')}` | {summary(path)} |"
            for path in sorted(folder.glob("*.py"))
            if path.name != "__init__.py"
        ]
    return [*lines, ""]


def main() -> None:
    """Rewrite the page."""
    text = PAGE.read_text("utf-8")
    start = text.index("### calibrators/") if "### logcal/" not in text else text.index("### logcal/")
    end = text.index("<!-- end of modules -->")
    lines = [line for name in PACKAGES if (ROOT / name).exists() for line in table(ROOT / name)]
    PAGE.write_text(text[:start] + "\n".join(lines).rstrip() + "\n" + text[end:], "utf-8")


if __name__ == "__main__":
    main()
