"""Processes near their GPUs: on the CPUs, and so with the memory, of the NUMA node of a GPU.

What torchrun does with ``--numa-binding=node``, for processes that it has not started.
"""

import torch
from torch.numa import binding


def stay_near(device: torch.device) -> None:
    """Bind all threads of this process, and the processes that it starts from now on, to the CPUs
    of the NUMA node of the GPU ``device``. Nothing happens for a CPU, and where the system does not
    say where the GPU is."""
    if device.type != "cuda":
        return
    index = torch.cuda.current_device() if device.index is None else device.index
    near = binding.NumaOptions(binding.AffinityMode.NODE)
    try:
        cpus = binding._get_logical_cpus_to_bind_to(gpu_index=index, numa_options=near)
    except (OSError, RuntimeError, ValueError):
        return
    if cpus:
        binding._bind_all_threads_in_current_process_to_logical_cpus(logical_cpu_indices=cpus)
