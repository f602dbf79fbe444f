"""Storage: the protocols the toolkit is written against, and their implementations.

Imported by everything above (the implementations by the runtime and by tests alone); imports the settings, the
clock and the errors.
"""
