"""RecGuide core: policy, model, kernels and engine for diffusion-AR self-speculation.

The package does not print, exit, or read the environment; `recguide_cli` does.
"""

__version__ = "0.1.0"
