"""What every rank did when, as slices that never overlap on one lane."""
