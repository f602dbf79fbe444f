"""runonce's job."""

import work

from runonce import Run, scheduled


@scheduled(f"*/{work.EVERY} * * * * *")
def job(run: Run) -> None:
    """Run at a fire time."""
    work.do(run.fire_time.isoformat())
