"""Queue handlers: a message → claimed → run → settled, with one effect however often it is delivered."""
