"""gather, index_select, masked_fill and cumsum."""
