"""Pooling of planes and rows: max, average, global and adaptive. Must not contain a loop over elements."""
