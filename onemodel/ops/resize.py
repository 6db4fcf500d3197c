"""Resizing of planes: interpolate, also named resize2d. Must not contain a loop over elements."""
