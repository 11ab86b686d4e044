"""Named cases that the contract suites run over: one call each, with why it exists. A new thing adds a line.

Not here: BatchNorm without running statistics (`track_running_stats=False`), which even in evaluation
normalises a batch as a whole: f(x_n) depends on the other data, so that no input has a Jacobian of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, tanh
from torch.nn import Linear, Sequential
from torch.nn.functional import linear, prelu
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

import linlap as ll
from linlap import linalg
from linlap.likelihoods import Likelihood
from tests.checks import orthogonal as orthogonal_matrix
from tests.checks import spd, varied
from tests.networks.case import NetworkCase, seeded
from tests.networks.forward import (
    after_fc,
    attention,
    discarded,
    frames_merged,
    inplace_on_view,
    merged,
    packed,
    places,
    pooled,
    positions_first,
    self_attention,
    sorted_inside,
    states,
    twins,
    two_inputs,
    two_lengths,
    unrolled,
    without_grad,
)
from tests.networks.parts import (
    InplaceReLU,
    MaskedLinear,
    StandardizedConv2d,
    TakesDict,
    encoder_layer,
    frozen,
    half_biased,
    hooked,
    hugging_face,
    mlp,
    net,
    normal,
    old_weight_norm,
    over,
    padded_sequences,
    parameter,
    parametrized,
    resnet,
    tied,
    together,
    tokens,
    words_and_mask,
    words_in_and_out,
)
from tests.operators import (
    WEIGHTS,
    OperatorCase,
    block_diagonal,
    kronecker,
    kronecker_layer,
    low_rank,
    no_lookup,
    one_group,
    two_groups,
    two_parameters,
)
from tests.structures import StructureCase, by_diagonal, by_full, by_kron, by_leading

Case = NetworkCase

DENSE = [
    Case("linear", lambda: Linear(3, 2), normal(4, 3), 2),  # the layer itself, under the name ""
    Case("linear_no_bias", lambda: Sequential(Linear(3, 2, bias=False)), normal(4, 3), 2),
    Case("mlp_1_hidden", lambda: mlp(3, 5, 1), normal(5, 3), 1),
    Case("mlp_2_hidden", lambda: mlp(3, 6, 5, 2), normal(4, 3), 2),  # where the peer's GP swaps its axes
    Case("mlp_3_hidden", lambda: mlp(2, 4, 5, 4, 4), normal(5, 2), 4, train=True),
    # Where Kron's blocks are those of the full matrix: one datum; linear networks and a Gaussian likelihood.
    Case("mlp_one_datum", lambda: mlp(3, 5, 2), normal(1, 3), 2),
    Case("deep_linear", lambda: mlp(3, 5, 4, 2, act=nn.Identity), normal(5, 3), 2),
    Case("mlp_wide", lambda: mlp(8, 32, 32, 10), normal(3, 8), 10, slow=True),  # some 1700 parameters
    # More data than any layer has inputs: no eigenvalue of a Kronecker factor repeats.
    Case("mlp_many_data", lambda: mlp(3, 4, 3), normal(14, 3), 3),
    # Activations that backends of the peer's refuse.
    Case("gelu", lambda: mlp(3, 4, 4, 2, act=nn.GELU), normal(4, 3), 2),
    Case("silu", lambda: mlp(3, 4, 4, 2, act=nn.SiLU), normal(4, 3), 2),
    Case("softplus", lambda: mlp(3, 4, 4, 2, act=nn.Softplus), normal(4, 3), 2),
    Case("relu", lambda: mlp(3, 6, 5, 2, act=nn.ReLU), normal(5, 3), 2),  # dead units: zeros in J
    Case("output_vector", lambda: Sequential(mlp(3, 5, 1), nn.Flatten(0)), normal(4, 3), 1),
    Case("frozen_some", lambda: frozen(mlp(3, 4, 4, 2), "2.weight", "0.bias"), normal(4, 3), 2),
    Case("dropout", lambda: mlp(3, 6, 2, act=lambda: nn.Dropout(0.5)), normal(4, 3), 2, train=True),
    Case("inplace_relu", lambda: mlp(3, 6, 5, 2, act=InplaceReLU), normal(5, 3), 2, train=True),
    net("residual", lambda m, x: m.head(x + tanh(m.fc(x))), (4, 4), fc=(4, 4)),
    # Written over the output of a Linear: a sum and an activation; a part of it, through a view.
    net("inplace_sum", lambda m, x: m.head(m.fc(x).add_(m.b(x)).relu_()), (4, 4), fc=(4, 4), b=(4, 4)),
    net("inplace_on_view", inplace_on_view, (4, 3), fc=(3, 4)),
    net("positions", pooled, (4, 5, 3), fc=(3, 4)),
    # The layer's output is a view, whose place in the graph an in-place operation makes anew.
    over("inplace_relu_positions", (5, 3), lambda: Linear(3, 4), InplaceReLU),
    net("two_position_axes", pooled, (3, 2, 5, 3), fc=(3, 4)),
    # What a hook of the library's sees depends on what it is told, and when.
    Case("user_hooks", lambda: hooked(mlp(3, 5, 2), "0"), normal(4, 3), 2),
    net("keyword_call", lambda m, x: m.head(tanh(m.fc(input=x))), (4, 3), fc=(3, 4)),
]

CONVOLUTIONS = [
    over("conv1d", (2, 7), lambda: nn.Conv1d(2, 3, 3)),
    over("conv2d", (2, 5, 4), lambda: nn.Conv2d(2, 3, (3, 2))),
    over("conv3d", (2, 3, 4, 3), lambda: nn.Conv3d(2, 2, 2)),
    over("conv2d_1x1_no_bias", (3, 4, 3), lambda: nn.Conv2d(3, 2, 1, bias=False)),
    over("conv1d_stride_padding", (2, 8), lambda: nn.Conv1d(2, 3, 3, stride=2, padding=2)),
    # The last rows and columns are in no patch.
    over("conv2d_stride_remainder", (1, 7, 6), lambda: nn.Conv2d(1, 2, (3, 2), stride=(3, 4))),
    over("conv2d_padding_tuple", (2, 4, 5), lambda: nn.Conv2d(2, 2, 3, padding=(0, 2))),
    # An even kernel pads one side more than the other.
    over("conv2d_same_even", (2, 5, 4), lambda: nn.Conv2d(2, 2, (2, 4), padding="same")),
    over("conv1d_same_dilated", (2, 7), lambda: nn.Conv1d(2, 3, 4, padding="same", dilation=3)),
    over("conv_same_reflect", (2, 5, 5), lambda: nn.Conv2d(2, 2, 2, padding="same", padding_mode="reflect")),
    over("conv2d_valid", (2, 5, 4), lambda: nn.Conv2d(2, 2, 3, padding="valid")),
    over("conv2d_reflect", (2, 4, 5), lambda: nn.Conv2d(2, 2, 3, padding=(1, 2), padding_mode="reflect")),
    over("conv1d_replicate", (2, 6), lambda: nn.Conv1d(2, 3, 3, padding=2, padding_mode="replicate")),
    over("conv2d_circular", (2, 4, 5), lambda: nn.Conv2d(2, 2, 3, padding=(2, 1), padding_mode="circular")),
    over("conv3d_replicate", (1, 3, 3, 4), lambda: nn.Conv3d(1, 2, 2, padding=1, padding_mode="replicate")),
    over("conv2d_dilation", (2, 6, 7), lambda: nn.Conv2d(2, 2, 3, dilation=(2, 3), padding=1)),
    over("conv2d_groups", (4, 4, 4), lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1)),
    # Two outputs a channel.
    over("conv2d_depthwise", (3, 4, 4), lambda: nn.Conv2d(3, 6, 3, groups=3, stride=2, padding=1)),
    over("conv_groups_circular", (4, 6), lambda: nn.Conv1d(4, 4, 3, 2, 1, groups=2, padding_mode="circular")),
    over("conv3d_groups_dilation", (2, 4, 3, 3), lambda: nn.Conv3d(2, 2, 2, dilation=(3, 1, 2), groups=2)),
    over("depthwise_separable", (3, 4, 4), lambda: nn.Conv2d(3, 3, 3, groups=3), lambda: nn.Conv2d(3, 4, 1)),
    over("conv_transpose1d", (3, 5), lambda: nn.ConvTranspose1d(3, 2, 3, 2, padding=1, output_padding=1)),
    over("conv_transpose2d", (2, 3, 4), lambda: nn.ConvTranspose2d(2, 3, (3, 2), (2, 1), padding=(1, 0))),
    # A stride beyond the kernel: outputs that only the bias reaches.
    over("conv_transpose2d_gaps", (2, 3, 3), lambda: nn.ConvTranspose2d(2, 2, 2, stride=3, output_padding=1)),
    over("conv_transpose3d", (2, 2, 3, 2), lambda: nn.ConvTranspose3d(2, 2, 2, stride=2, bias=False)),
    over("conv_transpose2d_groups", (4, 3, 3), lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2)),
    over("conv_transpose1d_dilation", (2, 4), lambda: nn.ConvTranspose1d(2, 2, 3, 2, 3, 1, dilation=3)),
    over("max_pool", (1, 6, 6), lambda: nn.Conv2d(1, 3, 3), lambda: nn.MaxPool2d(2)),
    over("adaptive_pool", (2, 5, 5), lambda: nn.Conv2d(2, 3, 2), lambda: nn.AdaptiveAvgPool2d(2)),
    over("inplace_relu_conv", (2, 5, 5), lambda: nn.Conv2d(2, 3, 3), InplaceReLU),
    over("inplace_relu_transposed", (2, 3, 3), lambda: nn.ConvTranspose2d(2, 3, 2, 2), InplaceReLU),
    Case("resnet", resnet, normal(3, 1, 6, 6), 3, train=True, slow=True),
]

NORMS = [
    over("batch_norm1d", (4,), lambda: nn.BatchNorm1d(4, eps=0.3)),
    over("batch_norm1d_positions", (3, 5), lambda: nn.BatchNorm1d(3)),
    over("batch_norm2d", (2, 4, 4), lambda: nn.Conv2d(2, 3, 2, bias=False), lambda: nn.BatchNorm2d(3)),
    over("batch_norm_plain", (2, 4, 4), lambda: nn.Conv2d(2, 3, 2), lambda: nn.BatchNorm2d(3, affine=False)),
    Case("batch_norm_mlp", lambda: mlp(3, 4, 2, act=lambda: nn.BatchNorm1d(4)), normal(4, 3), 2, train=True),
    over("layer_norm", (5, 4), lambda: nn.LayerNorm(4, eps=0.3)),
    over("layer_norm_two_axes", (2, 3, 4), lambda: nn.LayerNorm((3, 4))),
    over("layer_norm_no_bias", (6,), lambda: Linear(6, 4), lambda: nn.LayerNorm(4, bias=False)),
    over("group_norm", (4, 3, 3), lambda: nn.GroupNorm(2, 4, eps=0.3)),
    over("instance_norm2d", (3, 3, 4), lambda: nn.InstanceNorm2d(3, eps=0.3, affine=True)),
    over("instance_norm_stats", (3, 5), lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True)),
    over("rms_norm", (5, 4), lambda: nn.RMSNorm(4, eps=0.3)),
    over("inplace_relu_instance_norm", (3, 3, 4), lambda: nn.InstanceNorm2d(3, affine=True), InplaceReLU),
    over("inplace_relu_batch_norm", (2, 4, 4), lambda: nn.BatchNorm2d(2), InplaceReLU),
    over("inplace_relu_layer_norm", (5, 4), lambda: nn.LayerNorm(4), InplaceReLU),
]

TOKENS = [
    # Few words and many places, so that words repeat within an input.
    net("embedding", pooled, tokens(4, 4, 6), fc=lambda: nn.Embedding(4, 4)),
    net("embedding_padding", pooled, tokens(4, 4, 6), fc=lambda: nn.Embedding(4, 4, padding_idx=1)),
    # What autograd gives is no derivative, and depends on the batch; is a sparse tensor.
    net("embedding_freq", pooled, tokens(4, 4, 6), fc=lambda: nn.Embedding(4, 4, scale_grad_by_freq=True)),
    net("embedding_sparse", pooled, tokens(4, 4, 6), fc=lambda: nn.Embedding(4, 4, sparse=True)),
    # One category an input and no positions; two axes of positions.
    net("embedding_of_category", after_fc, tokens(4, 5), fc=lambda: nn.Embedding(4, 4)),
    net("embedding_two_axes", pooled, tokens(5, 3, 2, 4), fc=lambda: nn.Embedding(5, 4)),
    net("inplace_embedding", inplace_on_view, tokens(4, 5), fc=lambda: nn.Embedding(4, 4)),
    net("embedding_bag", after_fc, tokens(5, 4, 3), fc=lambda: nn.EmbeddingBag(5, 4)),
]

SEQUENCES = [
    net("attention", attention, (4, 5, 4), qkv=(4, 12), out=(4, 4)),
    # Its output projection is a Linear whose forward is never called.
    net(
        "multihead_attention",
        self_attention,
        (3, 5, 4),
        att=lambda: nn.MultiheadAttention(4, 2, batch_first=True),
    ),
    net("transformer_encoder_layer", pooled, (3, 5, 4), fc=encoder_layer, train=True),
    net("lstm", states, (4, 5, 3), rnn=lambda: nn.LSTM(3, 4, batch_first=True)),
    net("lstm_bidirectional", states, (3, 4, 3), rnn=lambda: nn.LSTM(3, 2, 2, True, True, 0.3, True)),
    # Sequences of different lengths, which torch sorts by length.
    net("lstm_packed", packed, padded_sequences, rnn=lambda: nn.LSTM(3, 4, batch_first=True)),
    net("gru", states, (4, 5, 3), rnn=lambda: nn.GRU(3, 4, batch_first=True)),
    net("gru_cell", unrolled, (3, 4, 3), cell=lambda: nn.GRUCell(3, 4)),
]

SHARED = [
    net("linear_reused", lambda m, x: m.head(tanh(m.fc(m.fc(x)))), (4, 4), fc=(4, 4)),
    over("conv_reused", (2, 3, 3), lambda: Sequential(*[nn.Conv2d(2, 2, 3, padding=1)] * 2)),
    net("norm_reused", lambda m, x: m.head(m.fc(m.fc(x) ** 2)), (4, 4), fc=lambda: nn.LayerNorm(4)),
    # The positions of the calls cannot be stacked.
    net("linear_reused_other_lengths", two_lengths, (4, 5, 3), fc=(3, 4)),
    net("embedding_reused_other_lengths", two_lengths, tokens(4, 4, 5), fc=lambda: nn.Embedding(4, 4)),
    Case("tied_linears", lambda: tied(mlp(4, 4, 4, 2), "2", "0"), normal(4, 4), 2),
    # The second use has no bias: weight and bias do not come from the same calls.
    Case("tied_without_bias", lambda: tied(half_biased(), "2", "0"), normal(4, 4), 2),
    Case("tied_embedding", lambda: tied(words_in_and_out(), "head", "fc"), tokens(5, 3, 6), 5),
    # One weight, used the one way round and the other.
    net(
        "tied_transposed",
        lambda m, x: linear(tanh(m.fc(x)), m.fc.weight.T),
        (4, 3),
        3,
        fc=(3, 4),
        head=nn.Identity,
    ),
    # Taps on the module see one use of its weight of two; none; another than what its type says.
    net("called_and_functional", lambda m, x: m.head(linear(tanh(m.fc(x)), m.fc.weight)), (4, 4), fc=(4, 4)),
    net("functional", lambda m, x: m.head(tanh(linear(x, 2 * m.fc.weight, m.fc.bias))), (4, 3), fc=(3, 4)),
    net("linear_by_type_only", after_fc, (4, 3), fc=lambda: MaskedLinear(3, 4)),
    over("conv_by_type_only", (2, 4, 4), lambda: StandardizedConv2d(2, 3, 3)),
    net("discarded", discarded, (4, 3), fc=(3, 4), aside=(3, 4)),
    net("unused", after_fc, (4, 3), fc=(3, 4), idle=(2, 2), bare=lambda: parameter(3)),
]

BARE = [
    net("scale", lambda m, x: m.head(tanh(m.fc(x) * m.scale)), (4, 3), fc=(3, 4), scale=parameter),
    net(
        "added_places",
        lambda m, x: pooled(m, x + m.places),
        (3, 5, 3),
        fc=(3, 4),
        places=lambda: parameter(5, 3),
    ),
    net(
        "bare_only",
        lambda m, x: tanh(x @ m.w) @ m.head,
        (4, 3),
        w=lambda: parameter(3, 4),
        head=lambda: parameter(4, 2),
    ),
    Case("prelu", lambda: mlp(3, 4, 2, act=lambda: nn.PReLU(4)), normal(4, 3), 2),
    over("prelu_channels", (2, 4, 4), lambda: nn.Conv2d(2, 3, 2), lambda: nn.PReLU(3)),
    over("prelu_shared", (2, 4, 4), lambda: nn.Conv2d(2, 3, 2), nn.PReLU),
    # Operations that torch batches wrongly at some sizes: as many inputs as outputs; any number.
    net(
        "prelu_functional", lambda m, x: m.head(prelu(m.fc(x), m.slope)), (2, 3), fc=(3, 4), slope=lambda: parameter(4)
    ),
    net(
        "distances",
        lambda m, x: m.head(torch.cdist(m.fc(x), m.there)),
        (4, 3),
        fc=(3, 4),
        there=lambda: parameter(4, 4),
    ),
    net("bilinear", lambda m, x: m.head(m.mix(x, x)), (4, 3), mix=lambda: nn.Bilinear(3, 3, 4)),
    net("weight_norm", after_fc, (4, 3), fc=lambda: weight_norm(Linear(3, 4))),
    net("weight_norm_old", after_fc, (4, 3), fc=lambda: old_weight_norm(Linear(3, 4))),
    net("orthogonal", after_fc, (4, 4), fc=lambda: orthogonal(Linear(4, 4))),
    # In training its buffers change at every call.
    net("spectral_norm", after_fc, (4, 3), fc=lambda: spectral_norm(Linear(3, 4)), train=True),
    over("parametrized_conv", (2, 4, 4), lambda: parametrized(nn.Conv2d(2, 3, 3), nn.Softplus())),
]

PAIR = {"left": normal(4, 3), "right": normal(4, 2)}
INPUTS = [
    net("tuple", two_inputs, together(*PAIR.values()), left=(3, 4), right=(2, 4)),
    net("dict_keywords", two_inputs, together(**PAIR), left=(3, 4), right=(2, 4)),
    net("dict_whole", two_inputs, together(**PAIR), left=(3, 4), right=(2, 4), model=TakesDict),
    Case("hugging_face", hugging_face, words_and_mask, 3, train=True, slow=True),
]

# The inputs are not on the first axis of what a layer sees, though some of them have its length there.
# Summed over the data all gradients are right, whichever axis is taken: one vjp does not tell.
AXES = [
    net("positions_first", lambda m, x: m.head(tanh(m.fc(x.transpose(0, 1))).mean(0)), (4, 4, 3), fc=(3, 4)),
    net("attention_positions_first", positions_first, (4, 4, 4), att=lambda: nn.MultiheadAttention(4, 2)),
    net("positions_merged", lambda m, x: merged(m, x, 0), (4, 5, 3), fc=(3, 4)),
    net("positions_first_merged", lambda m, x: merged(m, x.transpose(0, 1), 1), (4, 5, 3), fc=(3, 4)),
    net("frames_merged", frames_merged, (4, 3, 1, 3, 3), conv=lambda: nn.Conv2d(1, 1, 2)),
    net("twins_concatenated", twins, together(normal(4, 3), normal(4, 3)), fc=(3, 4)),
    net("sorted_inside", sorted_inside, (4, 3), fc=(3, 4)),
    net("halves", lambda m, x: m.head(tanh(torch.cat([m.fc(x[:2]), m.fc(x[2:])]))), (4, 3), fc=(3, 4)),
    net("one_at_a_time", lambda m, x: m.head(tanh(torch.stack([m.fc(row) for row in x]))), (4, 3), fc=(3, 4)),
    # No axis of inputs at all: what the layer sees is the same for all of them.
    net(
        "places_embedded",
        lambda m, x: places(m, x, torch.arange(4)),
        (4, 4, 4),
        fc=lambda: nn.Embedding(4, 4),
    ),
    net(
        "places_embedded_once",
        lambda m, x: places(m, x, torch.arange(5)[None]),
        (4, 5, 4),
        fc=lambda: nn.Embedding(5, 4),
    ),
    net(
        "keys_from_table",
        lambda m, x: m.head(tanh(x @ m.fc(m.table).T)),
        (4, 4),
        fc=(3, 4),
        table=lambda: parameter(4, 3),
    ),
]

# What the model detaches is a constant.
STOPS = [
    net("body_without_grad", without_grad, (4, 3), fc=(3, 4), stops=True),
    net("call_detached", lambda m, x: m.head(m.fc(tanh(m.fc(x)).detach())), (4, 4), fc=(4, 4), stops=True),
]

NETWORKS = DENSE + CONVOLUTIONS + NORMS + TOKENS + SEQUENCES + SHARED + BARE + INPUTS + AXES + STOPS
QUICK = [case for case in NETWORKS if not case.slow]
BY_NAME = {case.name: case for case in NETWORKS}


@dataclass(frozen=True)
class LikelihoodCase:
    """A likelihood by the oracle's name for it, with targets to go with any outputs it can have."""

    name: str
    oracle: str
    library: Callable[..., Likelihood]
    fits: Callable[[int], bool]
    draw: Callable[[Tensor], Tensor]
    noise: Callable[[int], float | Tensor] | None = None

    def options(self, outputs: int) -> dict[str, Any]:
        """Keywords for the oracle's functions and for the library's class alike."""
        return {} if self.noise is None else {"noise": self.noise(outputs)}

    def targets(self, f: Tensor) -> Tensor:
        """y for outputs f `[n, C]`, the same at every call."""
        return seeded(lambda: self.draw(f), self.name)


def near(f: Tensor) -> Tensor:
    return f + torch.randn_like(f)


def near_half(f: Tensor) -> Tensor:
    return near(f.chunk(2, 1)[0])


def any_number(C: int) -> bool:
    return True


def several(C: int) -> bool:
    return C > 1


def even(C: int) -> bool:
    return C % 2 == 0


LIKELIHOODS = [
    LikelihoodCase("gaussian", "gaussian", ll.Gaussian, any_number, near, lambda C: 0.7),
    LikelihoodCase("gaussian_per_output", "gaussian", ll.Gaussian, several, near, lambda C: torch.arange(1.0, C + 1)),
    LikelihoodCase("bernoulli", "bernoulli", ll.Bernoulli, any_number, lambda f: torch.bernoulli(f.sigmoid())),
    LikelihoodCase("categorical", "categorical", ll.Categorical, several, lambda f: f.softmax(1).multinomial(1)[:, 0]),
    LikelihoodCase("poisson", "poisson", ll.Poisson, any_number, lambda f: torch.poisson(f.exp())),
    LikelihoodCase("heteroscedastic", "heteroscedastic", ll.HeteroscedasticGaussian, even, near_half),
]


LIKELIHOODS_BY_NAME = {case.name: case for case in LIKELIHOODS}


def likelihoods_for(outputs: int) -> list[LikelihoodCase]:
    """Those that can have this many outputs."""
    return [likelihood for likelihood in LIKELIHOODS if likelihood.fits(outputs)]


def likelihood_for(case: NetworkCase) -> LikelihoodCase:
    """One for each network, so that the networks together meet them all."""
    choice = likelihoods_for(case.outputs)
    return choice[zlib.crc32(case.name.encode()) % len(choice)]


# A structure: a line here, and it runs the contract of structures. `by_*` says what its precision is to be.
STRUCTURES = [
    StructureCase("full", ll.Full(), by_full),
    StructureCase("diagonal", ll.Diagonal(), by_diagonal),
    StructureCase("kron", ll.Kron(), by_kron()),
    StructureCase("kron_dampened", ll.Kron(damping="sqrt"), by_kron(damping="sqrt"), per_weight=False),
    StructureCase("kron_reduce", ll.Kron(sharing="reduce"), by_kron(sharing="reduce")),
    StructureCase("kron_sum", ll.Kron(sharing="sum"), by_kron(sharing="sum")),
    StructureCase("kron_corrected", ll.Kron(corrected=True), by_kron(corrected=True), adds=False),
    StructureCase("low_rank_all", ll.LowRank(1000), by_full),
    StructureCase("low_rank", ll.LowRank(4, steps=1000), by_leading(4)),
]
STRUCTURES_BY_NAME = {case.name: case for case in STRUCTURES}

# An operator: a line here, and it runs the contract of operators.
OPERATORS = [
    OperatorCase("dense", lambda: linalg.Dense.of(spd(WEIGHTS))),
    OperatorCase("spectral", lambda: linalg.Spectral(orthogonal_matrix(WEIGHTS), varied(WEIGHTS))),
    OperatorCase("diagonal", lambda: linalg.Diagonal(varied(WEIGHTS))),
    OperatorCase("low_rank", lambda: low_rank(5)),
    OperatorCase("low_rank_of_all", lambda: low_rank(WEIGHTS)),
    OperatorCase("low_rank_of_none", lambda: low_rank(0)),
    OperatorCase("kronecker", lambda: kronecker(1, 6, 4), no_lookup),
    OperatorCase("kronecker_groups", lambda: kronecker(2, 3, 4), two_groups),
    OperatorCase("kronecker_no_left", lambda: kronecker(1, 6, 4, left=False), one_group),
    OperatorCase("kronecker_no_right", lambda: kronecker(1, 6, 4, right=False), no_lookup),
    OperatorCase("kronecker_layer", kronecker_layer, two_parameters),
    OperatorCase("block_diagonal", block_diagonal, two_parameters),
]
