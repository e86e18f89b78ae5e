"""The watchdog: a process beside the ranks that names what a job hangs on, and shows its stacks.

It reads what the ranks record and what the system says of them. No rank waits for it, or even knows
of it. Nothing here imports torch.
"""
