"""What `scripts/device_check.py` runs on a machine with one GPU: numpy, torch and triton only.

Correctness first, then times. Everything also runs on CPU in miniature through Triton's
interpreter, so that no session on a GPU is spent on a broken script.
"""
