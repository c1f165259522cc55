"""PyTorch modules whose weights and optimizer state live in LuWu daemons.

::

    optimizer = luwu.torch.offload(model, units=Block, endpoints="10.0.0.1:7070",
                                   job="run-1", optimizer=luwu.AdamW(lr=3e-4))
    for batch in data:
        loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

Gradients are clipped and the loss is scaled in the daemons (``clip_grad_norm`` and ``loss_scaling``
of ``offload``), since this process never has all of them.

Works with torch 1.13 and 2.x. Importing this needs torch; ``import luwu`` does not.
"""

from luwu.optimizers import LossScaling
from luwu.settings import Settings
from luwu.torch.offload import decay_groups, offload
from luwu.torch.optimizer import OffloadedOptimizer, StepOutcome
from luwu.torch.storage import is_placeholder

__all__ = ["LossScaling", "OffloadedOptimizer", "Settings", "StepOutcome", "decay_groups",
           "is_placeholder", "offload"]
