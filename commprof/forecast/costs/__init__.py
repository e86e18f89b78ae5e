"""Cost of collectives and hooks as fitted curves, and the machine profile that holds them."""
