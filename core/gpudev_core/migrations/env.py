"""Alembic's entry: runs inside the transaction that ``Store.migrate`` opened."""

from alembic import context

from gpudev_core.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table="gpudev_alembic_version",
    render_as_batch=True,
)
context.run_migrations()
