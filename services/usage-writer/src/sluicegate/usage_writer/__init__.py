"""Writes usage records and roll-ups; answers what was spent."""
