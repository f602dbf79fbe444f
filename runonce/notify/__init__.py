"""People are told without Azure Monitor: a webhook for incidents, pings of a job's runs, a function of one's own.

Imported by hosts, which add these hooks; imports `execution` (its hooks and events) and the errors.
"""
