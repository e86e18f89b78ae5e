"""Starting the ranks of a job, and noticing when one fails."""
