"""Normalisation: batch_norm, layer_norm, rms_norm and group_norm. Must not contain a loop over elements."""
