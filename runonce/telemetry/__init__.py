"""OpenTelemetry: spans and metrics of runs and messages, as hooks; nothing of it is imported unless it is asked for.

Imported by hosts, which add these hooks; imports `execution` (its hooks and events), the settings and the errors.
"""
