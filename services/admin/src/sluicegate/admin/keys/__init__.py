"""Keys: what applications send; shown once, stored as a digest."""
