"""What a tokenizer of textured scenes is asked for beside small errors: things count more, and texture keeps its power.

A blade of grass cannot be known from its code, and squared error answers with their mean: a blur. So grounds are asked
for the right power in every octave of every window (`bands_apart`), whatever its phase, though not from stripes that
repeat in every cell (`repeated`), and a critic that sees patches says what still looks decoded (Isola et al. 2017,
"Image-to-image translation with conditional adversarial networks"; hinge loss and a weight fitted to gradients as in
Esser et al. 2021, "Taming transformers", section 3.1).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.modalities.world.judging.likeness import bands, luma, power
from polydraft.modalities.world.scene import GRID

THINGS = 6.0  # what a pixel of a thing's box counts beside the ground's 1
WINDOW, STEP = 32, 16  # pixels whose power is compared
LOUD = 1e-6  # power that can be seen
DETAIL = 8.0  # to about 1: what is left of a picture without its blur
REPEATED = 50.0  # what an error counts, squared, that all cells have in common


def apart(decoded: Tensor, pixels: Tensor, weight: Tensor) -> Tensor:
    """Mean error of pictures `[B, 3, H, W]`, absolute and squared, by what every pixel counts, `[B, 1, H, W]`; and what
    of it repeats."""
    error = decoded - pixels
    return (weight * (error.abs() + 4 * error.square())).mean() + REPEATED * repeated(error)


def repeated(error: Tensor) -> Tensor:
    """Mean square of what the cells of a picture have in common, of errors `[B, 3, H, W]`: the cheapest power there is,
    and stripes to whoever looks."""
    return error.unflatten(-1, (-1, GRID)).unflatten(2, (-1, GRID)).mean((2, 4)).square().mean()


def bands_apart(decoded: Tensor, pixels: Tensor) -> Tensor:
    """Mean difference of log power by octave and window; pictures `[B, 3, H, W]` in -1..1."""

    def loudness(pictures: Tensor) -> Tensor:
        windows = luma(pictures.float()).unfold(1, WINDOW, STEP).unfold(2, WINDOW, STEP)
        within = bands(WINDOW, [(1 << octave, 2 << octave) for octave in range(4)]).to(pictures.device).float()
        return (torch.einsum("bijyx,oyx->bijo", power(windows), within) + LOUD).log()

    return (loudness(decoded) - loudness(pixels)).abs().mean()


class Critic(nn.Module):
    """Says of every 8x8 cell, from what is around it, how rendered it looks: `[B, 3, H, W]` to `[B, H/8, W/8]`.

    It is shown detail alone: beside whole colours, which both have, it did not find in a thousand steps what it finds
    so in thirty.
    """

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.PixelUnshuffle(4), nn.Conv2d(48, width, 3, padding=1), nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1), nn.GroupNorm(8, 2 * width), nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.GroupNorm(8, 2 * width), nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 1, 1),
        )  # fmt: skip

    def forward(self, pictures: Tensor) -> Tensor:
        said: Tensor = self.layers(DETAIL * (pictures - F.avg_pool2d(pictures, 5, 1, 2, count_include_pad=False)))
        return said[:, 0]

    def loss(self, rendered: Tensor, decoded: Tensor, ground: Tensor) -> Tensor:
        """Hinge loss of telling the two apart, by what counts of each cell."""
        right, wrong = F.relu(1 - self(rendered)), F.relu(1 + self(decoded.detach()))
        return 0.5 * (mean(right, ground) + mean(wrong, ground))


class Adversary:
    """A critic that learns beside the decoder it judges."""

    def __init__(self) -> None:
        self.critic = Critic()
        self.optimiser = torch.optim.AdamW(self.critic.parameters(), lr=1e-3, betas=(0.5, 0.95))

    def teach(self, pixels: Tensor, decoded: Tensor, ground: Tensor) -> float:
        """One step of telling the two apart; the loss before it."""
        judged = self.critic.loss(pixels, decoded, ground)
        self.optimiser.zero_grad()
        judged.backward()
        self.optimiser.step()
        return judged.item()

    def pull(
        self, pixels: Tensor, decoded: Tensor, ground: Tensor, wanted: Tensor, last: Tensor
    ) -> tuple[Tensor, float]:
        """Teach the critic, then its pull on `decoded`, as strong on `last`, a weight of the decoder, as that of
        `wanted`; and the critic's loss. ground `[B, H/8, W/8]`: cells whose looks count (what things look like is known
        from their codes, and errors say it better)."""
        judged = self.teach(pixels, decoded, ground)
        self.critic.requires_grad_(False)
        fooling = -mean(self.critic(decoded), ground)
        self.critic.requires_grad_(True)
        return balance(wanted, fooling, last) * fooling, judged


def mean(said: Tensor, ground: Tensor) -> Tensor:
    return (said * ground).sum() / ground.sum().clamp(min=1)


def balance(wanted: Tensor, fooling: Tensor, last: Tensor) -> Tensor:
    """What to weigh `fooling` with so that it pulls `last`, a weight of the decoder, as hard as `wanted` does."""
    pulls = [torch.autograd.grad(loss, last, retain_graph=True)[0].norm() for loss in (wanted, fooling)]
    return (pulls[0] / (pulls[1] + 1e-4)).clamp(0, 100).detach()
