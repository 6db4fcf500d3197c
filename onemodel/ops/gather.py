"""Elements by index or mask: gather, index_select, masked_fill and cumsum. Must not contain a loop."""
