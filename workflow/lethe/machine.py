"""What a result was computed on."""

from __future__ import annotations

import os
import platform
import resource
import sys
from importlib.metadata import version
from typing import Any

import torch

PACKAGES = ("torch", "transformers", "accelerate", "peft")


def peak_memory() -> dict[str, float]:
    """Of this process so far, so the second seed of a job reports at least the first one's."""
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    cuda = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0
    return {"peak_rss_mb": round(rss, 1), "peak_cuda_mb": round(cuda, 1)}


def machine() -> dict[str, Any]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"cpu {platform.machine()}"
    versions = "; ".join(f"{name} {version(name)}" for name in PACKAGES)
    return {"device": device, "threads": torch.get_num_threads(), "versions": versions, "cores": os.cpu_count()}
