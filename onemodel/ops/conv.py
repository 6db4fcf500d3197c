"""Convolutions: conv2d and conv1d. Must not contain a loop over elements."""
