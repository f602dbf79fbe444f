"""What carries handlers' messages: Service Bus and Storage queues, behind `runonce.messages.transport`."""
