"""Routes: the aliases that clients call, and where they lead."""
