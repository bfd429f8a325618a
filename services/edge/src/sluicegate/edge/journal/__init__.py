"""The crash-safe hand-off of usage events to NATS: append, publish, keep, adopt."""
