"""Compares a run with a stored baseline, or with another run, and says pass, regressed or inconclusive."""
