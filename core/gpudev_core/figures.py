"""A few numbers that stand for many: mean, median, 95th percentile, longest."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any


@dataclass(frozen=True)
class Spread:
    """Of ``count`` values. The others are None where there is no value, because zero would be a claim."""

    count: int = 0
    mean: float | None = None
    median: float | None = None
    p95: float | None = None
    longest: float | None = None

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        found = sorted(values)
        if not found:
            return cls()
        return cls(
            len(found), statistics.fmean(found), statistics.median(found), percentile(found, 0.95), found[-1]
        )


@dataclass(frozen=True)
class Share:
    """``hits`` of ``of``."""

    hits: int = 0
    of: int = 0

    @property
    def part(self) -> float | None:
        return self.hits / self.of if self.of else None

    @classmethod
    def where(cls, answers: Iterable[bool]) -> Share:
        found = list(answers)
        return cls(sum(found), len(found))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of all do not pass. It is always one that occurred."""
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def as_json(value: Any) -> Any:
    """Dataclasses as keys and values, with what they work out themselves, such as ``part`` of a share."""
    if is_dataclass(value):
        worked_out = [name for name, of in vars(type(value)).items() if isinstance(of, property)]
        names = [*(entry.name for entry in fields(value)), *worked_out]
        return {name: as_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: as_json(inner) for key, inner in value.items()}
    return [as_json(inner) for inner in value] if isinstance(value, list | tuple) else value
