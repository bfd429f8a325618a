"""The ledger in virtual time: real library, real script on a real Valkey, everything between them made to fail.

`run.py` runs one scenario with one seed; `scenarios.py` names them; `mutations.py` takes the rules of the protocol out
one by one, to see that the checks of `checks.py` would notice. `python -m benchmarks.sim_ledger` prints the table.
"""
