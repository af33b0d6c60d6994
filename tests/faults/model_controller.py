"""A world around the real controller: a clock, a hub and nodes that misbehave, and what must hold even so.

``Outside`` is all that the controller cannot know by itself. ``Checker`` reads rows and the outside after
every step and raises when a rule is broken; it never asks the planner.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Row, delete, select

from gpudev_core import failures, reservations
from gpudev_core.catalogue import Catalogue
from gpudev_core.lifecycle import ALLOWED
from gpudev_core.machine import Machine
from gpudev_core.models import Node, Status
from gpudev_core.portal import Portal
from gpudev_core.settings import Settings
from gpudev_core.store import Store
from gpudev_core.tables import Base, DiskRow, ReservationEventRow, ReservationRow
from gpudev_services.controller.round import Controller
from gpudev_services.hub import DontKnow, Hub, Server, Servers, StartAnswer, Started
from gpudev_spawner.leases import Leases

START = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SLACK = timedelta(seconds=15)
"""What the controller may take to try again, beside what is allowed for."""
CATALOGUE = Catalogue([Catalogue()[name] for name in ("h100", "t4", "cpu-x86")])
NODES = (
    Node("big-1", "h100", 8, zone="a"),
    Node("big-2", "h100", 8, zone="a"),
    Node("big-3", "h100", 8, zone="b"),
    Node("small-1", "t4", 4),
    Node("cpu-1", "cpu-x86", 3),
)


@dataclass
class Pod:
    """All that runs for one reservation, and what the hub says of it. It changes by itself at ``until``."""

    reservation_id: str
    user: str
    server_name: str
    state: str
    until: datetime | None
    comes_up: bool = True

    @property
    def key(self) -> tuple[str, str]:
        return self.user, self.server_name


@dataclass
class Outside(Hub):
    """Clock, hub and box in one. ``mood`` is how the hub answers; a box that is ``local`` sees processes.

    ``silent``: no answer, nothing done. ``deaf``: it does what it is told and the answer is lost.
    ``refuses``, ``busy``: it does not start anything, for good or for the moment.
    """

    portal: Portal
    now: datetime = START
    local: bool = True
    mood: str = "fine"
    start_s: float = 1.0
    stop_s: float = 1.0
    comes_up: bool = True
    hooks: bool = True
    """Whether the spawner gets to write what became of a server. A hub that is killed does not."""
    nodes_by_name: dict[str, Node] = field(default_factory=lambda: {node.name: node for node in NODES})
    known: dict[tuple[str, str], Pod] = field(default_factory=dict)
    """What the hub knows."""
    running: dict[str, Pod] = field(default_factory=dict)
    """What really runs, by reservation."""
    starts: list[str] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    lock: threading.Lock = field(default_factory=threading.Lock)

    # The hub ------------------------------------------------------------------------------------------

    def servers(self) -> Servers:
        if self.mood == "silent":
            raise DontKnow("silent")
        return {
            pod.key: Server(pod.state == "ready", "" if pod.state == "ready" else pod.state, "/user/x/")
            for pod in self.known.values()
        }

    def start(self, user: str, server_name: str, reservation_id: str) -> StartAnswer:
        if self.mood == "silent":
            raise DontKnow("silent")
        if self.mood == "busy":
            return StartAnswer(Started.LATER, "busy", 100.0)
        if self.mood == "refuses":
            return StartAnswer(Started.NO, "no room on the disk")
        if (user, server_name) not in self.known and not self._bring_up(user, server_name, reservation_id):
            return StartAnswer(Started.NO, f"Reservation {reservation_id} is over.")
        if self.mood == "deaf":
            raise DontKnow("deaf")
        return StartAnswer(Started.YES)

    def stop(self, user: str, server_name: str) -> None:
        if self.mood == "silent":
            raise DontKnow("silent")
        pod = self.known.get((user, server_name))
        if pod is not None and pod.state != "stop":
            pod.state, pod.until = "stop", self.now + timedelta(seconds=self.stop_s)
        if self.mood == "deaf":
            raise DontKnow("deaf")

    def close(self) -> None:
        self.loop.close()

    def _bring_up(self, user: str, server_name: str, reservation_id: str) -> bool:
        """As the spawner does it: under a lease or not at all, and after what an earlier start left."""
        with self.portal.store.read() as session:
            row = reservations.open_on_server(session, user, server_name)
        if row is None or row.reservation_id != reservation_id or row.end_wanted:
            return False
        assert Status(row.status).holds_gpus, f"{reservation_id} was started while it is {row.status}"
        if row.expires_at is not None and row.expires_at <= self.now:
            return False
        until = self.now + timedelta(seconds=self.start_s)
        pod = Pod(reservation_id, user, server_name, "spawn", until, self.comes_up)
        self.known[pod.key] = self.running[reservation_id] = pod
        self.starts.append(reservation_id)
        return True

    # The box ------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        return tuple(self.nodes_by_name.values())

    def processes(self) -> Set[str]:
        return set(self.running) if self.local else frozenset()

    def end(self, reservation_id: str) -> None:
        if pod := self.running.get(reservation_id):
            self._gone(pod)

    def sweep(self, open_ids: Set[str]) -> None:
        if self.local:
            for reservation_id in set(self.running) - open_ids:
                self.end(reservation_id)

    # What happens by itself ---------------------------------------------------------------------------

    def tick(self, to: datetime) -> None:
        self.now = max(self.now, to)
        due = [pod for pod in self.running.values() if pod.until and pod.until <= self.now]
        for pod in sorted(due, key=lambda pod: pod.reservation_id):
            if pod.state == "stop":
                self._gone(pod)
            elif pod.comes_up:
                pod.state, pod.until = "ready", None
            else:
                self._gone(pod, hook=False)
                self._wait(
                    Leases(self.portal).start_failed(
                        pod.reservation_id, failures.cause("start_timeout", seconds=120), self.now
                    )
                )

    def dies(self, reservation_id: str) -> None:
        """The server ends by itself: the spawner says so, or nobody does."""
        self._gone(self.running[reservation_id], failures.of_exit(1))

    def is_forgotten(self, reservation_id: str) -> None:
        """The hub came up without it, though it runs on."""
        self.known.pop(self.running[reservation_id].key, None)

    def _gone(self, pod: Pod, cause: failures.Cause | None = None, hook: bool = True) -> None:
        self.running.pop(pod.reservation_id, None)
        was_known = self.known.pop(pod.key, None)
        if hook and self.hooks and was_known and self.mood != "silent":
            end = (Status.FAILED, cause) if cause else (Status.CANCELLED, "server_stopped")
            self._wait(Leases(self.portal).stopped(pod.reservation_id, *end, self.now))

    def _wait(self, work: Any) -> None:
        with self.lock:  # ends may come from several threads
            self.loop.run_until_complete(work)


def clear(store: Store) -> None:
    with store.write() as session:
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(delete(table))


class NoGuesses:
    """In place of the forecaster, which promises nothing and takes most of the time."""

    def submit(self, *_: Any) -> None: ...

    def is_overtaken(self, *_: Any) -> bool:
        return False

    def wait(self) -> None: ...

    def close(self) -> None: ...


class Scene:
    """The controller, restarted at will, in its world."""

    def __init__(self, store: Store, settings: Settings, local: bool = True) -> None:
        self.portal = Portal(settings, CATALOGUE, Machine(simulated=True, nodes=NODES), store)
        self.outside = Outside(self.portal, local=local)
        self.rounds = 0
        self.controller = self._new()

    def _new(self) -> Controller:
        outside = self.outside
        made = Controller(self.portal, outside, outside, lambda: outside.now)  # type: ignore[arg-type]
        made._forecaster.close()
        made._forecaster = NoGuesses()  # type: ignore[assignment]
        return made

    def restart(self, settings: Settings | None = None) -> None:
        self.controller.close()
        if settings is not None:
            self.portal = self.outside.portal = replace(self.portal, settings=settings)
        self.controller = self._new()

    def round(self) -> None:
        self.rounds += 1
        self.controller.round()
        self.controller.wait_for_calls()

    def close(self) -> None:
        self.controller.close()
        self.outside.close()

    def rows(self, *statuses: Status) -> Sequence[ReservationRow]:
        with self.portal.store.read() as session:
            query = select(ReservationRow).order_by(ReservationRow.created_at, ReservationRow.reservation_id)
            wanted = [status.value for status in statuses]
            return session.scalars(query.where(ReservationRow.status.in_(wanted)) if wanted else query).all()

    def open_rows(self) -> Sequence[ReservationRow]:
        with self.portal.store.read() as session:
            return reservations.open_rows(session)

    def until(self, target: datetime, most: int = 1000) -> None:
        """Let time pass with a round at everything that happens on the way, as a doorbell would."""
        for _ in range(most):
            at = min(self.next_event(), target)
            self.outside.tick(at)
            self.round()
            if at >= target:
                return

    def next_event(self) -> datetime:
        """The first time at which something is due, from rows and the outside alone."""
        now, grace = self.outside.now, timedelta(seconds=self.portal.settings.servers.stop_grace_s)
        times: list[datetime | None] = [pod.until for pod in self.outside.running.values()]
        for row in self.open_rows():
            times += [row.planned_start, row.expires_at, row.latest_end, row.retry_at]
            if row.expires_at:
                times.append(row.expires_at + grace)
            if Status(row.status).holds_gpus and self._is_in_flux(row):
                times.append(now + 3 * SECOND)
        return min((at for at in times if at is not None and at > now), default=now + timedelta(minutes=5))

    def _is_in_flux(self, row: ReservationRow) -> bool:
        """Something is being tried again of which nobody knows when it will succeed."""
        pod = self.outside.known.get((row.user_id, row.server_name))
        return pod is None or (row.end_wanted is not None and pod.state != "stop")


# What must hold ---------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What was last seen of one reservation."""

    status: str = ""
    ended: datetime | None = None
    promise: datetime | None = None
    promised_at: datetime = START
    ending_at: datetime | None = None
    moved: int = 0


class Checker:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._seen: dict[str, Seen] = {}
        self._last_event = 0
        self._excused: dict[str, datetime] = {}
        self._calm_since = START
        self._held: set[str] = set()
        self.back_since = START
        """When the controller last came up."""
        self.limits_are_low = False
        """Lower than when some were filed: they are told when their turn comes."""

    def excuse(self, gpu_types: Iterable[str] = CATALOGUE) -> None:
        """Capacity was taken away, or nobody was there to start: promises may move."""
        self._excused |= dict.fromkeys(gpu_types, self._scene.outside.now)

    def is_disturbed(self) -> None:
        """The hub does not do as it is told, or not in time."""
        self._calm_since = self._scene.outside.now

    def before_round(self) -> None:
        """What should be gone and is not, because the hub would not have it, has taken capacity away."""
        now = self._scene.outside.now
        if now - self._calm_since > self._cleanup + SLACK:
            return
        for row in self._scene.open_rows():
            end = row.expires_at or row.latest_end
            if Status(row.status).holds_gpus and end and end + self._cleanup <= now:
                self.excuse([row.gpu_type])

    @property
    def _cleanup(self) -> timedelta:
        settings = self._scene.portal.settings
        return timedelta(seconds=settings.servers.stop_grace_s + settings.queue.cleanup_s)

    def check(self) -> None:
        columns = ReservationRow.__table__.c
        with self._scene.portal.store.read() as session:
            rows = session.execute(select(*columns)).all()
            events = session.execute(
                select(*ReservationEventRow.__table__.c)
                .where(ReservationEventRow.event_id > self._last_event)
                .order_by(ReservationEventRow.event_id)
            ).all()
            disks = session.execute(select(*DiskRow.__table__.c)).all()
        holding = [row for row in rows if Status(row.status).holds_gpus]
        self._check_events(events)
        self._check_units(holding)
        self._check_gangs(holding)
        self._check_quotas(holding)
        self._check_pods({row.reservation_id: row for row in rows})
        self._check_disks(disks, {row.reservation_id: row for row in holding})
        for row in rows:
            self._check_final(row)
            self._check_promise(row)
            self._check_times(row)
        self._check_nothing_outlives(holding)
        for row in rows:
            seen = self._seen[row.reservation_id]
            seen.status, seen.ended = row.status, row.reservation_ended

    # Rows ---------------------------------------------------------------------------------------------

    def _check_events(self, events: Sequence[Row[Any]]) -> None:
        """Every status follows from the one before it by a legal step."""
        for event in events:
            self._last_event = event.event_id
            seen = self._seen.setdefault(event.reservation_id, Seen())
            if event.event == "ending":
                seen.ending_at = event.at
            if event.event == "promise_moved":
                seen.moved += 1
                self._check_excuse(event)
            if event.to_status is None:
                continue
            assert (event.from_status or "") == seen.status, f"{event} does not follow {seen.status!r}"
            if event.from_status:
                assert Status(event.to_status) in ALLOWED[Status(event.from_status)], event
            seen.status = event.to_status

    def _check_final(self, row: Row[Any]) -> None:
        seen = self._seen[row.reservation_id]
        assert row.status == seen.status, f"{row.reservation_id}: {row.status}, its events say {seen.status}"
        if seen.ended is not None:
            assert row.reservation_ended == seen.ended, f"{row.reservation_id} ended twice"
        assert (row.reservation_ended is not None) == Status(row.status).is_terminal

    def _check_times(self, row: Row[Any]) -> None:
        if row.placement is None or row.latest_end is None:
            assert not Status(row.status).holds_gpus, f"{row.reservation_id} holds without a place or an end"
            return
        if row.expires_at is not None:
            assert row.expires_at <= row.latest_end, f"{row.reservation_id} ends after what others build on"
            asked = timedelta(hours=row.duration_hours)
            assert row.expires_at <= row.launched_at + asked + SECOND, f"{row.reservation_id} has more hours"
        else:
            assert row.status != "active"

    # The machines -------------------------------------------------------------------------------------

    def _check_units(self, holding: Sequence[Row[Any]]) -> None:
        taken: dict[tuple[str, int], str] = {}
        nodes = {node.name: node for node in NODES}
        for row in holding:
            for share in row.placement:
                assert nodes[share["node"]].gpu_type == row.gpu_type
                assert all(unit < nodes[share["node"]].units for unit in share["units"])
                for unit in share["units"]:
                    other = taken.setdefault((share["node"], unit), row.reservation_id)
                    assert other == row.reservation_id, f"{share['node']}/{unit}: {other} and {row}"

    def _check_gangs(self, holding: Sequence[Row[Any]]) -> None:
        for row in holding:
            per_node = CATALOGUE[row.gpu_type].units_per_node
            shares = [len(set(share["units"])) for share in row.placement]
            assert sum(shares) == max(1, row.gpu_count), f"{row.reservation_id} has a part of its GPUs"
            names = {share["node"] for share in row.placement}
            assert len(names) == len(shares) == max(1, -(-row.gpu_count // per_node))
            assert len(shares) == 1 or set(shares) == {per_node}
            zones = {node.zone for node in NODES if node.name in names}
            assert not row.zone or zones == {row.zone}, f"{row.reservation_id} is not where its disk is"

    def _check_quotas(self, holding: Sequence[Row[Any]]) -> None:
        """Whoever came in since the last look came in within the limits of now."""
        limits = self._scene.portal.settings.limits
        for user in {row.user_id for row in holding}:
            mine = [row for row in holding if row.user_id == user]
            if any(row.reservation_id not in self._held for row in mine):
                assert sum(row.gpu_count for row in mine) <= limits.gpus, f"{user} holds {mine}"
                assert len(mine) <= limits.reservations, f"{user} holds {mine}"
        self._held = {row.reservation_id for row in holding}

    def _check_pods(self, rows: Mapping[str, Row[Any]]) -> None:
        """Nothing runs without a lease, and one that is over was seen to be gone first."""
        outside = self._scene.outside
        for pod in [*outside.running.values(), *outside.known.values()]:
            row = rows[pod.reservation_id]
            assert Status(row.status).holds_gpus, f"{pod} runs for one that is {row.status}"
            assert (row.user_id, row.server_name) == pod.key
        ids = [pod.reservation_id for pod in outside.known.values()]
        assert len(ids) == len(set(ids)), "two servers for one reservation"

    def _check_disks(self, disks: Sequence[Row[Any]], holding: Mapping[str, Row[Any]]) -> None:
        for disk in disks:
            if disk.in_use:
                row = holding[disk.reservation_id]
                assert (row.user_id, row.disk_name) == (disk.user_id, disk.disk_name)
        attached = {disk.reservation_id for disk in disks if disk.in_use}
        assert attached == {key for key, row in holding.items() if row.disk_name}

    # Time ---------------------------------------------------------------------------------------------

    def _check_excuse(self, event: Row[Any]) -> None:
        seen = self._seen[event.reservation_id]
        with self._scene.portal.store.read() as session:
            gpu_type = session.get_one(ReservationRow, event.reservation_id).gpu_type
        since = self._excused.get(gpu_type)
        taken_away = since is not None and since >= seen.promised_at
        told = event.detail["code"] == "over_quota" and self.limits_are_low
        assert taken_away or told, f"moved without a cause: {event}"
        seen.promised_at = event.at

    def _check_promise(self, row: Row[Any]) -> None:
        """It only ever moves earlier, but where it is said that it moved; and it is kept."""
        seen = self._seen[row.reservation_id]
        if seen.promise is not None and not seen.moved:
            assert row.no_later_than is not None, f"{row.reservation_id} lost its promise"
            assert row.no_later_than <= seen.promise, f"{row.reservation_id} was put off without a word"
        if row.no_later_than != seen.promise and row.no_later_than is not None and seen.promise is None:
            seen.promised_at = self._scene.outside.now
        seen.promise, seen.moved = row.no_later_than, 0
        if row.no_later_than is not None and row.preparing_at is not None:
            late = row.preparing_at - row.no_later_than
            assert late <= SECOND or self._was_excused(row), f"{row.reservation_id} began {late} late"
        if Status(row.status).is_waiting and row.no_later_than is not None:
            late = self._scene.outside.now - row.no_later_than
            assert late <= SECOND or self._was_excused(row), f"{row.reservation_id} waits {late} too long"

    def _was_excused(self, row: Row[Any]) -> bool:
        since = self._excused.get(row.gpu_type)
        return since is not None and since >= self._seen[row.reservation_id].promised_at

    def _check_nothing_outlives(self, holding: Sequence[Row[Any]]) -> None:
        outside = self._scene.outside
        calm = outside.now - self._calm_since
        for row in holding:
            end = row.expires_at or row.latest_end
            if min(outside.now - end, calm) > self._cleanup + SLACK:
                raise AssertionError(f"{row.reservation_id} holds {outside.now - end} after its end: {row}")
        grace = timedelta(seconds=self._scene.portal.settings.servers.stop_grace_s)
        for key in outside.processes():
            since = self._seen[key].ending_at or outside.now
            late = outside.now - max(since, self.back_since)
            assert late <= grace + SLACK, f"{key} runs {late} after its end"
