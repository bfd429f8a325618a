"""From the tables to the edges: what is true in Postgres becomes true in the buckets."""
