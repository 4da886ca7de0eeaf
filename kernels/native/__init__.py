"""Kernels in C for CPUs, compiled where they run: linear layers and decoder layers in bf16."""
