"""RecGuide inside SGLang: the production engine.

`plugin.register` is the entry point that SGLang calls in each of its processes. `adapter` is the
only module that names SGLang; `driver` is the round, shared with the embedded engine's planners,
rows and settling; the rest are the pieces between the two.
"""
