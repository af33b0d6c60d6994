"""Every open terminal of the reservation's own server, in local mode.

A terminal belongs to the reservation when the process that leads its session carries the reservation's
marker. It is opened through that very process, not by its number, because numbers are used again and
containers have terminals of the same numbers; and it is looked at once more when it is open.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gpudev_core import notices, sessions
from gpudev_core.sessions import SessionRecord, Sessions
from gpudev_services.notify.channel import Message, SendFailed, one_line

PTY_MAJORS = range(136, 144)
"""Terminals of windows and pages (``/dev/pts``), as against consoles and serial lines."""


class Terminals:
    name = notices.TERMINAL

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def send(self, message: Message) -> None:
        """Who has no terminal open misses nothing. One that is stopped gets it no later than others do."""
        record = self._sessions.get(message.reservation_id)
        if record is None:
            return
        line = f"\r\n\a*** {one_line(message.text)} ***\r\n".encode()
        written = [_write(pid, record.marker, line) for pid in _leaders(record)]
        if written and not any(written):
            raise SendFailed("no open terminal took the message")


def _leaders(record: SessionRecord) -> Iterator[int]:
    for process in sessions.carriers(record):
        if _terminal_led_by(process.pid) is not None:
            yield process.pid


def _write(pid: int, marker: str, line: bytes) -> bool:
    """Never waits: a terminal that was stopped (Ctrl+S), or that nobody reads, takes nothing."""
    device = _terminal_led_by(pid)
    descriptor = _open(pid, device) if device is not None else None
    if descriptor is None:
        return False
    try:
        is_theirs = sessions.owner_of(pid) == marker and _terminal_led_by(pid) == device
        return is_theirs and os.write(descriptor, line) > 0
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _open(pid: int, device: int) -> int | None:
    for number in (0, 1, 2):
        path = f"/proc/{pid}/fd/{number}"
        try:
            if not _is_device(os.stat(path), device):  # before it is opened: opening may do things
                continue
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            continue
        if _is_device(os.fstat(descriptor), device):
            return descriptor
        os.close(descriptor)
    return None


def _is_device(found: os.stat_result, device: int) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == device


def _terminal_led_by(pid: int) -> int | None:
    """The device of the terminal whose session this process leads. None: it leads none, or is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    session, number = int(fields[3]), int(fields[4])
    major, minor = (number >> 8) & 0xFFF, (number & 0xFF) | ((number >> 12) & 0xFFF00)
    return os.makedev(major, minor) if session == pid and major in PTY_MAJORS else None
