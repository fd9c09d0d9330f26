"""Serving without a model or a device: the engine's own loop over drawn or recorded texts.

`SyntheticExecutor` stands where the model would, `VirtualClock` where the device would; planners,
scheduler, batching, judging and advancing are the objects that serve. No torch.

    simulate(SimSettings(...))     what `recguide bench --simulate` prints
    named_clock("b200/nld-8b")     what `recguide bench --clock` charges the real engine with
"""

from recguide_core.simulator.prices import SERVING_HOST, named_clock, priced
from recguide_core.simulator.run import simulate
from recguide_core.simulator.settings import SimCell, SimSettings

__all__ = ["SERVING_HOST", "SimCell", "SimSettings", "named_clock", "priced", "simulate"]
