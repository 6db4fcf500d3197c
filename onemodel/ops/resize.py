"""interpolate and resize2d."""
