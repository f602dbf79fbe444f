"""Queue handlers: a message → claimed → run → settled, with one effect however often it is delivered.

Imported by hosts and what lies above them; imports `runs` (for its purge, which is a scheduled job), `execution`,
and the protocols of stores and transports.
"""
