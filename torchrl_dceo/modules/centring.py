"""Networks on images minus the mean image, so that differences between states are not hidden by the background."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import dispatch
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor, nn

from torchrl_dceo._fast.convolution import PreparedNetwork, prepared_network
from torchrl_dceo._fast.passes import Form, inner_form
from torchrl_dceo.modules.rewards import KeyedModule

__all__ = ["Centred", "CentringFit"]

_BUFFERS = ("centre", "scale")


class Centred(nn.Module, PreparedNetwork):
    r"""A network on standardised images, :math:`\text{net}((x - \bar x) / \sigma)`, with the mean image :math:`\bar x`.

    In a grid any two states differ in two pixels only, and the walls are the same everywhere. The output of an
    untrained network is then nearly constant over the states. With the mean image subtracted, and divided by the
    single standard deviation σ of the result, the eigenfunctions need about a fifth of the updates, and the options
    half of them.

    Both statistics are buffers, 0 and 255 until :class:`CentringFit` sets them. They are set only once, because a
    representation must not drift with its input. A learner that has to generalise a rare reward to neighbouring
    states needs a ``scale`` of its own, below 1/σ.

    Args:
        network (nn.Module): a network on float images.
        shape (sequence of int): ``(channels, height, width)`` of one image.

    Keyword Args:
        scale (float, optional): a fixed factor instead of 1/σ. Default: ``None``, 1/σ.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.modules import Centred
        >>> net = Centred(torch.nn.Flatten(-3), (1, 1, 2))
        >>> net(torch.tensor([[[255, 0]]], dtype=torch.uint8))
        tensor([1., 0.])
    """

    centre: Tensor
    scale: Tensor | float

    def __init__(
        self, network: nn.Module, shape: Sequence[int], *, scale: float | None = None
    ) -> None:
        super().__init__()
        if len(shape) != 3:
            raise ValueError(f"shape must be (channels, height, width), got {tuple(shape)}")
        self.network = network
        self.register_buffer("centre", torch.zeros(tuple(shape)))
        if scale is None:
            self.register_buffer("scale", torch.tensor(1 / 255))
        elif scale > 0:
            self.scale = scale
        else:
            raise ValueError(f"scale must be positive, or None to be fitted, got {scale}")

    def forward(self, pixels: Tensor) -> Tensor:
        """Maps images ``[*, C, H, W]``, in the units of the statistics, to the network's output."""
        return self.network((pixels - self.centre) * self.scale)

    def prepared(self, pixels: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Its network, on centred images."""
        centre, scale = self.centre, self.scale
        if type(self).forward is not Centred.forward:
            return None
        if torch.result_type(pixels, centre) != centre.dtype:
            return None
        # An example of centred images.
        run = prepared_network(self.network, centre.expand(pixels.shape))
        return None if run is None else lambda pixels: run((pixels - centre) * scale)

    def fused_form(self, entries: dict[str, Any]) -> Form | None:
        """That of its network, on centred images."""
        form = inner_form(self, "network", entries)
        if form is None or form.centre is not None or form.scale is not None:
            return None
        scale = entries["scale"] if "scale" in self._buffers else self.scale
        return form._replace(centre=entries["centre"], scale=scale)


class CentringFit(KeyedModule):
    """Sets the statistics of every :class:`Centred` network from the first batch, and from no other.

    One batch suffices, because the constant part of the image is what matters. The module is the first of an agent's
    objectives, so that all networks, online and target, use the same statistics from the first update on.

    Args:
        modules (iterable of nn.Module): where the networks are: policies, losses (their target networks included).

    Keyword Args:
        in_key (NestedKey): the images. Default: ``"pixels"``.
        successor (NestedKey): prefix of the images one step later. Default: ``"successor"``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.modules import Centred, CentringFit
        >>> net = Centred(torch.nn.Flatten(-3), (1, 1, 2))
        >>> batch = TensorDict({"pixels": torch.tensor([[[[9, 0]]], [[[9, 4]]]], dtype=torch.uint8)}, [2])
        >>> batch["successor"] = batch.clone()
        >>> _ = CentringFit([net])(batch)
        >>> net.centre.tolist(), net(batch["pixels"])[:, 0].tolist()
        ([[[9.0, 2.0]]], [0.0, 0.0])
    """

    @dataclass
    class _AcceptedKeys:
        """The keys that ``set_keys`` can change.

        Attributes:
            observation (NestedKey): the images.
            successor (NestedKey): prefix of the images one step later.
        """

        observation: NestedKey = "pixels"
        successor: NestedKey = "successor"

    fitted: Tensor

    def __init__(
        self,
        modules: Iterable[nn.Module],
        *,
        in_key: NestedKey = "pixels",
        successor: NestedKey = "successor",
    ) -> None:
        super().__init__()
        # A tuple does not register them: they belong to the agent, not to this module.
        self._modules_centred = tuple(modules)
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))
        self._known_fitted: bool | None = None
        self.set_keys(observation=in_key, successor=successor)

    def _keys_read(self) -> list[NestedKey]:
        keys = self.tensor_keys
        return [keys.observation, unravel_key((keys.successor, keys.observation))]

    def _keys_written(self) -> list[NestedKey]:
        return []

    # Without the automatic batch size, which would take an image's own dimensions for batch dimensions.
    @dispatch(auto_batch_size=False)
    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Fits the statistics to the first batch; returns every batch unchanged."""
        # The buffer is read once, not at every update: reading a value waits for the device.
        if self._known_fitted is None:
            self._known_fitted = bool(self.fitted)
        if not self._known_fitted:
            images = torch.cat([tensordict.get(key) for key in self.in_keys]).float()
            images = images.reshape(-1, *images.shape[-3:])
            centre = images.mean(0)
            # Images that never change have a standard deviation of 0.
            deviation = (images - centre).square().mean().sqrt()
            values = {"centre": centre, "scale": torch.where(deviation > 0, 1 / deviation, 1 / 255)}
            for buffer, value in self._found(values):
                buffer.copy_(value)
            self.fitted.fill_(True)
            self._known_fitted = True
        return tensordict

    def _found(self, values: dict[str, Tensor]) -> Iterable[tuple[Tensor, Tensor]]:
        for module in self._modules_centred:
            for name, buffer in module.named_buffers():
                kind = name.rsplit(".", 1)[-1]
                if kind in _BUFFERS:
                    yield buffer, values[kind]

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._known_fitted = None
