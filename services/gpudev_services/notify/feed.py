"""Pages, JupyterLab and programs: they read what is stored and due, so there is nothing to send.

Marking it delivered is a commit, and a commit wakes every page that listens.
"""

from __future__ import annotations

from gpudev_core import notices
from gpudev_services.notify.channel import Message


class Feed:
    name = notices.FEED

    def send(self, message: Message) -> None:
        """Stored and due is delivered."""
