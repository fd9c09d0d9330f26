"""The few calls that need a CUDA device: capture, memory in use, multiprocessors.

None of this has run on a device yet (`unproven`); everything else takes these as arguments.
"""

from __future__ import annotations

import torch

from recguide_core.kernels.graphs import Run


class CudaCapture:
    """Captures callables into graphs that share one memory pool: they replay one at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def warm(self, forward: Run) -> None:
        """Run on a side stream: Triton compiles and cuBLAS allocates on first use."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            forward()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()

    def capture(self, forward: Run) -> Run:
        """Record without running."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            forward()
        return graph.replay


def memory_in_use() -> int:
    """Bytes taken from the device by anybody."""
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
