"""Deterministic simulation: the toolkit's own code against simulated storage, clocks, hosts and operators.

Every storage call, sleep and wait is a point where another task may go on, time may pass, and a host may be
killed, paused, cut off or told to stop. All of it follows from a seed, so that what fails once fails each time,
and can be made smaller until what matters is left.

    python dev.py simulate --schedules 2000
    python dev.py simulate --seed 4711       one schedule again, with a trace of what happened

Every second seed is of a scheduled job, the others are of messages: a topic with two subscriptions and a queue.

What is real: dispatch, lease, claim, recovery and operators' verbs; deliver, claim, heartbeat, consumer, sending, dead
letters and their replay; what binds both to the Functions host; and all their rows. What is simulated: threads (one
runs at a time, and says when it lets go), time, the way to storage and broker and both of these, the Functions host,
and what starts a tick.
"""
