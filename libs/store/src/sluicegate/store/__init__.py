"""PostgreSQL: pool, transactions, partition statements, migrations."""
