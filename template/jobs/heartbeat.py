"""A scheduled job: each fire time takes effect once, however many hosts run it. Replace it with yours."""

from runonce import Run, scheduled


@scheduled("0 * * * * *", time_zone="UTC", misfire="latest")
def heartbeat(run: Run) -> None:
    """Keep the newest minute in a blob; an older run that was held up cannot put an old one over it."""
    run.blobs.write("heartbeat.txt", run.fire_time.isoformat())
