"""Event types, catalogue records, subjects, error codes: what binds the rooms together."""
