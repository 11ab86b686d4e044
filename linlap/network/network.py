"""The network at its trained weights, and the only caller of automatic differentiation.

Layers that are known give their Jacobian blocks from their inputs and the gradients at their outputs. All
other parameters go through `torch.func` one input at a time. Which is which is settled on the first batch,
where the blocks are checked against autograd.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import cudnn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointFunction

from linlap.checks import all_finite, is_whole
from linlap.errors import InputError, LinlapWarning, NotFiniteError
from linlap.jacobian import Jacobian
from linlap.layers import Rule
from linlap.linalg import without_tf32
from linlap.network.agreement import adds_up, close, largest
from linlap.network.inputs import (
    arguments,
    as_matrix,
    check_form,
    check_like,
    check_numbers,
    check_weights,
    count,
    map_tensors,
    output_tensor,
    take,
    tensors_of,
)
from linlap.network.memory import default_budget, require
from linlap.network.pullback import is_last, one_by_one, pull_back, sample_jacobian
from linlap.network.snapshot import check_dtypes, choose, outlines, places, private_copy, tables, unwrapped
from linlap.network.tape import Call, Recorder, Tape, TapedBlocks, biases_of
from linlap.types import Inputs, Params

Seeds = Tensor | Callable[[Tensor], Tensor] | None


@dataclass(frozen=True, eq=False)
class Linearization:
    """f(x; θ*) `[n, C]` and the Jacobian there, pulled back from the seeds `[n, r, C]`."""

    mean: Tensor
    jacobian: Jacobian
    dense: frozenset[str] = frozenset()
    """Parameters whose blocks are dense here, because no known layer explains their use in this batch."""


class Network:
    """A model, frozen at the weights it has now, and the names of the weights to be uncertain about.

    `theta` gives those weights instead of the model's own.
    """

    def __init__(
        self, model: nn.Module, parameters: str | Iterable[str] | None = None, *, theta: Params | None = None
    ) -> None:
        model = unwrapped(model)
        self.names = choose(model, parameters) if theta is None else list(theta)
        self.model = private_copy(model)
        own = dict(self.model.named_parameters())
        for name in theta or {}:
            own[name].data.copy_((theta or {})[name])
        self.theta: Params = {name: own[name].requires_grad_(True) for name in self.names}
        check_dtypes(self.theta)
        self.shapes = {name: p.shape for name, p in self.theta.items()}
        self.outlines = outlines(self.model, self.theta)
        self.places = places(self.model, self.theta)
        self.tables = tables(self.model, self.theta)
        self._recorder = Recorder(self.model, self.names)
        self._opaque: frozenset[str] = frozenset()
        self._forward_mode: bool | None = None
        self._numbers_of_kind: dict[tuple[torch.Size, ...], tuple[int, int, int, bool]] = {}
        self._batches_well: dict[object, bool] = {}
        self._alone = True
        self.outputs_per_input = 0

    def __deepcopy__(self, memo: dict[int, object]) -> Network:
        return self  # it never changes, and a copy's layers would report to the original

    def __reduce__(self) -> str:
        raise TypeError("a linlap network cannot be pickled; write the posterior with ll.save(posterior, path).")

    @property
    def dtype(self) -> torch.dtype:
        return self.theta[self.names[0]].dtype

    @property
    def device(self) -> torch.device:
        return self.theta[self.names[0]].device

    @cached_property
    def size(self) -> int:
        """The number P of weights."""
        return sum(shape.numel() for shape in self.shapes.values())

    @property
    def opaque(self) -> frozenset[str]:
        """Parameters that no known layer explains, known after the first batch: their blocks are dense."""
        return self._opaque

    def fall_back(self, names: frozenset[str]) -> None:
        """Take the dense path for these parameters too, whatever layers explain."""
        self._opaque |= names

    def vector(self) -> Tensor:
        """θ* `[P]`."""
        return torch.cat([p.detach().flatten() for p in self.theta.values()])

    def named(self, v: Tensor) -> Params:
        """Vectors `[..., P]` as tensors by parameter name."""
        pieces = v.split([shape.numel() for shape in self.shapes.values()], dim=-1)
        return {
            name: piece.reshape((*v.shape[:-1], *shape))
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    # Evaluation

    def outputs(self, x: Inputs) -> Tensor:
        """f(x; θ*), `[n, C]`."""
        self.prepare(x)
        with torch.no_grad():
            return self._finite(self._run(x))

    def outputs_at(self, params: Params, x: Inputs) -> Tensor:
        """f(x; θ) `[n, C]` with some weights replaced; differentiable in them."""
        args, kwargs = arguments(self.model, map_tensors(x, torch.clone))
        placed = {place: params[name] for place, name in self.places.items() if name in params}
        with as_written():
            f = functional_call(self.model, placed, args, kwargs, tie_weights=False)
        return as_matrix(output_tensor(f), count(x))

    def linearize(self, x: Inputs, seeds: Seeds = None, *, once: bool = False) -> Linearization:
        """f and its Jacobian blocks; `seeds` `[n, r, C]`, or a function of f that gives them, default the identity.

        `once` saves memory where each block is asked for a single time.
        """
        self.prepare(x)
        return self._linearize(x, seeds, once=once)

    def jvp(self, x: Inputs, v: Params) -> Tensor:
        """J v `[n, C]` for one weight vector, in one forward pass where the model's operations allow it."""
        self.prepare(x)
        check_weights(v, self.theta)
        if self._forward_mode is None:
            with without_tf32(self.device):
                self._forward_mode = self._forward_mode_agrees(take(x, 0, 3))
        if self._forward_mode:
            try:
                return self._forward(x, v)
            except (RuntimeError, NotImplementedError):
                pass
        return self._jvp_by_blocks(x, v)

    def _forward(self, x: Inputs, v: Params) -> Tensor:
        fixed = {name: p.detach() for name, p in self.theta.items()}
        with torch.inference_mode(False):
            return torch.func.jvp(lambda params: self.outputs_at(params, x), (fixed,), (v,))[1].detach()

    def _jvp_by_blocks(self, x: Inputs, v: Params) -> Tensor:
        flat = torch.cat([v[name].flatten() for name in self.names])
        return self._linearize(x, None).jacobian.jvp(flat.unsqueeze(0))[0]

    def _forward_mode_agrees(self, x: Inputs) -> bool:
        """Whether forward mode has the derivative of backward mode: it looks through `no_grad` and padding rows."""
        if any(getattr(module, "padding_idx", None) is not None for module in self.model.modules()):
            return False
        like = self.vector()
        v = self.named(torch.cos(torch.arange(self.size, dtype=like.dtype, device=like.device) + 0.5))
        try:
            forward = self._forward(x, v)
        except (RuntimeError, NotImplementedError):
            return False
        return close(forward, self._jvp_by_blocks(x, v))

    def vjp(self, x: Inputs, u: Tensor) -> Params:
        """Jᵀ u by parameter name for u `[n, C]`, summed over inputs."""
        self.prepare(x)
        return self._autograd_vjp(x, check_like(u, "u", self.theta[self.names[0]], (count(x), self.outputs_per_input)))

    # Memory

    def bytes_per_input(self, x: Inputs, seeds: int | None = None, dense: bool = False, diagonal: bool = False) -> int:
        """What linearising and contracting take for one more input, read off a forward pass of one.

        `diagonal`: the seeds are the identity, and only variances are wanted.
        """
        self.prepare(x)
        outputs, shared, seeded, pulled = self._tapped_numbers(x)
        c = self.outputs_per_input
        r = c if seeds is None else seeds
        if diagonal and not pulled and r == c:
            r = 1  # at the last layer the seeds are one matrix for all inputs
        opaque = sum(self.shapes[name].numel() for name in self._opaque)
        # Activations kept for the backward pass, gradients at outputs and one copy while contracting, the largest
        # block (patches above all), dense blocks with the copy that torch.func makes of them, and Λ or covariances.
        numbers = 2 * outputs + 2 * r * outputs + 2 * shared + r * seeded + 3 * r * opaque
        numbers += (3 * r * self.size if dense else 0) + 3 * c * (1 if diagonal else c)
        return numbers * (torch.finfo(self.dtype).bits // 8)

    def _tapped_numbers(self, x: Inputs) -> tuple[int, int, int, bool]:
        """For one input, how many numbers the known layers put out, and the most that one of their blocks is made of:
        whatever the seeds, and for each seed; then whether any but the last layer is among them. Remembered for each
        shape of input."""
        kind = tuple(t.shape[1:] for t in tensors_of(x))
        if kind not in self._numbers_of_kind:
            f, tape = self._taped(take(x, 0, 1))
            parts = _collect(tape.calls, [f.new_zeros(c.output[0], 1, *c.output[1:]) for c in tape.calls], 1)
            known = [part for name, part in parts.items() if name not in self._opaque | tape.unreadable]
            blocks = [rule(g).numbers for part in known for rule, g in part]
            shared, seeded = (max(numbers, default=0) for numbers in zip(*blocks, strict=True)) if blocks else (0, 0)
            pulled = not all(is_last(call, f) for call in tape.calls)
            self._numbers_of_kind[kind] = sum(call.output.numel() for call in tape.calls), shared, seeded, pulled
        return self._numbers_of_kind[kind]

    def batch_for(
        self,
        x: Inputs,
        *,
        seeds: int | None = None,
        dense: bool = False,
        diagonal: bool = False,
        memory: int | None = None,
    ) -> int:
        """How many inputs to take at a time under a budget of bytes."""
        if memory is not None and not is_whole(memory):
            raise InputError(f"memory={memory!r}; pass a whole number of bytes, for instance 2**30, or None.")
        each = self.bytes_per_input(x, seeds, dense, diagonal)
        budget = default_budget(self.device) if memory is None else memory
        if each > budget:
            require(each, self.device, "linearising a single input", "Choose fewer `parameters`, or fewer outputs.")
        return max(1, budget // max(1, each))

    # Preparing: once for each kind of input

    def prepare(self, x: Inputs) -> None:
        """Check inputs; on the first batch, also that the model is one a linearisation can be trusted for."""
        self.check(x)
        # One input cannot show that rows change places inside: the next batch is then looked at again.
        if not self.outputs_per_input or (self._alone and count(x) > 1):
            with without_tf32(self.device):  # three digits are too few to tell a wrong gradient from a rounded one
                self._examine(x)

    def check(self, x: Inputs) -> None:
        """That x has the form, dtype and device the model takes, and finite numbers."""
        check_form(x)
        self._check_kind(x)
        check_numbers(x)

    def trust(self, other: Network) -> None:
        """Take what was found out about a network that is alike, instead of finding it out again."""
        if not self.outputs_per_input:
            self._opaque, self.outputs_per_input, self._alone = other._opaque, other.outputs_per_input, other._alone

    def _check_kind(self, x: Inputs) -> None:
        if torch.is_autocast_enabled(self.device.type):
            raise InputError(
                "torch.autocast is on, and would take digits from every product here; call this outside of it, or "
                f"within torch.autocast({self.device.type!r}, enabled=False)."
            )
        for t in tensors_of(x):
            if t.device != self.device:
                raise InputError(f"inputs are on {t.device} but the model is on {self.device}; move one to the other.")
            if t.is_floating_point() and t.dtype != self.dtype:
                raise InputError(
                    f"inputs are {t.dtype} but the weights are {self.dtype}; cast one, e.g. x.to({self.dtype})."
                )

    def _examine(self, x: Inputs) -> None:
        # The first one comes again at the end, so that sorting them moves rows even where the data are in order.
        last, steps = count(x) - 1, min(count(x), 4) - 1
        picks = [last * k // max(1, steps) for k in range(steps + 1)]
        few = map_tensors(x, lambda t: t[[*picks, 0]])
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            with torch.no_grad():
                f, alone = self._run(few), self._run_alone(few)
            again, tape = self._taped(few)
        self._finite(f)
        if not again.requires_grad and (tape.calls or tape.unreadable):
            raise InputError(
                "the outputs have no gradient by the weights to infer, though layers use them: the forward "
                "pass runs under torch.no_grad(), or detaches what they give. Let gradients through, or choose other "
                "`parameters`."
            )
        if not close(f, again.detach()):
            raise InputError(
                "the model gives different outputs for the same input in evaluation mode; remove what is random "
                "in its forward pass (functional dropout or noise that ignores `training`)."
            )
        if isinstance(alone, InputError):
            raise InputError(
                f"the model fails on a single input, though not on several: {alone} If it ends in squeeze(), make that "
                "squeeze(-1); if an output depends on the others in its batch, use running statistics."
            )
        if not close(f[:1], alone):
            raise InputError(
                "the model's output for one input depends on the others in its batch (batch statistics in "
                "evaluation mode?); use running statistics, or normalise within an input."
            )
        self._opaque |= self._unexplained(few, again, tape)
        self.outputs_per_input, self._alone = f.shape[1], count(x) == 1

    def _run_alone(self, x: Inputs) -> Tensor | InputError:
        """f of the first input by itself; an error if the model cannot do without the others."""
        try:
            return self._run(take(x, 0, 1))
        except InputError as error:
            return error

    def _unexplained(self, x: Inputs, f: Tensor, tape: Tape) -> frozenset[str]:
        """Parameters whose taps do not add up to autograd's own vjp, or whose rows belong to other inputs."""
        tapped = {name for call in tape.calls for name in call.rules}
        self._opaque = frozenset(name for name in self.names if name not in tapped or name in tape.unreadable)
        wrong = self._disagreeing(x, f, tape)
        if wrong:
            warnings.warn(
                f"the layer calls that use {', '.join(sorted(wrong))} do not account for all of the gradient "
                "(a weight used outside its layer, a layer with a forward of its own, or data not on the first "
                "axis); these parameters take the dense path: exact, but slower and larger.",
                LinlapWarning,
                stacklevel=4,
            )
        return self._opaque | wrong

    def _disagreeing(self, x: Inputs, f: Tensor, tape: Tape) -> frozenset[str]:
        """One seed for all inputs is pulled back as taps and by autograd, and one for each input alone as taps."""
        everywhere = torch.cos(torch.arange(f.numel(), dtype=f.dtype, device=f.device) + 0.5).reshape(f.shape)
        truth = self._gradients(f, everywhere)
        known = [name for name in self.names if name not in self._opaque]
        if not known:
            return frozenset()
        alone = torch.eye(len(f), dtype=f.dtype, device=f.device).unsqueeze(-1) * everywhere.unsqueeze(1)
        seeds = torch.cat([everywhere.unsqueeze(1), alone], dim=1)
        blocks = self._blocks(x, f, tape, seeds, known).jacobian.blocks
        # Some gradients are zero but for rounding, which is as small as the network's others allow.
        floor = max(map(largest, truth.values())) * 10 * torch.finfo(f.dtype).eps
        return frozenset(name for name in known if not adds_up(blocks, name, truth[name].flatten(), floor))

    # The work

    @contextmanager
    def _grad_mode(self) -> Iterator[None]:
        # Fused attention kernels have no rule for batches of seeds; the plain one computes the same.
        with torch.inference_mode(False), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), self._plain_recurrence():
            yield

    def _plain_recurrence(self) -> AbstractContextManager[None]:
        """cuDNN's recurrent cells have no gradient in evaluation; torch's own do."""
        recurrent = self.device.type == "cuda" and any(isinstance(m, nn.RNNBase) for m in self.model.modules())
        return cudnn.flags(enabled=False) if recurrent else nullcontext()

    def _run(self, x: Inputs) -> Tensor:
        x = map_tensors(x, lambda t: t.detach().clone())  # the model may work in place on what it is given
        args, kwargs = arguments(self.model, x)
        try:
            with as_written():
                f = output_tensor(self.model(*args, **kwargs))
        except torch.OutOfMemoryError:
            raise
        except InputError:
            raise
        except (RuntimeError, LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
            shapes = " and ".join("[" + ", ".join(["n", *map(str, t.shape[1:])]) + "]" for t in tensors_of(x))
            raise InputError(f"the model cannot take inputs of shape {shapes}: {error}") from error
        if f.dtype != self.dtype:
            raise InputError(
                f"the model's outputs are {f.dtype} but the weights {self.dtype}; return them as they are computed, "
                "without a cast, and outside of torch.autocast."
            )
        f = as_matrix(f, count(x))
        if self.outputs_per_input not in (0, f.shape[1]):
            raise InputError(
                f"the model gives {f.shape[1]} outputs for these inputs, and gave {self.outputs_per_input} before; "
                "pass inputs of the shape it was fitted with."
            )
        return f

    def _finite(self, f: Tensor) -> Tensor:
        if not all_finite(f):
            raise NotFiniteError("the model's outputs have NaN or infinite entries for these inputs.")
        return f

    def _taped(self, x: Inputs) -> tuple[Tensor, Tape]:
        """f with its graph, and what known layers were called on."""
        with self._grad_mode(), self._recorder.recording(count(x)) as tape:
            return self._run(x), tape

    def _linearize(self, x: Inputs, seeds: Seeds, *, once: bool = False) -> Linearization:
        f, tape = self._taped(x)
        return self._blocks(x, f, tape, _seeds(seeds, self._finite(f.detach())), self.names, once)

    def _blocks(
        self, x: Inputs, f: Tensor, tape: Tape, u: Tensor, names: list[str], once: bool = False
    ) -> Linearization:
        """The blocks of some parameters for seeds u, from a forward pass that was taped; its graph is used up."""
        n, mean = count(x), f.detach()
        with self._grad_mode():
            calls = [call for call in tape.calls if any(name in names for name in call.rules)]
            settled = self._opaque | tape.unreadable
            tapped = {name for call in calls for name in call.rules} - settled
            opaque = [name for name in names if name not in tapped]
            dense = self._rows(opaque, x, f, u) if opaque else {}
            parts = _collect(calls, pull_back(f, u, calls), n)
        shapes = {name: self.shapes[name] for name in names}
        blocks = TapedBlocks(shapes, parts, dense, once)
        biases = {w: b for w, b in biases_of(calls).items() if not {w, b} & settled}
        return Linearization(mean, Jacobian(blocks, shapes, mean, (n, u.shape[1]), biases), frozenset(opaque))

    def _rows(self, names: list[str], x: Inputs, f: Tensor, u: Tensor) -> Params:
        """Dense blocks `[n, r, p]`. torch's rules for batches are not right for every operation at every size, so for
        each size they are checked once against its plain gradients; where they fail, inputs go one by one."""
        kind = (u.shape[:2], tuple(t.shape[1:] for t in tensors_of(x)))
        if self._batches_well.get(kind, True):
            found = sample_jacobian(self.outputs_at, self.theta, names, x, u)
            if kind not in self._batches_well:
                self._batches_well[kind] = found is not None and self._rows_add_up(found, f, u)
            if found is not None and self._batches_well[kind]:
                return found
        return one_by_one(self.outputs_at, self.theta, names, x, u)

    def _rows_add_up(self, found: Params, f: Tensor, u: Tensor) -> bool:
        """Whether rows, each with a number of its own, add up to autograd's gradient."""
        n, r = u.shape[:2]
        each = torch.cos(torch.arange(n * r, dtype=f.dtype, device=f.device) + 0.5).reshape(n, r)
        truth = self._gradients(f, torch.einsum("nr,nrc->nc", each, u))
        floor = max(map(largest, truth.values())) * 10 * torch.finfo(f.dtype).eps
        sums = {name: torch.einsum("nr,nrp->p", each, rows) for name, rows in found.items()}
        return all(close(total, truth[name].flatten(), floor) for name, total in sums.items())

    def _autograd_vjp(self, x: Inputs, u: Tensor) -> Params:
        with self._grad_mode():
            f = self._run(x)
        return self._gradients(f, u)

    def _gradients(self, f: Tensor, u: Tensor) -> Params:
        """∂(u·f)/∂θ by autograd; the graph is kept."""
        if not f.requires_grad:
            return {name: torch.zeros_like(p) for name, p in self.theta.items()}
        try:
            with self._grad_mode():
                found = torch.autograd.grad(f, list(self.theta.values()), u, allow_unused=True, retain_graph=True)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError) as error:  # operations without a derivative
            raise InputError(f"the model's outputs cannot be differentiated by its weights: {error}") from error
        return {
            name: torch.zeros_like(p) if g is None else g.detach()
            for (name, p), g in zip(self.theta.items(), found, strict=True)
        }


@contextmanager
def as_written() -> Iterator[None]:
    """Models run as they are written.

    torch's fused encoder, taken only without gradients, puts zeros at padded positions: another function. Reentrant
    checkpoints have no gradient but for all weights at once; there is nothing to save by them here.
    """
    checkpoints: Any = CheckpointFunction
    before, apply = torch.backends.mha.get_fastpath_enabled(), checkpoints.apply
    torch.backends.mha.set_fastpath_enabled(False)
    checkpoints.apply = lambda function, preserve_rng_state, *args: function(*args)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
        checkpoints.apply = apply


def _seeds(seeds: Seeds, mean: Tensor) -> Tensor:
    n, c = mean.shape
    if seeds is None:
        return torch.eye(c, dtype=mean.dtype, device=mean.device).expand(n, c, c)
    u = seeds(mean) if callable(seeds) else seeds
    return check_like(u, "seeds", mean, (n, u.shape[1] if u.ndim == 3 else "r", c))


def _collect(calls: list[Call], gradients: list[Tensor], n: int) -> dict[str, list[tuple[Rule, Tensor]]]:
    """Rules with their gradients `[n, r, ...]`, by parameter."""
    parts: dict[str, list[tuple[Rule, Tensor]]] = {}
    for call, g in zip(calls, gradients, strict=True):
        spread = g if call.output[0] == n else g.reshape(n, call.output[0] // n, *g.shape[1:]).transpose(1, 2)
        for name, rule in call.rules.items():
            parts.setdefault(name, []).append((rule, spread))
    return parts
