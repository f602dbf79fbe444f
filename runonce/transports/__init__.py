"""What carries handlers' messages: the protocols, and Service Bus and Storage queues behind them."""
