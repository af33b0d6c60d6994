"""A warning in a real JupyterLab terminal: from the row that is due to the screen of the person it is for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from running import Person, RunningPortal
from sqlalchemy import select, update

from gpudev_core.tables import DeliveryRow, NoticeRow, ReservationRow


def soon_over(portal: RunningPortal, reservation_id: str, left: timedelta) -> None:
    """Its end, and with it every warning, comes as near as ``left``."""
    ends = datetime.now(UTC) + left
    with portal.store.write() as session:
        of_row = ReservationRow.reservation_id == reservation_id
        session.execute(update(ReservationRow).where(of_row).values(expires_at=ends, latest_end=ends))
        for notice in session.scalars(select(NoticeRow).where(NoticeRow.reservation_id == reservation_id)):
            notice.due_at = ends - timedelta(minutes=int(notice.kind.rpartition("_")[2]))
            of_notice = DeliveryRow.notice_id == notice.notice_id
            session.execute(update(DeliveryRow).where(of_notice).values(next_try_at=notice.due_at))


@pytest.mark.parametrize(("left", "said"), [(29, "29 minutes left."), (4, "4 minutes left.")])
def test_a_terminal_is_told_that_the_end_is_near(
    portal: RunningPortal, person: Person, neighbour: Person, left: float, said: str
) -> None:
    mine, other = person.reserve("t4", 1, name="mine"), neighbour.reserve("t4", 1, name="other")
    lab_url = person.wait_for(mine, "active")["lab_url"]
    neighbour.wait_for(other, "active")
    soon = timedelta(minutes=left)
    shown = person.in_terminal(lab_url, lambda: soon_over(portal, mine, soon), "Files are gone then.")
    assert said in shown and "mine ends at" in shown
    assert shown.count("minutes left.") == 1, "of several warnings that are due only the nearest is news"
    with portal.store.read() as session:
        told = {row.kind for row in session.scalars(select(NoticeRow).filter_by(reservation_id=other))}
        done = session.scalars(select(DeliveryRow.status).filter_by(channel="terminal")).all()
    assert told == {"ends_in_30", "ends_in_15", "ends_in_5"}, "the neighbour's are still ahead"
    assert "delivered" in done
