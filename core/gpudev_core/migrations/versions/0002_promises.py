"""Promises: plans and forecasts of the queue, groups, priorities, maintenance, notices, terms of leaders."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

TIME = sa.DateTime(timezone=True)
ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def reservation_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("groups", sa.JSON(), nullable=False, server_default="[]"),
        sa.Column("priority", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("zone", sa.String(length=64), nullable=True),
        sa.Column("requeued_from", sa.String(length=64), nullable=True),
        sa.Column("failure_code", sa.String(length=50), nullable=True),
        sa.Column("latest_end", TIME, nullable=True),
        sa.Column("planned_start", TIME, nullable=True),
        sa.Column("planned_nodes", sa.JSON(), nullable=True),
        sa.Column("no_later_than", TIME, nullable=True),
        sa.Column("retry_at", TIME, nullable=True),
    ]


def gpu_type_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("maintenance", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("maintenance_note", sa.Text(), nullable=True),
        sa.Column("maintenance_allowed", sa.JSON(), nullable=False, server_default="[]"),
    ]


TABLES = ("leaders", "deliveries", "notices", "forecasts")


def upgrade() -> None:
    with op.batch_alter_table("reservations") as table:
        for column in reservation_columns():
            table.add_column(column)
    with op.batch_alter_table("gpu_types") as table:
        for column in gpu_type_columns():
            table.add_column(column)
    op.create_table(
        "forecasts",
        sa.Column("forecast_id", ROW_ID, autoincrement=True, nullable=False),
        sa.Column("reservation_id", sa.String(length=64), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("queue_length", sa.Integer(), nullable=False),
        sa.Column("planned_start", TIME, nullable=True),
        sa.Column("no_later_than", TIME, nullable=True),
        sa.Column("expected_start", TIME, nullable=True),
        sa.Column("expected_from", TIME, nullable=True),
        sa.Column("expected_until", TIME, nullable=True),
        sa.Column("method", sa.String(length=20), nullable=False),
        sa.ForeignKeyConstraint(["reservation_id"], ["reservations.reservation_id"]),
        sa.PrimaryKeyConstraint("forecast_id"),
    )
    op.create_index("ix_forecasts_reservation", "forecasts", ["reservation_id", "forecast_id"])
    op.create_table(
        "notices",
        sa.Column("notice_id", ROW_ID, autoincrement=True, nullable=False),
        sa.Column("reservation_id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=30), nullable=False),
        sa.Column("due_at", TIME, nullable=False),
        sa.Column("withdrawn_at", TIME, nullable=True),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["reservation_id"], ["reservations.reservation_id"]),
        sa.PrimaryKeyConstraint("notice_id"),
        sa.UniqueConstraint("reservation_id", "kind", "due_at", name="uq_notices_once"),
    )
    op.create_index("ix_notices_due", "notices", ["due_at"])
    op.create_table(
        "deliveries",
        sa.Column("notice_id", ROW_ID, nullable=False),
        sa.Column("channel", sa.String(length=20), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_try_at", TIME, nullable=False),
        sa.Column("delivered_at", TIME, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["notice_id"], ["notices.notice_id"]),
        sa.PrimaryKeyConstraint("notice_id", "channel"),
    )
    op.create_index("ix_deliveries_open", "deliveries", ["channel", "status", "next_try_at"])
    op.create_table(
        "leaders",
        sa.Column("name", sa.String(length=50), nullable=False),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def downgrade() -> None:
    for name in TABLES:
        op.drop_table(name)
    for name, columns in (("reservations", reservation_columns()), ("gpu_types", gpu_type_columns())):
        with op.batch_alter_table(name) as table:
            for column in columns:
                table.drop_column(column.name)
