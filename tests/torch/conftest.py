"""All of this needs torch, which morok does not: without it nothing here is collected."""

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    """Every test compiles for itself, with numbers of its own."""
    import torch

    torch._dynamo.reset()
    torch.manual_seed(0)
