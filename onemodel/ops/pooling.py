"""max, average, global and adaptive pooling."""
