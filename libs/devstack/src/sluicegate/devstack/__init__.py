"""Embedded servers, fake provider, sluicegate up, fault kit. Never in a production image."""
