"""Small builders: a cluster with its holdings, a row in any state, a desk at which people file requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeVar

from sqlalchemy import func, select

from gpudev_core import availability, reservations
from gpudev_core.catalogue import Catalogue
from gpudev_core.models import Holding, Node, Placement, Request, Share, Status
from gpudev_core.reservations import Filing
from gpudev_core.settings import Limits, Settings
from gpudev_core.store import Store
from gpudev_core.tables import Base, DiskRow, ReservationEventRow, ReservationRow

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
IN_AN_HOUR = NOW + timedelta(hours=1)
AN_HOUR_AGO = NOW - timedelta(hours=1)
CATALOGUE = Catalogue()
ROOMY = Limits(gpus=1000, reservations=1000, queued=1000, gpu_hours=1e6, disks=1000)

T = TypeVar("T")


def minutes(number: float) -> timedelta:
    return timedelta(minutes=number)


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


def days(number: float) -> timedelta:
    return timedelta(days=number)


def ask(gpu_type: str = "t4", gpu_count: int = 1, duration: float = 1.0, **more: Any) -> Request:
    return Request(gpu_type, gpu_count, duration, **{"image": "local", **more})


def at_once(jobs: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Run all jobs in threads of their own; what each gave or raised, in the order of the jobs."""

    def guarded(job: Callable[[], T]) -> T | Exception:
        try:
            return job()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(guarded, jobs))


class Cluster:
    """Nodes of one GPU type and who holds what on them."""

    def __init__(self, gpu_type: str = "h100") -> None:
        self.gpu_type = CATALOGUE[gpu_type]
        self.nodes: list[Node] = []
        self.holdings: list[Holding] = []

    def node(self, name: str, held: int = 0, until: datetime = IN_AN_HOUR, **more: Any) -> Self:
        """One more node, of which the first ``held`` units are held by one reservation."""
        units = more.pop("units", self.gpu_type.units_per_node)
        more["foreign"] = frozenset(more.get("foreign", ()))
        self.nodes.append(Node(name, self.gpu_type.name, units, **more))
        return self.holding({name: range(held)}, until) if held else self

    def holding(
        self,
        units: dict[str, Sequence[int]],
        until: datetime,
        user: str = "somebody",
        began: datetime = AN_HOUR_AGO,
    ) -> Self:
        shares = tuple(Share(node, tuple(of_node)) for node, of_node in units.items())
        number = f"{self.gpu_type.name}-{len(self.holdings) + 1}"
        self.holdings.append(Holding(number, user, self.gpu_type.name, Placement(shares), began, until))
        return self


class Row:
    """A reservation in any state, written as it is, past all checks."""

    def __init__(self, reservation_id: str = "r1", user: str = "ada", request: Request | None = None) -> None:
        self.values: dict[str, Any] = {
            "reservation_id": reservation_id,
            "user_id": user,
            "server_name": reservation_id,
            "name": reservation_id,
            "filed_from": "test",
            "status": Status.PENDING.value,
            "created_at": NOW,
        }
        self.asks(request or ask())

    def asks(self, request: Request) -> Self:
        return self.with_(
            gpu_type=request.gpu_type,
            gpu_count=request.gpu_count,
            duration_hours=request.hours,
            disk_name=request.disk or None,
            request=request.as_json(),
        )

    def with_(self, **values: Any) -> Self:
        self.values.update(values)
        return self

    def status(self, status: Status) -> Self:
        return self.with_(status=status.value)

    def filed(self, at: datetime) -> Self:
        return self.with_(created_at=at)

    def preparing(self, at: datetime = NOW, **units: Sequence[int]) -> Self:
        """``node_1=[0, 1]`` are units of node ``node-1``."""
        shares = [{"node": name.replace("_", "-"), "units": list(of)} for name, of in units.items()]
        return self.status(Status.PREPARING).with_(preparing_at=at, placement=shares)

    def active(self, launched: datetime = NOW, **units: Sequence[int]) -> Self:
        expires = launched + hours(self.values["duration_hours"])
        self.preparing(launched, **units)
        return self.status(Status.ACTIVE).with_(launched_at=launched, expires_at=expires)

    def ended(self, at: datetime, status: Status = Status.EXPIRED) -> Self:
        return self.status(status).with_(reservation_ended=at)

    def save(self, store: Store) -> str:
        with store.write() as session:
            session.add(ReservationRow(**self.values))
        return str(self.values["reservation_id"])


def save_disk(store: Store, name: str, user: str = "ada", **values: Any) -> None:
    with store.write() as session:
        session.add(
            DiskRow(disk_id=f"{user}/{name}", user_id=user, disk_name=name, **{"created_at": NOW, **values})
        )


def row_of(store: Store, reservation_id: str) -> ReservationRow:
    with store.read() as session:
        return session.get_one(ReservationRow, reservation_id)


def disk_of(store: Store, name: str, user: str = "ada") -> DiskRow:
    with store.read() as session:
        return session.get_one(DiskRow, f"{user}/{name}")


def events_of(store: Store, reservation_id: str) -> list[ReservationEventRow]:
    with store.read() as session:
        return list(reservations.events_of(session, reservation_id))


def row_counts(store: Store) -> dict[str, int]:
    with store.read() as session:
        tables = Base.metadata.sorted_tables
        return {t.name: session.scalar(select(func.count()).select_from(t)) or 0 for t in tables}


class Desk:
    """Where people file requests: two t4 nodes, two h100 nodes and a CPU node, all empty."""

    NODES = (
        *Cluster("t4").node("node-1").node("node-2").nodes,
        *Cluster("h100").node("node-3").node("node-4").nodes,
        *Cluster("cpu-x86").node("node-5").nodes,
    )

    def __init__(self, store: Store) -> None:
        self.store = store
        availability.save(store, CATALOGUE, self.NODES, [], now=NOW, by="test")

    def file(
        self,
        request: Request | None = None,
        user: str = "ada",
        limits: Limits = ROOMY,
        now: datetime = NOW,
        settings: Settings | None = None,
        **more: Any,
    ) -> ReservationRow:
        filing = Filing(user, request or ask(), filed_from="test", **more)
        return reservations.file(self.store, filing, CATALOGUE, settings or Settings(limits=limits), now=now)

    def end(self, reservation_id: str, now: datetime = NOW) -> bool:
        with self.store.write() as session:
            row = reservations.find(session, reservation_id, user="ada", is_admin=True)
            return reservations.end(session, row, now=now, actor="ada", reason="done")

    def attach(self, reservation_id: str, now: datetime = NOW) -> None:
        with self.store.write() as session:
            reservations.attach_disk(session, session.get_one(ReservationRow, reservation_id), now)
