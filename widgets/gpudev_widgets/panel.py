"""The availability panel: a table with a button that looks again. It says everything as plain text, too."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape

import ipywidgets

from gpudev_cli.client import Availability, Client, ClientError

HEAD = ("Type", "Free", "Starts now", "Waiting")
ROOMY = 'style="padding: 2px 20px 2px 0; text-align: left"'
"""A notebook brings no stylesheet of ours along."""


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
            rows = [HEAD, *(_row(found) for found in self._client.availability())]
        except ClientError as error:
            self.text = f"No figures: {error}"
            self._table.value = f"<p>{escape(self.text)}</p>"
            return
        self.text = "\n".join("  ".join(f"{cell:<12}" for cell in row).rstrip() for row in rows)
        self._table.value = _html(rows)


def availability() -> AvailabilityPanel:
    """The panel of the portal that this server belongs to."""
    url = os.environ.get("GPU_DEV_API_URL")
    if not url:
        raise ClientError("this works inside a server of the portal: GPU_DEV_API_URL is not set here.")
    return AvailabilityPanel(Client(url, os.environ.get("JUPYTERHUB_API_TOKEN", "")))


def _row(found: Availability) -> tuple[str, ...]:
    free = f"{found.available} of {found.total}"
    return found.gpu_type, free, found.starts_now, str(found.queued or "-")


def _html(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    cells = "".join(f'<th scope="col" {ROOMY}>{escape(cell)}</th>' for cell in head)
    lines = "".join(
        "<tr>" + "".join(f"<td {ROOMY}>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"
