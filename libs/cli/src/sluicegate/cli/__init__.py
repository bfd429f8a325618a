"""The sluicegate command; each room registers its own commands by entry point."""
