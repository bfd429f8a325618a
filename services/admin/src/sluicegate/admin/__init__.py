"""Configuration: the admin API over its own tables, and their projection to the edges."""
