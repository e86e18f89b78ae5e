"""Changes of a training script in its own lines and names, as fixes print them.

Each function returns a text, or "" if the script does not show enough. Then the cause's own fix is
printed, in which names that begin with ``YOUR_`` stand for names of the script. A change is a
comment, "# in place of train.py:12", "# before train.py:12" or "# delete train.py:12", and the
lines to write.
"""
