"""conv_transpose2d."""
