"""`sluicegate migrate` and `python -m sluicegate.store`."""

import sys

from sluicegate.runtime.settings import PostgresSettings, load
from sluicegate.store.migrations import MigrationError, migrate


def main() -> None:
    """Bring the database's schema up to date."""
    settings = load(PostgresSettings)
    try:
        sys.stdout.write(migrate(settings.postgres_dsn.get_secret_value()))
    except MigrationError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
