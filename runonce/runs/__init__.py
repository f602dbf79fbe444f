"""A fire time becomes one run: dispatch, claim, record, recovery, and what people ask of it.

Imported by the messages' wing (its purge is a scheduled job), hosts and the command line; imports `execution`,
`schedules` and the protocols.
"""
