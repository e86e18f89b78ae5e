"""The watchdog: a process that names the rank and collective a job hangs on, and reads stacks.

It reads the ranks' records, and the states of their processes from Linux. No rank waits for the
watchdog or communicates with it. Nothing here imports torch.
"""
