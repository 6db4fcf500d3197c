"""Random zeros: dropout. Must not contain a generator, which is in onemodel/random.py."""
