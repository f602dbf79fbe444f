"""When: expressions, fire times, misfires and time zones, and the same in the hosts' words. Pure.

Imported by everything above; imports the errors alone.
"""
