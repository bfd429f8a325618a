"""A change: one transaction with its record, audit row and outbox row; then its way to the edges."""
