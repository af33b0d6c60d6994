"""The first tables: GPU types, reservations and their events, disks, SSH keys."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "disks",
        sa.Column("disk_id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=255), nullable=False),
        sa.Column("disk_name", sa.String(length=63), nullable=False),
        sa.Column("size_gb", sa.Integer(), nullable=True),
        sa.Column("ebs_volume_id", sa.String(length=64), nullable=True),
        sa.Column("zone", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used", sa.DateTime(timezone=True), nullable=True),
        sa.Column("in_use", sa.Boolean(), nullable=False),
        sa.Column("reservation_id", sa.String(length=64), nullable=True),
        sa.Column("attached_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("snapshot_count", sa.Integer(), nullable=False),
        sa.Column("is_backing_up", sa.Boolean(), nullable=False),
        sa.Column("last_snapshot_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("latest_snapshot_content_s3", sa.Text(), nullable=True),
        sa.Column("is_deleted", sa.Boolean(), nullable=False),
        sa.Column("delete_date", sa.DateTime(timezone=True), nullable=True),
        sa.Column("operation_id", sa.String(length=64), nullable=True),
        sa.Column("operation_status", sa.String(length=20), nullable=True),
        sa.Column("operation_error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("disk_id"),
        sa.UniqueConstraint("user_id", "disk_name", name="uq_disks_user_name"),
    )
    op.create_table(
        "gpu_types",
        sa.Column("gpu_type", sa.String(length=50), nullable=False),
        sa.Column("instance_type", sa.String(length=100), nullable=False),
        sa.Column("max_gpus", sa.Integer(), nullable=False),
        sa.Column("cpus", sa.Integer(), nullable=False),
        sa.Column("memory_gb", sa.Integer(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("total_cluster_gpus", sa.Integer(), nullable=False),
        sa.Column("available_gpus", sa.Integer(), nullable=False),
        sa.Column("max_reservable", sa.Integer(), nullable=False),
        sa.Column("full_nodes_available", sa.Integer(), nullable=False),
        sa.Column("running_instances", sa.Integer(), nullable=False),
        sa.Column("desired_capacity", sa.Integer(), nullable=False),
        sa.Column("max_per_node", sa.Integer(), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("last_availability_update", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_availability_updated_by", sa.String(length=100), nullable=True),
        sa.PrimaryKeyConstraint("gpu_type"),
    )
    op.create_table(
        "reservations",
        sa.Column("reservation_id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=255), nullable=False),
        sa.Column("server_name", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("github_user", sa.String(length=255), nullable=True),
        sa.Column("gpu_type", sa.String(length=50), nullable=False),
        sa.Column("gpu_count", sa.Integer(), nullable=False),
        sa.Column("instance_type", sa.String(length=100), nullable=True),
        sa.Column("duration_hours", sa.Double(), nullable=False),
        sa.Column("image", sa.String(length=512), nullable=True),
        sa.Column("disk_name", sa.String(length=63), nullable=True),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("filed_from", sa.String(length=20), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("current_detailed_status", sa.Text(), nullable=True),
        sa.Column("failure_reason", sa.Text(), nullable=True),
        sa.Column("end_wanted", sa.String(length=20), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column("end_actor", sa.String(length=255), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("preparing_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("launched_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("reservation_ended", sa.DateTime(timezone=True), nullable=True),
        sa.Column("queue_position", sa.Integer(), nullable=True),
        sa.Column("estimated_wait_minutes", sa.Integer(), nullable=True),
        sa.Column("expected_start", sa.DateTime(timezone=True), nullable=True),
        sa.Column("queue_reason", sa.JSON(), nullable=True),
        sa.Column("placement", sa.JSON(), nullable=True),
        sa.Column("start_attempts", sa.Integer(), nullable=False),
        sa.Column("pod_name", sa.String(length=255), nullable=True),
        sa.Column("namespace", sa.String(length=255), nullable=True),
        sa.Column("node_ip", sa.String(length=255), nullable=True),
        sa.Column("node_port", sa.Integer(), nullable=True),
        sa.Column("ssh_command", sa.Text(), nullable=True),
        sa.Column("jupyter_enabled", sa.Boolean(), nullable=False),
        sa.Column("jupyter_url", sa.Text(), nullable=True),
        sa.Column("secondary_users", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("reservation_id"),
    )
    with op.batch_alter_table("reservations", schema=None) as batch_op:
        batch_op.create_index("ix_reservations_status", ["status", "gpu_type", "created_at"], unique=False)
        batch_op.create_index("ix_reservations_user", ["user_id", "created_at"], unique=False)
        batch_op.create_index(
            "uq_reservations_open_server",
            ["user_id", "server_name"],
            unique=True,
            sqlite_where=sa.text("status IN ('pending', 'queued', 'preparing', 'active')"),
            postgresql_where=sa.text("status IN ('pending', 'queued', 'preparing', 'active')"),
        )

    op.create_table(
        "ssh_keys",
        sa.Column(
            "key_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("user_id", sa.String(length=255), nullable=False),
        sa.Column("public_key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.String(length=128), nullable=False),
        sa.Column("comment", sa.String(length=255), nullable=False),
        sa.Column("source", sa.String(length=20), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("key_id"),
        sa.UniqueConstraint("user_id", "fingerprint", name="uq_ssh_keys_user_fingerprint"),
    )
    op.create_table(
        "reservation_events",
        sa.Column(
            "event_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("reservation_id", sa.String(length=64), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(length=255), nullable=False),
        sa.Column("event", sa.String(length=50), nullable=False),
        sa.Column("from_status", sa.String(length=20), nullable=True),
        sa.Column("to_status", sa.String(length=20), nullable=True),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["reservation_id"],
            ["reservations.reservation_id"],
        ),
        sa.PrimaryKeyConstraint("event_id"),
    )
    with op.batch_alter_table("reservation_events", schema=None) as batch_op:
        batch_op.create_index(
            "ix_reservation_events_reservation", ["reservation_id", "event_id"], unique=False
        )


def downgrade() -> None:
    with op.batch_alter_table("reservation_events", schema=None) as batch_op:
        batch_op.drop_index("ix_reservation_events_reservation")

    op.drop_table("reservation_events")
    op.drop_table("ssh_keys")
    with op.batch_alter_table("reservations", schema=None) as batch_op:
        batch_op.drop_index(
            "uq_reservations_open_server",
            sqlite_where=sa.text("status IN ('pending', 'queued', 'preparing', 'active')"),
            postgresql_where=sa.text("status IN ('pending', 'queued', 'preparing', 'active')"),
        )
        batch_op.drop_index("ix_reservations_user")
        batch_op.drop_index("ix_reservations_status")

    op.drop_table("reservations")
    op.drop_table("gpu_types")
    op.drop_table("disks")
