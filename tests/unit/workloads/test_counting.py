"""Counting must not import torch's compiler, because this import takes some seconds."""

from __future__ import annotations

import subprocess
import sys

from torch import nn

from commprof.workloads.counting import count_parameters


def test_parameters_of_all_layer_types_are_counted() -> None:
    def make() -> nn.Module:
        layers = [nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Embedding(7, 2)]
        for weight in (layers[0].weight, layers[2].weight):
            nn.init.xavier_uniform_(weight)
            nn.init.trunc_normal_(weight)
        return nn.Sequential(*layers)

    assert count_parameters(make) == 3 * 5 + 5 + 2 * 5 + 7 * 2


def test_counting_parameters_does_not_import_the_compiler() -> None:
    ask = """
import sys
from commprof.workloads.models.resnet50 import Resnet50
from commprof.workloads.models.transformer import Transformer
print(Transformer().parameter_count, Resnet50().parameter_count)
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", ask], check=True)
