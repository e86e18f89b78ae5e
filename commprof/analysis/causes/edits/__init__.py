"""Writes fixes as changes of the training script, with the script's own lines and names.

Each function that writes a fix returns the text of a change, or "" if the script does not show
enough. In the second case, the report prints the fix of the catalogue, in which names that begin
with ``YOUR_`` stand for names of the script. A change is a comment such as "# in place of
train.py:12", "# before train.py:12" or "# delete train.py:12", followed by the lines to write.
"""
