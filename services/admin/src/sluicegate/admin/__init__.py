"""Configuration: admin API and its projection to the edges."""
