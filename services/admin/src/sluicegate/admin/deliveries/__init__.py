"""Deliveries: messages to webhooks. budget-alert writes them; here they are shown, and replayed by command."""
