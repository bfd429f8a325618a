"""`sluicegate up`: the whole gateway on one machine.

Two processes. The *front* (`commands`) is what the user started: it shows progress and passes signals on. The
*supervisor* starts, watches and stops everything, and holds the lock. A pipe ties them: when the front is gone, however
it went, the supervisor reads end-of-file and stops the stack in order. Detached, the pipe is left out.
Should the supervisor itself be killed, the kernel ends its children (see `servers.process`).
"""
