"""Report of a run as one HTML page without external parts: no network, no library."""
