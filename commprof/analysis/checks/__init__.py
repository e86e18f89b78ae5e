"""commprof's figures held against what others measured of the same run."""
