"""`python -m sluicegate.cli`: the same as `sluicegate`."""

from sluicegate.cli.application import main

if __name__ == "__main__":
    main()
