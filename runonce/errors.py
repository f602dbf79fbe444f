"""Every error of the toolkit, for each kind what happened and what to do about it, and the signals to end a run.

The class docstring is the message used when none is given, so an error is never silent about its remedy.
"""

from __future__ import annotations


class _Said(BaseException):
    """Says what its class's docstring says when it is given no message."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or " ".join((self.__doc__ or "").split()))


class RunonceError(_Said, Exception):
    """Something in runonce went wrong; see the message for what to do."""


class DefinitionError(RunonceError):
    """A job is declared in a way that cannot work; correct the decorator's arguments."""


class ScheduleError(DefinitionError):
    """A schedule is not valid NCRONTAB; correct the expression or the time zone."""


class JobFileError(RunonceError):
    """A file in the jobs folder could not be imported; correct it and start again."""


class UnknownJobError(RunonceError):
    """No job has that name; `runonce list` shows the ones there are."""


class SettingsError(RunonceError):
    """A setting is missing or wrong; correct the environment variable the message names."""


class MissingExtraError(RunonceError):
    """A part of runonce needs packages that are not installed; install the extra the message names."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} needs packages that are not installed: pip install "runonce[{extra}]".')


class InputError(RunonceError):
    """A job's input is not as it must be; correct the input the message names and run the job again."""


class StoreError(RunonceError):
    """Azure Storage refused a request for a reason that trying again will not change."""


class UnreadableRowError(StoreError):
    """A row in the table is of a newer version of runonce, or was edited by hand; it is left as it is."""


class StoreUnavailableError(StoreError):
    """Azure Storage could not be reached in time; the request may or may not have been carried out."""

    def __init__(self, message: str | None = None, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds that the server asks to be left alone; 0 where it says nothing."""


class ConflictError(StoreError):
    """A conditional write was refused: the row changed, exists already, or is gone."""

    def __init__(self, message: str | None = None, *, index: int = 0, exists: bool = False) -> None:
        super().__init__(message)
        self.index = index
        """Position in the transaction of the write that was refused."""
        self.exists = exists
        """True when the write was an insert and the row was there already."""


class TransportError(RunonceError):
    """The message broker did not answer, or refused; nothing is lost, the message is redelivered."""


class TransportRefusedError(TransportError):
    """The message broker refused for a reason that waiting does not mend; correct what the message names."""


class AlreadyRecordedError(RunonceError):
    """A ledger entry with that key was recorded before; skip it, it has taken effect already."""


class RunInterrupted(_Said):
    """The run must end now; let this exception pass, the toolkit records why and where to go on."""

    # Not an Exception, as asyncio's CancelledError is none: an everyday `except Exception` must not swallow it.


class LeaseLost(RunInterrupted):
    """The run's lease is lost: another replica may already be running this job, so write nothing more."""


class HostStopping(RunInterrupted):
    """The host is shutting down; the run goes on elsewhere from its last checkpoint."""


class TimeLimitExceeded(RunInterrupted):
    """The run took longer than its max_runtime; raise max_runtime or make the job shorter."""


class Fenced(RunInterrupted):
    """A newer run holds this job: the write was refused by its fencing token and nothing was changed."""


class PermanentError(RunonceError):
    """Raise this when trying again cannot help: the run fails at once, whatever retries are left."""


class InProgressError(RunonceError):
    """Another call of that key is at work; try again when it has ended."""


class KeyReusedError(InputError):
    """A key came before with other arguments; one key means one call, so give another call a key of its own."""


class NotKeptError(InputError, PermanentError):
    """What was to be kept or sent never can be; trying again would only repeat what was done before it."""
