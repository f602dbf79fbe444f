"""A small local stand-in for Azure Service Bus, for tests and laptops; never part of a deployment.

It speaks AMQP 1.0 through Apache Qpid Proton, so Microsoft's own clients talk to it unchanged.
What it does not do is listed in README.md; it has never been compared with Azure itself.

Modules, from the outside in: `launcher` and `__main__` start it, `server` runs it, `control` commands it;
`connection`, `sasl`, `frames`, `flows`, `links`, `transfers`, `requests`, `management`, `tokens` speak AMQP;
`broker` knows the entities that `entities` declares; `queue`, `relays`, `filters`, `sql`, `limits`, `locks`,
`duplicates`, `timers`, `store` are what messages live in and pass; `message` and `values` are its bytes; `faults`
makes the broker misbehave on request.
"""
