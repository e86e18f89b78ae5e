"""The live metrics and the outputs that show them."""
