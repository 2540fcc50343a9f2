"""Images minus the mean image: what is always there does not drown what moves."""

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
    r"""A network on images of which a mean image is subtracted: :math:`\text{net}((x - \bar x) / \sigma)`.

    In a grid a state differs from the next in two pixels, and from all others in no more; the walls are the same
    everywhere. The output of an untrained network is then nearly constant over the states, and all differences have to
    grow out of next to nothing. Without the mean image, and divided by the one standard deviation of all that is left,
    the eigenfunctions take about a fifth of the updates, and options half of theirs.

    Both statistics are buffers, 0 and 255 until :class:`CentringFit` sets them once: a representation must not drift
    with its input. A learner that has to generalise a rare reward to neighbouring states needs its own scale, below
    1/σ.

    Args:
        network (nn.Module): a network on float images.
        shape (sequence of int): ``(channels, height, width)`` of one image.

    Keyword Args:
        scale (float, optional): a factor in the place of 1/σ, which no fit changes. Default: ``None``, 1/σ.

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
        """Maps images ``[*, C, H, W]``, in the units that the statistics were taken in, to the network's output."""
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
    """Sets the statistics of every :class:`Centred` network from the first batch that it sees, and no other.

    One batch suffices: what matters is the image that does not change. It goes first among an agent's objectives,
    so that all networks, online and target, begin to learn with the same statistics, in the same update.

    Args:
        modules (iterable of nn.Module): where the networks are: policies, losses (their target networks included).

    Keyword Args:
        in_key (NestedKey): the images. Default: ``"pixels"``.
        successor (NestedKey): where the images one step on are. Default: ``"successor"``.

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
            successor (NestedKey): where the images one step on are.
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
        # In a tuple: they belong to the agent, not to this module.
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
        """Looks at the first batch; passes every batch on as it is."""
        # Asked of the buffer once, not at every update: reading a value waits for the device.
        if self._known_fitted is None:
            self._known_fitted = bool(self.fitted)
        if not self._known_fitted:
            images = torch.cat([tensordict.get(key) for key in self.in_keys]).float()
            images = images.reshape(-1, *images.shape[-3:])
            centre = images.mean(0)
            # An image that never changes has nothing to be divided by.
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
