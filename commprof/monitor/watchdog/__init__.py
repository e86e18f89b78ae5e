"""The watchdog: a process that names the rank and collective a job hangs on, and reads stacks.

It reads the ranks' records and the kernel's state of their processes. No rank waits for it or
communicates with it. Nothing here imports torch.
"""
