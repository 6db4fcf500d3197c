"""Rows of a table by their ids: embedding. Must not contain a loop over elements."""
