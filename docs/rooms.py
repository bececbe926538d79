"""Draw the rooms of the packages from the import contracts of pyproject.toml: python docs/rooms.py."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PALETTES = {
    "light": {"ink": "#2b3138", "room": "#e8eef5", "line": "#8a929b"},
    "dark": {"ink": "#e4e8ec", "room": "#2c3947", "line": "#7c8792"},
}
WIDTH, GAP, ROW, PAD, ABREAST = 232, 28, 24, 8, 3


def contracts() -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Return the packages, highest first, and the contract of each container's layers."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    layered = [contract for contract in settings["contracts"] if contract["type"] == "layers"]
    (packages,) = (contract["layers"] for contract in layered if "containers" not in contract)
    return packages, {name: contract for contract in layered for name in contract.get("containers", [])}


def draw(palette: str) -> str:
    """Return the picture: a column for each package, with its layers, which may use those below and to the right."""
    packages, of_container = contracts()
    colors = PALETTES[palette]
    shapes, height = [], 0
    for column, package in enumerate(packages):
        x, y = column * (WIDTH + GAP), 0
        nested = [name for name in of_container if name.startswith(f"{package}.")]
        for container in [package, *nested]:
            drawn, bottom = panel(container, of_container.get(container, {}), x, y)
            shapes += drawn
            y = bottom + 14
        height = max(height, y)
        if column:
            shapes.append(f'<text x="{x - GAP / 2}" y="20" text-anchor="middle">→</text>')
    width = len(packages) * (WIDTH + GAP) - GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-2 -2 {width + 4} {height}">',
            f"<style>text {{ font: 12px sans-serif; fill: {colors['ink']}; }}</style>",
            "<title>Rooms of the packages: each may use those below it, and packages to its right</title>",
            f"<style>.room {{ fill: {colors['room']}; }} .panel {{ fill: none; stroke: {colors['line']}; }}</style>",
            *shapes,
            "</svg>\n",
        ]
    )


def panel(container: str, contract: dict[str, Any], x: int, top: int) -> tuple[list[str], int]:
    """Return the shapes of a container and its lower edge."""
    shapes = [f'<text x="{x + PAD}" y="{top + 19}" style="font-weight: bold">{escape(container)}</text>']
    y = top + 30
    if contract and not contract.get("exhaustive"):
        shapes.append(
            f'<text x="{x + WIDTH / 2}" y="{y + 16}" text-anchor="middle" style="font-style: italic">others</text>'
        )
        y += ROW + 4
    for layer in contract.get("layers", []):
        for rooms in abreast(layer.split(" | ")):
            free = WIDTH - 2 * PAD - 4 * (len(rooms) - 1)
            left = float(x + PAD)
            for room in rooms:
                wide = free * (len(room) + 4) / sum(len(one) + 4 for one in rooms)
                shapes.append(
                    f'<rect class="room" x="{left:.1f}" y="{y}" width="{wide:.1f}" height="{ROW - 2}" rx="3"/>'
                    f'<text x="{left + wide / 2:.1f}" y="{y + 15}" text-anchor="middle">{escape(room)}</text>'
                )
                left += wide + 4
            y += ROW
        y += 4
    shapes.append(f'<rect class="panel" x="{x}" y="{top}" width="{WIDTH}" height="{y - top}" rx="5"/>')
    return shapes, y


def abreast(rooms: list[str]) -> Iterator[list[str]]:
    """Yield rooms that fit beside each other."""
    row: list[str] = []
    for room in rooms:
        if len(row) == ABREAST or sum(map(len, [*row, room])) > 30:
            yield row
            row = []
        row.append(room)
    yield row


def main() -> None:
    """Write both figures."""
    for palette in PALETTES:
        (ROOT / "docs" / "figures" / f"rooms-{palette}.svg").write_text(draw(palette), encoding="utf-8")


if __name__ == "__main__":
    main()
