"""What runs and messages both need: to run somebody's code, and to own a row meanwhile.

Imported by both wings and what lies above them; imports the protocols of stores and transports, the clock and the
errors.
"""
