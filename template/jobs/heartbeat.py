"""A scheduled job: each fire time takes effect once, however many hosts run it. Replace it with yours."""

from runonce import Run, scheduled


@scheduled("0 * * * * *", time_zone="UTC", misfire="latest")
def heartbeat(run: Run) -> None:
    """Record each minute in the ledger; a restart or a second host records none of them twice."""
    run.ledger.record("beat", at=run.fire_time.isoformat())
