"""The tables: the columns of the system that this one replaces, plus what the hub's way of working needs.

Times are aware and in UTC everywhere: ``timestamptz`` on PostgreSQL; on SQLite, which has no zones, they are
kept in UTC and get their zone back on reading. A time without a zone is an error, never a guess.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator


class UtcDateTime(TypeDecorator[datetime]):
    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value.isoformat()} has no time zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


RowId = BigInteger().with_variant(Integer, "sqlite")
"""SQLite counts rows up by itself only for a plain INTEGER key."""


_IS_OPEN = text("status IN ('pending', 'queued', 'preparing', 'active')")
"""One lease for one server, whoever files it."""


class Base(DeclarativeBase):
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: UtcDateTime,
        dict[str, Any]: JSON,
        list[dict[str, Any]]: JSON,
        list[str]: JSON,
    }


class GpuTypeRow(Base):
    """A GPU type and how much of it is free. ``max_gpus``: the most that one reservation can ask for."""

    __tablename__ = "gpu_types"

    gpu_type: Mapped[str] = mapped_column(String(50), primary_key=True)
    instance_type: Mapped[str] = mapped_column(String(100))
    max_gpus: Mapped[int]
    cpus: Mapped[int]
    memory_gb: Mapped[int]
    is_active: Mapped[bool] = mapped_column(default=True)

    total_cluster_gpus: Mapped[int] = mapped_column(default=0)
    available_gpus: Mapped[int] = mapped_column(default=0)
    max_reservable: Mapped[int] = mapped_column(default=0)
    full_nodes_available: Mapped[int] = mapped_column(default=0)
    running_instances: Mapped[int] = mapped_column(default=0)
    desired_capacity: Mapped[int] = mapped_column(default=0)
    max_per_node: Mapped[int] = mapped_column(default=0)
    nodes: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    """Node by node, as ``availability`` last saw them: the picture that people are shown."""
    last_availability_update: Mapped[datetime | None]
    last_availability_updated_by: Mapped[str | None] = mapped_column(String(100))

    maintenance: Mapped[bool] = mapped_column(default=False)
    """Set by an admin: nothing new starts but what ``maintenance_allowed`` names; what runs goes on."""
    maintenance_note: Mapped[str | None] = mapped_column(Text)
    maintenance_allowed: Mapped[list[str]] = mapped_column(default=list)


class ReservationRow(Base):
    """Queue entry, lease and record in one, so that nothing is lost between a queue and a table."""

    __tablename__ = "reservations"
    __table_args__ = (
        Index("ix_reservations_status", "status", "gpu_type", "created_at"),
        Index("ix_reservations_user", "user_id", "created_at"),
        Index(
            "uq_reservations_open_server",
            "user_id",
            "server_name",
            unique=True,
            sqlite_where=_IS_OPEN,
            postgresql_where=_IS_OPEN,
        ),
    )

    reservation_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    user_id: Mapped[str] = mapped_column(String(255))
    server_name: Mapped[str] = mapped_column(String(63))
    name: Mapped[str] = mapped_column(String(255))
    github_user: Mapped[str | None] = mapped_column(String(255))
    gpu_type: Mapped[str] = mapped_column(String(50))
    gpu_count: Mapped[int]
    instance_type: Mapped[str | None] = mapped_column(String(100))
    duration_hours: Mapped[float]
    image: Mapped[str | None] = mapped_column(String(512))
    disk_name: Mapped[str | None] = mapped_column(String(63))
    request: Mapped[dict[str, Any]]
    filed_from: Mapped[str] = mapped_column(String(20))
    groups: Mapped[list[str]] = mapped_column(default=list)
    """The person's groups in the hub when it was filed: they decide limits and priority."""
    priority: Mapped[int] = mapped_column(default=0)
    zone: Mapped[str | None] = mapped_column(String(64))
    """Where its disk is, and so where it must run. NULL: anywhere."""
    requeued_from: Mapped[str | None] = mapped_column(String(64))
    """The failed reservation that an admin put into the queue again as this one."""

    status: Mapped[str] = mapped_column(String(20))
    current_detailed_status: Mapped[str | None] = mapped_column(Text)
    failure_reason: Mapped[str | None] = mapped_column(Text)
    failure_code: Mapped[str | None] = mapped_column(String(50))
    end_wanted: Mapped[str | None] = mapped_column(String(20))
    """The terminal status that this reservation is on its way to, once its server is gone."""
    end_reason: Mapped[str | None] = mapped_column(Text)
    end_actor: Mapped[str | None] = mapped_column(String(255))

    created_at: Mapped[datetime]
    preparing_at: Mapped[datetime | None]
    launched_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    latest_end: Mapped[datetime | None]
    """Set when it is admitted: the end that later promises build on. ``expires_at`` is never after it."""
    reservation_ended: Mapped[datetime | None]

    queue_position: Mapped[int | None]
    estimated_wait_minutes: Mapped[int | None]
    expected_start: Mapped[datetime | None]
    planned_start: Mapped[datetime | None]
    planned_nodes: Mapped[list[str] | None]
    no_later_than: Mapped[datetime | None]
    """The promise. It is kept when the reservation has started, so that it can be compared."""
    queue_reason: Mapped[dict[str, Any] | None]
    placement: Mapped[list[dict[str, Any]] | None]
    start_attempts: Mapped[int] = mapped_column(default=0)
    retry_at: Mapped[datetime | None]
    """Not started again before this."""

    pod_name: Mapped[str | None] = mapped_column(String(255))
    namespace: Mapped[str | None] = mapped_column(String(255))
    node_ip: Mapped[str | None] = mapped_column(String(255))
    node_port: Mapped[int | None]
    ssh_command: Mapped[str | None] = mapped_column(Text)
    jupyter_enabled: Mapped[bool] = mapped_column(default=True)
    jupyter_url: Mapped[str | None] = mapped_column(Text)
    secondary_users: Mapped[list[str]] = mapped_column(default=list)


class ReservationEventRow(Base):
    """Who, when, what, why: one line for each change, never changed itself."""

    __tablename__ = "reservation_events"
    __table_args__ = (Index("ix_reservation_events_reservation", "reservation_id", "event_id"),)

    event_id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    reservation_id: Mapped[str] = mapped_column(ForeignKey("reservations.reservation_id"))
    at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(String(255))
    event: Mapped[str] = mapped_column(String(50))
    from_status: Mapped[str | None] = mapped_column(String(20))
    to_status: Mapped[str | None] = mapped_column(String(20))
    detail: Mapped[dict[str, Any]] = mapped_column(default=dict)


class ForecastRow(Base):
    """What a waiting person was told, and when: compared later with what came true."""

    __tablename__ = "forecasts"
    __table_args__ = (Index("ix_forecasts_reservation", "reservation_id", "forecast_id"),)

    forecast_id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    reservation_id: Mapped[str] = mapped_column(ForeignKey("reservations.reservation_id"))
    at: Mapped[datetime]
    position: Mapped[int]
    queue_length: Mapped[int]
    planned_start: Mapped[datetime | None]
    no_later_than: Mapped[datetime | None]
    expected_start: Mapped[datetime | None]
    expected_from: Mapped[datetime | None]
    """With ``expected_until`` the interval in which four of five starts should fall."""
    expected_until: Mapped[datetime | None]
    method: Mapped[str] = mapped_column(String(20))
    """How ``expected_start`` was found: ``plan``, ``typical`` or ``simulated``."""


class NoticeRow(Base):
    """Something that a person is to be told about a reservation, not before ``due_at``."""

    __tablename__ = "notices"
    __table_args__ = (
        UniqueConstraint("reservation_id", "kind", "due_at", name="uq_notices_once"),
        Index("ix_notices_due", "due_at"),
    )

    notice_id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    reservation_id: Mapped[str] = mapped_column(ForeignKey("reservations.reservation_id"))
    user_id: Mapped[str] = mapped_column(String(255))
    kind: Mapped[str] = mapped_column(String(30))
    due_at: Mapped[datetime]
    withdrawn_at: Mapped[datetime | None]
    """Not to be told any more, as when the end it warns of was moved."""
    detail: Mapped[dict[str, Any]] = mapped_column(default=dict)


class DeliveryRow(Base):
    """One notice on one channel. It is tried again until it is delivered or has become pointless."""

    __tablename__ = "deliveries"
    __table_args__ = (Index("ix_deliveries_open", "channel", "status", "next_try_at"),)

    notice_id: Mapped[int] = mapped_column(ForeignKey("notices.notice_id"), primary_key=True)
    channel: Mapped[str] = mapped_column(String(20), primary_key=True)
    status: Mapped[str] = mapped_column(String(20))
    """``waiting``, ``delivered``, or ``dropped``."""
    attempts: Mapped[int] = mapped_column(default=0)
    next_try_at: Mapped[datetime]
    delivered_at: Mapped[datetime | None]
    error: Mapped[str | None] = mapped_column(Text)


class LeaderRow(Base):
    """Who leads, and for how many changes of leader: a write of an earlier term is refused."""

    __tablename__ = "leaders"

    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    term: Mapped[int]
    owner: Mapped[str] = mapped_column(String(255))


class DiskRow(Base):
    __tablename__ = "disks"
    __table_args__ = (UniqueConstraint("user_id", "disk_name", name="uq_disks_user_name"),)

    disk_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    user_id: Mapped[str] = mapped_column(String(255))
    disk_name: Mapped[str] = mapped_column(String(63))
    size_gb: Mapped[int | None]
    ebs_volume_id: Mapped[str | None] = mapped_column(String(64))
    zone: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime]
    last_used: Mapped[datetime | None]
    in_use: Mapped[bool] = mapped_column(default=False)
    reservation_id: Mapped[str | None] = mapped_column(String(64))
    attached_at: Mapped[datetime | None]
    snapshot_count: Mapped[int] = mapped_column(default=0)
    is_backing_up: Mapped[bool] = mapped_column(default=False)
    last_snapshot_at: Mapped[datetime | None]
    latest_snapshot_content_s3: Mapped[str | None] = mapped_column(Text)
    is_deleted: Mapped[bool] = mapped_column(default=False)
    delete_date: Mapped[datetime | None]
    operation_id: Mapped[str | None] = mapped_column(String(64))
    operation_status: Mapped[str | None] = mapped_column(String(20))
    operation_error: Mapped[str | None] = mapped_column(Text)


class SshKeyRow(Base):
    __tablename__ = "ssh_keys"
    __table_args__ = (UniqueConstraint("user_id", "fingerprint", name="uq_ssh_keys_user_fingerprint"),)

    key_id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    user_id: Mapped[str] = mapped_column(String(255))
    public_key: Mapped[str] = mapped_column(Text)
    fingerprint: Mapped[str] = mapped_column(String(128))
    comment: Mapped[str] = mapped_column(String(255), default="")
    source: Mapped[str] = mapped_column(String(20))
    created_at: Mapped[datetime]
    removed_at: Mapped[datetime | None]
