"""Makes the shared helpers importable and pins the threads."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
torch.set_num_threads(1)
