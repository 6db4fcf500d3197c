"""Transposed convolution: conv_transpose2d. Must not contain a loop over elements."""
