"""The availability panel: a table with a button that looks again. It says everything as plain text, too."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from html import escape

import ipywidgets

from gpudev_cli.client import Availability, Cells, Client, ClientError

HEAD = ("Type", "Free", "Starts now", "Otherwise")
NODES = 2
"""Which column of the table shows the nodes; as text there are none."""
ROOMY = 'style="padding: 2px 20px 2px 0; text-align: left"'
"""A notebook brings no stylesheet of ours along."""
ACCENT = "var(--jp-brand-color1, #1f659c)"
CELLS = {
    "f": ("free", f"border-color: {ACCENT}"),
    "m": ("yours", f"border-color: {ACCENT}; background: {ACCENT}"),
    "o": ("other people's", "border-color: #7d8790; background: #7d8790"),
    "p": (
        "idle, promised to someone in the queue",
        "border-color: #7b858f; background: "
        "repeating-linear-gradient(135deg, #7b858f 0 1.4px, transparent 1.6px 4.2px)",
    ),
    "d": ("node down", "border-color: #7b858f; border-style: dotted; border-radius: 50%"),
}
BOX = (
    "display: inline-block; box-sizing: border-box; width: 11px; height: 11px; margin-right: 2px; "
    "border: 1.5px solid; border-radius: 3px"
)


class AvailabilityPanel(ipywidgets.VBox):
    """Shown by a notebook as it is; ``text`` is the same for a terminal or a screen reader."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._table = ipywidgets.HTML()
        look = ipywidgets.Button(description="Look again", tooltip="Ask the portal what is free now")
        look.on_click(lambda _: self.refresh())
        super().__init__([self._table, look])
        self.refresh()

    def refresh(self) -> None:
        """Ask once. What went wrong is told in place of the table; nothing is guessed."""
        try:
            found = self._client.availability()
        except ClientError as error:
            self.text = f"No figures: {error}"
            self._table.value = f"<p>{escape(self.text)}</p>"
            return
        now = datetime.now().astimezone()
        rows = [HEAD, *(_row(one, now) for one in found)]
        as_of = f"As of {now:%H:%M:%S %Z}."
        lines = ["  ".join(f"{cell:<12}" for cell in row).rstrip() for row in rows]
        self.text = "\n".join([*lines, as_of])
        self._table.value = _html(rows, found) + _legend(as_of)


def availability() -> AvailabilityPanel:
    """The panel of the portal that this server belongs to."""
    url = os.environ.get("GPU_DEV_API_URL")
    if not url:
        raise ClientError("this works inside a server of the portal: GPU_DEV_API_URL is not set here.")
    return AvailabilityPanel(Client(url, os.environ.get("JUPYTERHUB_API_TOKEN", "")))


def _row(found: Availability, now: datetime) -> tuple[str, ...]:
    free = f"{found.free_for_you} of {found.total}"
    return found.gpu_type, free, found.starts_now, found.next_size(now, short=True)


def _html(rows: Sequence[Sequence[str]], found: Sequence[Availability]) -> str:
    head, *body = [[f"{escape(cell)}" for cell in row] for row in rows]
    pictures = ["".join(_node(node) for node in one.nodes) for one in found]
    titles = "".join(f'<th scope="col" {ROOMY}>{cell}</th>' for cell in _with(head, "Nodes"))
    lines = "".join(
        "<tr>" + "".join(f"<td {ROOMY}>{cell}</td>" for cell in _with(row, picture)) + "</tr>"
        for row, picture in zip(body, pictures, strict=True)
    )
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>"


def _with(row: Sequence[str], nodes: str) -> list[str]:
    return [*row[:NODES], nodes, *row[NODES:]]


def _node(node: Cells) -> str:
    """One box for each GPU, and in words how many of each kind."""
    known = [(mark, node.cells.count(mark)) for mark in CELLS if mark in node.cells]
    said = f"{node.name}: " + ", ".join(f"{count} {CELLS[mark][0]}" for mark, count in known)
    boxes = "".join(_box(mark) for mark in node.cells if mark in CELLS)
    look = "display: inline-block; margin-right: 7px; white-space: nowrap; line-height: 1"
    return (
        f'<span role="img" aria-label="{escape(said)}" title="{escape(said)}" style="{look}">{boxes}</span>'
    )


def _box(mark: str) -> str:
    return f'<i style="{BOX}; {CELLS[mark][1]}"></i>'


def _legend(as_of: str) -> str:
    marks = "".join(
        f'<span style="margin-right: 14px">{_box(mark)} {escape(said)}</span>'
        for mark, (said, _) in CELLS.items()
    )
    return f'<p style="font-size: 12px; line-height: 1.6">{marks}{escape(as_of)}</p>'
