"""How many units of one node are free, from now on: a step function of whole seconds.

What is held and what is planned is taken out of it. It may go below zero, as when units of a node are lost:
then more is booked than there is, and ``ledger`` mends it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

EVER = 1 << 62
"""Later than any time, for what has no end."""


class Profile:
    """``free[i]`` units are free from ``times[i]`` until ``times[i + 1]``; the last ones for ever."""

    __slots__ = ("free", "times", "units")

    def __init__(self, units: int) -> None:
        self.units = units
        self.times = [-EVER]
        self.free = [units]

    def resize(self, units: int) -> None:
        more = units - self.units
        self.units = units
        self.free = [free + more for free in self.free]

    def take(self, start: int, end: int, units: int) -> None:
        self._change(start, end, -units)

    def give(self, start: int, end: int, units: int) -> None:
        self._change(start, end, units)

    def at(self, time: int) -> int:
        return self.free[bisect_right(self.times, time) - 1]

    def lowest(self, start: int, end: int) -> int:
        """The fewest that are free at any instant of the stretch."""
        first, last = bisect_right(self.times, start) - 1, bisect_left(self.times, end)
        return min(self.free[first:last])

    def earliest(
        self, units: int, length: int, not_before: int, before: int = EVER, until: int = EVER
    ) -> int | None:
        """The first start, earlier than ``before``, from which ``units`` are free for ``length`` seconds.

        From ``until`` on they are free in any case: there the one who asks has its own place.
        """
        times, free = self.times, self.free
        count = len(times)
        i = bisect_right(times, not_before) - 1
        start = not_before
        while start < before:
            while free[i] < units:
                i += 1
                if i == count:
                    return None
                start = times[i]
            if start >= before:
                return None
            end = start + length
            if end > until:
                end = until
            j = i + 1
            while j < count and times[j] < end and free[j] >= units:
                j += 1
            if j == count or times[j] >= end:
                return start
            i, start = j, times[j]
        return None

    def windows(self, units: int, length: int, not_before: int, before: int) -> Iterator[tuple[int, int]]:
        """Every stretch of starts, first and last, at which ``units`` are free for ``length`` seconds."""
        start = self.earliest(units, length, not_before, before)
        while start is not None:
            i = bisect_right(self.times, start) - 1
            while i < len(self.times) and self.free[i] >= units:
                i += 1
            end = self.times[i] if i < len(self.times) else EVER
            yield start, end - length
            start = self.earliest(units, length, end, before) if end < before else None

    def overbooked(self, since: int) -> Iterator[tuple[int, int]]:
        """Stretches in which more is booked than there is."""
        for i in range(bisect_right(self.times, since) - 1, len(self.times)):
            if self.free[i] < 0:
                yield max(self.times[i], since), self.times[i + 1] if i + 1 < len(self.times) else EVER

    def forget_before(self, time: int) -> None:
        """Let go of what is past; nobody asks for it again."""
        i = bisect_right(self.times, time) - 1
        if i > 0:
            del self.times[:i], self.free[:i]
            self.times[0] = -EVER

    def _change(self, start: int, end: int, by: int) -> None:
        if start >= end:
            return
        first, last = self._cut(start), self._cut(end)
        free = self.free
        for i in range(first, last):
            free[i] += by
        for i in (last, first):
            if free[i - 1] == free[i]:
                del self.times[i], free[i]

    def _cut(self, time: int) -> int:
        """The index of the step that begins at ``time``, made if there is none."""
        i = bisect_left(self.times, time)
        if i == len(self.times) or self.times[i] != time:
            self.times.insert(i, time)
            self.free.insert(i, self.free[i - 1])
        return i
