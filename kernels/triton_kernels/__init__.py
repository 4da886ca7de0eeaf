"""Triton kernels of a decoding round on draft trees; the plain-torch references stand in ``kernels/``.

Every launcher allocates outputs whose shapes follow from its arguments' shapes and reads nothing back, so that a round can be
captured in one CUDA graph. Requests are the first dimension everywhere, each with a tree of its own. The modules import Triton:
import them where a GPU is used.
"""
