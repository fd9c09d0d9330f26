"""Serving without a model or a device: the engine's own loop over drawn or recorded texts.

`SyntheticExecutor` stands where the model would, `VirtualClock` where the device would; planners,
scheduler, batching, judging and advancing are the objects that serve. No torch.
"""
