"""Teams: the owners of keys."""
