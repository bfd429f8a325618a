"""Settings, logging, telemetry, health and signals for every process."""
