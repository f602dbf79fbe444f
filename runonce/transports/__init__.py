"""What carries handlers' messages: Service Bus and Storage queues, behind `runonce.transports.protocols`.

Imported by `messages` and what lies above it (the implementations by the runtime and the Functions host alone);
imports `stores`, the settings, the clock and the errors.
"""
