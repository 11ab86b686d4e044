"""Inputs a Gaussian process knows, their features, and kernels with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Tensor
from tqdm.auto import tqdm

from linlap.jacobian import Jacobian, kernel, numbers, settled, weighted_kernel
from linlap.likelihoods import Likelihood
from linlap.network import Network
from linlap.network.inputs import cat, count, take
from linlap.network.memory import available, readable
from linlap.types import Inputs

Groups = Sequence[tuple[tuple[str, ...], Tensor]]
"""Parameters that share a prior precision, with it; or one parameter with one an entry."""
Root = Callable[[Tensor], Tensor]
Contract = Callable[[Jacobian, Jacobian], Tensor]

_TILE_ON_A_CPU, _TILE_ON_A_GPU = 8 << 20, 256 << 20
"""Bytes of a kernel between two tiles: in a CPU's cache, and enough to fill a GPU."""


def root_of(likelihood: Likelihood, coupled: bool) -> Root:
    """S `[n, C, r]` of f with S Sᵀ = Λ; for independent outputs the root of Λ's diagonal."""

    def diagonal(f: Tensor) -> Tensor:
        return likelihood.hessian_sqrt(f).square().sum(-1).sqrt().diag_embed()

    return likelihood.hessian_sqrt if coupled else diagonal


def kernel_under(groups: Groups, one: Jacobian, other: Jacobian, coupled: bool) -> Tensor:
    """J P0⁻¹ J′ᵀ: `[1, n·r, m·q]` or `[r, n, m]`."""
    total: Tensor | None = None
    for names, precision in groups:
        if precision.ndim:
            part = weighted_kernel(one, other, names[0], precision.reciprocal(), coupled)
        else:
            part = kernel(one, other, names, coupled) / precision.to(one.like.dtype)
        total = part if total is None else total + part
    if total is None:
        raise ValueError("a prior without parameters")
    return total


def moved(features: Jacobian, shift: Tensor) -> Tensor:
    """What outputs change by `[n, C]` where weights move by `[1, P]`, or by `[C, P]`: for each output by its own."""
    shift = shift.to(features.like.dtype)
    if len(shift) == 1:
        return features.jvp(shift)[0]
    return torch.stack([features.seed(c).jvp(w.unsqueeze(0))[0, :, 0] for c, w in enumerate(shift)], dim=-1)


def weighted(k: Tensor, root: Tensor, coupled: bool) -> Tensor:
    """k S for kernels `[1, m, n·C]` and roots S `[n, C, r]`, as `[1, m, n·r]`; independent outputs take from kernels
    `[C, m, n]` the diagonal of S Sᵀ."""
    if not coupled:
        return k * root.square().sum(-1).sqrt().mT.unsqueeze(1)
    n, c = root.shape[:2]
    return torch.einsum("mnc,ncr->mnr", k[0].unflatten(-1, (n, c)), root).flatten(1).unsqueeze(0)


def between(kernel: Tensor, root: Tensor, coupled: bool) -> Tensor:
    """Sᵀ K S for S `[n, C, r]`, as `[1, n·r, n·r]`; for independent outputs with the diagonal of S Sᵀ, `[C, n, n]`."""
    if not coupled:
        diagonal = root.square().sum(-1).sqrt().mT
        return kernel * diagonal.unsqueeze(1) * diagonal.unsqueeze(2)
    n, c, r = root.shape
    half = (root.mT @ kernel[0].view(n, c, n * c)).view(n * r, n * c)
    return (root.mT @ half.mT.reshape(n, c, n * r)).view(1, n * r, n * r)


@dataclass(frozen=True, eq=False)
class Points:
    """m inputs x and the features of their outputs: Sᵀ J for a root S of Λ, or J itself.

    Λ is taken at the outputs `at` `[m, C]`, or at the network's own. `precise` features are float64 in any network.

    Features (the inputs of layers, and the gradients at their outputs) are kept where they fit into a quarter of the
    free memory, and made again for every use where they do not; `said` tells which.
    """

    network: Network
    x: Inputs
    coupled: bool
    root: Root | None = None
    progress: bool = True
    at: Tensor | None = None
    precise: bool = False
    _grams: dict[tuple[str, ...], Tensor] = field(default_factory=dict)
    """Kernels with unit prior among the points, by group of parameters: made once, whatever the number of priors."""

    def __len__(self) -> int:
        return count(self.x)

    def scaled(self, factor: Tensor, root: Root) -> Points:
        """The same where the curvature of the likelihood is a multiple, of which `root` is one; kernels are kept."""
        grams = {names: gram * factor.to(gram.dtype) for names, gram in self._grams.items()}
        return replace(self, root=root, _grams=grams)

    @cached_property
    def _first(self) -> Jacobian:
        return self._features(0, 1)

    @property
    def seeds_each(self) -> int:
        """r: rows for each point."""
        return self._first.rows[1]

    @property
    def groups(self) -> int:
        """How many kernels there are side by side: one, or one an output."""
        return 1 if self.coupled else self.seeds_each

    @property
    def rows(self) -> int:
        """The rows of a kernel with these points."""
        return len(self) * (self.seeds_each if self.coupled else 1)

    @property
    def bytes(self) -> int:
        """What the features take."""
        return numbers(self._first) * len(self) * self._first.like.element_size()

    @cached_property
    def keeps(self) -> bool:
        return self.bytes <= available(self.network.device) // 4

    @property
    def said(self) -> str:
        """What is kept, in words."""
        kept = "kept" if self.keeps else "too large to keep, made again for each prediction"
        size = self.groups * self.rows**2 * self._first.like.element_size()
        factor = f"factor {self.groups} × {self.rows} × {self.rows} kept ({readable(size)})"
        return f"{factor}, features of {len(self)} inputs {kept} ({readable(self.bytes)})"

    def tile_size(self) -> int:
        item = self._first.like.element_size()
        budget = _TILE_ON_A_GPU if self.network.device.type == "cuda" else _TILE_ON_A_CPU
        pair = self.seeds_each ** (2 if self.coupled else 1) * item
        return max(1, min(math.isqrt(budget // pair), len(self)))

    @cached_property
    def _kept(self) -> tuple[Jacobian, ...]:
        return tuple(self._made("linearising at the inducing inputs"))

    def tiles(self) -> Iterator[Jacobian]:
        """Features of all points in order, a few at a time."""
        yield from self._kept if self.keeps else self._made(None)

    def _made(self, goal: str | None) -> Iterator[Jacobian]:
        size = min(self.tile_size(), self.network.batch_for(self.x, seeds=self.seeds_each))
        starts = range(0, len(self), size)
        for start in tqdm(starts, goal, leave=False, delay=1.0, disable=goal is None or not self.progress):
            yield self._features(start, start + size)

    def _features(self, start: int, stop: int) -> Jacobian:
        root, at = self.root, None if self.at is None else self.at[start:stop]

        def seeds(f: Tensor) -> Tensor:
            return root(f if at is None else at).mT if root else f

        with torch.no_grad():
            lin = self.network.linearize(take(self.x, start, stop), seeds if root else None, once=True)
            return self.settled(lin.jacobian)

    def settled(self, jacobian: Jacobian) -> Jacobian:
        """A Jacobian at other inputs, in the form and dtype of the features."""
        rounded = self.precise and jacobian.like.dtype != torch.float64
        return settled(jacobian.to(torch.float64) if rounded else jacobian, self.coupled)

    def cross(self, groups: Groups, other: Jacobian) -> Tensor:
        """The kernel with other inputs `[G, rows, columns]`."""
        parts = [kernel_under(groups, tile, other, self.coupled) for tile in self.tiles()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def gram(self, groups: Groups) -> Tensor:
        """The kernel among the points in float64, `[G, rows, rows]`."""
        parts = (self._part_of_gram(names, precision) for names, precision in groups)
        total = next(parts)
        for part in parts:
            total = total + part
        return total

    def _part_of_gram(self, names: tuple[str, ...], precision: Tensor) -> Tensor:
        if not precision.ndim:
            unit = self._unit_gram(names)
            part = unit.double()
            return part / precision if part is unit or precision.requires_grad else part.div_(precision)
        weights = precision.reciprocal()
        return self._among(lambda one, other: weighted_kernel(one, other, names[0], weights, self.coupled)).double()

    def _unit_gram(self, names: tuple[str, ...]) -> Tensor:
        if names not in self._grams:
            parts = [known for known in self._grams if set(known) <= set(names)]
            if sum(map(len, parts)) == len(names):
                self._grams[names] = torch.stack([self._grams[part] for part in parts]).sum(0)
            else:
                self._grams[names] = self._among(partial(self._kernel, names))
        return self._grams[names]

    def weighted(self, root: Root, f: Tensor) -> Points:
        """Of points with J for features, those with Sᵀ J for S at outputs f; kernels follow from the ones known."""
        grams = {names: between(known, root(f), self.coupled) for names, known in self._grams.items()}
        return replace(self, root=root, at=f.to(self.network.dtype), precise=False, _grams=grams)

    def values(self, weights: Tensor) -> Tensor:
        """F w for weights `[G, k, P]`, as `[G, rows, k]`."""
        weights = weights.to(self._first.like.dtype)
        parts = []
        for tile in self.tiles():
            if self.coupled:
                parts.append(tile.jvp(weights[0]).flatten(1).mT.unsqueeze(0))
            else:
                parts.append(torch.stack([tile.seed(c).jvp(w)[..., 0].mT for c, w in enumerate(weights)]))
        return torch.cat(parts, dim=1)

    def pulled_back(self, coefficients: Tensor) -> Tensor:
        """Fᵀ b for b `[G, rows, k]`, as `[G, k, P]`."""
        coefficients = coefficients.to(self._first.like.dtype)
        g, _, k = coefficients.shape
        total = coefficients.new_zeros(g, k, self.network.size)
        start = 0
        for tile in self.tiles():
            n, r = tile.rows
            stop = start + self._rows_of(tile)
            for c in range(g):
                block, seeds = (tile, r) if self.coupled else (tile.seed(c), 1)
                for index in range(k):
                    total[c, index] += block.vjp(coefficients[c, start:stop, index].reshape(n, seeds))
            start = stop
        return total

    def extended(self, x: Inputs, at: Tensor | None = None) -> Points:
        """These points and more; of the kernels that are known only what is new is made."""
        outputs = None if self.at is None or at is None else torch.cat([self.at, at])
        whole = replace(self, x=cat([self.x, x]), at=outputs, _grams={})
        for names, known in self._grams.items():
            whole._grams[names] = whole._among(partial(self._kernel, names), known)
        return whole

    def _kernel(self, names: tuple[str, ...], one: Jacobian, other: Jacobian) -> Tensor:
        return kernel(one, other, names, self.coupled)

    def _among(self, contract: Contract, known: Tensor | None = None) -> Tensor:
        """A symmetric kernel, one half of it contracted; its first rows and columns may be known."""
        size, done = self.rows, 0 if known is None else known.shape[-1]
        total = self._first.like.new_empty(self.groups, size, size)
        if known is not None:
            total[:, :done, :done] = known
        bar = tqdm(total=1.0, desc="kernel", leave=False, delay=1.0, disable=not self.progress, bar_format=SHARE)
        with bar:
            start = 0
            for one in self.tiles():
                stop, left = start + self._rows_of(one), 0
                for other in self.tiles() if stop > done else ():
                    right = left + self._rows_of(other)
                    part = contract(one, other)
                    total[:, start:stop, left:right] = part
                    if left < start:
                        total[:, left:right, start:stop] = part.mT
                    left = right
                    if left >= stop:
                        break
                bar.update((stop**2 - start**2) / size**2)
                start = stop
        return total

    def _rows_of(self, tile: Jacobian) -> int:
        n, r = tile.rows
        return n * r if self.coupled else n


SHARE = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
"""How bars look that count a share of the work."""
