"""The watchdog: a process that finds out why a job hangs.

The watchdog reads the ranks' records, and the states of the ranks' processes from Linux. No rank
waits for the watchdog. Nothing here imports torch.
"""
