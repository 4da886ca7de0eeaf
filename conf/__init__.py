"""The configuration tree that Hydra composes a run from. A package, so that a wheel carries it."""
