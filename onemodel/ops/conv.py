"""conv2d and conv1d."""
