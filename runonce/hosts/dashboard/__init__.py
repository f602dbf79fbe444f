"""The dashboard: pages of what ran, what did not and why, and forms for what an operator may do about it.

One ASGI app for all hosts: it shows what `runonce.hosts.facts` says and carries out what the command line's verbs do.

| file | what |
|---|---|
| `app` | the routes, the errors, the headers |
| `access` | who may look and who may act: this machine's user, a Functions key, Easy Auth; forms of other sites |
| `pages` | what is looked at |
| `actions` | what is done |
| `pictures` | the timeline and the durations, as shapes of an SVG |
| `words` | instants, durations and schedules as people read them |
| `lines` | the latest log lines of this process, by run |
| `local` | the server of our own host, on loopback |

Imported by `hosts/functions` and the command line; imports `hosts.facts`, both wings, Starlette and Jinja2.
"""
