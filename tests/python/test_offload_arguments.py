"""Arguments of offload() and of optimizers that cannot be meant."""

from __future__ import annotations

import math

import pytest
import torch

import luwu
import luwu.torch


def test_units_that_match_nothing_are_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    for rule in (torch.nn.Conv2d, (torch.nn.Conv2d, torch.nn.LSTM), lambda name, module: False):
        with pytest.raises(luwu.ArgumentError, match="no submodule of Sequential matches"):
            luwu.torch.offload(model, units=rule, endpoints="127.0.0.1:1")


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, "adamw", luwu.AdamW])
def test_an_optimizer_that_is_not_an_instance_of_luwus_is_refused(optimizer) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    with pytest.raises(luwu.ArgumentError, match=r"pass an instance of luwu.AdamW"):
        luwu.torch.offload(model, units=torch.nn.Linear, endpoints="127.0.0.1:1",
                           optimizer=optimizer)


@pytest.mark.parametrize("arguments", [
    {"lr": -1}, {"lr": math.nan}, {"lr": math.inf}, {"lr": "1e-3"}, {"lr": None},
    {"betas": (0.9, 1.0)}, {"betas": (-0.1, 0.9)}, {"betas": 0.9}, {"eps": -1e-8},
    {"weight_decay": -0.1},
])
def test_hyper_parameters_that_torch_refuses_are_refused(arguments) -> None:
    name = next(iter(arguments))
    with pytest.raises(luwu.ArgumentError, match=f"AdamW: {name} is"):
        luwu.AdamW(**arguments)
