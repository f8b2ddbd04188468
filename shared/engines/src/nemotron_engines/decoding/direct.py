"""Decoding of known architectures in few and large operations, on memory that is written in place.

The step of a small model in transformers 5.23 is mostly calls: 46 operations in a layer of a Llama, not counting views,
with masks and positions made anew for each token, and keys that are copied to append one. Here it takes 20: queries,
keys and values are one product, as are gate and up; the weights of a norm are part of the product after it; a pair of
rotated channels is a complex number, so that all heads are turned by one multiplication; key and value are written into
their column together; and residuals are added by the products. Tokens are sorted by expert, so that all experts are one
grouped product. Matrices are held in the layouts that a product with few rows reads fastest. No step waits for a value,
and each has the same operations and shapes until the memory grows.

Supported are float32 models on a CPU without hooks, adapters or patches, of the classes in `KNOWN` with full
attention (`why_not` gives the reason for others). Results differ from transformers' by the rounding of sums.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHForCausalLM, NemotronHMoE

from nemotron_engines.decoding.general import KNOWN, General, Prefilled, cache_rows, joins
from nemotron_engines.exact.layers import chosen
from nemotron_engines.kernels.mamba_install import is_older

STATIC_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding whose angles do not depend on the length of the sequence."""
LIBRARIES = ("torch", "transformers")
"""Packages whose modules a model may have."""
BLOCK = 32
"""Columns by which the memory of keys grows."""
LARGEST_COPY = 1 << 28
"""Parameters of the largest model whose matrices are copied: 1 GiB, and twice as much for the copies."""
MANY = 4
"""Rows from which oneDNN's own layout of a matrix is the fastest; MKL reads a transposed one faster for fewer."""
ONEDNN: Any = torch.ops.mkldnn
ONEDNN_IS_HERE = torch.backends.mkldnn.is_available() and all(
    hasattr(ONEDNN, name) for name in ("_linear_pointwise", "_reorder_linear_weight")
)
"""The operations that torch's own compiler uses for frozen weights; not every build of torch has them."""


def why_not(model: Any) -> str | None:
    """Why a model cannot be decoded directly; None if it can."""
    if type(model) not in KNOWN:
        return f"{type(model).__name__} has no direct step"
    config, modules, hybrid = model.config, [*model.modules()], isinstance(model, NemotronHForCausalLM)
    kinds = {(parameter.device.type, parameter.dtype) for parameter in model.parameters()}
    rope = getattr(config, "rope_parameters", None) or {}
    reasons = {
        "its weights are not float32 on a CPU": kinds != {("cpu", torch.float32)},
        "it is being trained": model.training,
        "some modules are patched or have hooks": any(
            "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks for module in modules
        ),
        "some of its attention has a window": bool(
            {*(getattr(config, "layer_types", None) or ())} - {"full_attention", "linear_attention", "mlp", "moe"}
            or not joins(model)  # transformers takes a window from any config that has one
        ),
        "its rotary embedding depends on the length": rope.get("rope_type", "default") not in STATIC_ROTATIONS,
        "some of its layers are not plain matrices": any(
            (isinstance(module, nn.Linear) and type(module) is not nn.Linear)
            or type(module).__module__.partition(".")[0] not in LIBRARIES  # an adapter, which shows the matrix below it
            for module in modules
        ),
        "its experts' widths are not multiples of 4": any(  # `F.grouped_mm` of torch 2.13 takes no others
            size % 4
            for module in modules
            if isinstance(module, NemotronHMoE)
            for size in module.experts.up_proj.shape[1:]
        ),
        "the installed transformers is too old": hybrid and is_older(),
        "the installed torch is too old": hybrid and not hasattr(F, "grouped_mm"),
    }
    return next((reason for reason, is_so in reasons.items() if is_so), None)


class Product:
    """Several linear layers of the same input as one product: (rows, a) -> (rows, sum of their b).

    Args:
        copied: hold the matrix twice: transposed for few rows, and in the layout of oneDNN for more.
        scale: (a) factors of the input, such as a norm's weight.
        shift: (sum of b) what is added besides the layers' own biases.
        order: (sum of b) the order of the results.
    """

    def __init__(
        self, *linears: Any, copied: bool, scale: Tensor | None = None, shift: Tensor | None = None,
        order: Tensor | None = None,
    ) -> None:  # fmt: skip
        self._linears, self._scale, self._order = linears, scale, order
        self.widths = [len(linear.weight) for linear in linears]
        self._bias = _joined_biases(linears, shift)
        self._matrix = self._packed = None
        if copied:
            whole = torch.cat([linear.weight.detach() for linear in linears])
            whole = whole if scale is None else whole * scale
            if order is not None:
                whole, self._bias = whole[order], self._bias if self._bias is None else self._bias[order]
            self._matrix = whole.t().contiguous()
            self._packed = ONEDNN._reorder_linear_weight(whole, MANY) if ONEDNN_IS_HERE else None

    def __call__(self, x: Tensor) -> Tensor:
        if self._matrix is None:
            return self._uncopied(x)
        if self._packed is not None and len(x) >= MANY:
            return ONEDNN._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return torch.mm(x, self._matrix) if self._bias is None else torch.addmm(self._bias, x, self._matrix)

    def added(self, to: Tensor, x: Tensor) -> Tensor:
        """The sum with `to` (rows, b)."""
        if self._matrix is None:
            return to + self._uncopied(x)
        if self._packed is not None and len(x) >= MANY:
            return ONEDNN._linear_pointwise.binary(x, to, self._packed, self._bias, "add")
        return torch.addmm(to if self._bias is None else to + self._bias, x, self._matrix)

    def _uncopied(self, x: Tensor) -> Tensor:
        x = x if self._scale is None else x * self._scale
        whole = torch.cat([F.linear(x, linear.weight) for linear in self._linears], -1)
        whole = whole if self._bias is None else whole.add_(self._bias)
        return whole if self._order is None else whole[:, self._order]


def _joined_biases(linears: Sequence[Any], shift: Tensor | None) -> Tensor | None:
    own = [getattr(linear, "bias", None) for linear in linears]
    if shift is None and all(bias is None for bias in own):
        return None
    pairs = zip(linears, own, strict=True)
    whole = torch.cat([n.weight.new_zeros(len(n.weight)) if bias is None else bias.detach() for n, bias in pairs])
    return whole if shift is None else whole + shift


class Norm:
    """Root-mean-square norm of (..., d) in three operations.

    Attributes:
        scale: (d) factors that are still missing, for the product that follows.
    """

    def __init__(self, module: Any, size: int | None = None) -> None:
        size = size or len(module.weight)
        self._floor = torch.tensor(module.variance_epsilon * size).sqrt()
        self.scale = module.weight.detach() * size**0.5

    def __call__(self, x: Tensor) -> Tensor:
        """Normalised x, without `scale`."""
        return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(self._floor)


class Columns:
    """Where sequences stand in the memory of keys: the newest token of each is in the column before `end`.

    Attributes:
        steps: number of tokens that each sequence could have been given so far.
        lengths: (sequences,) tokens of each.
        bias: (sequences, capacity): 0 for the columns of a sequence, -inf for all others.
    """

    def __init__(self) -> None:
        self.end = self.steps = 0
        self.lengths = torch.zeros(0, dtype=torch.long)
        self._make_bias(0)

    def _make_bias(self, capacity: int) -> None:
        column = torch.arange(capacity)
        inside = (column < self.end) & (column >= self.end - self.lengths[:, None])
        self.bias = torch.zeros(len(self.lengths), capacity).masked_fill(~inside, -torch.inf)
        self._hidden: Tensor | None = None

    def hidden(self, groups: int) -> Tensor:
        """The bias for each group of heads, (sequences * groups, 1, capacity): the same tensor for all layers."""
        if self._hidden is None or len(self._hidden) != groups * len(self.bias):
            self._hidden = self.bias.repeat_interleave(groups, 0)[:, None]
        return self._hidden

    def open(self) -> None:
        """Let the column at `end` be seen."""
        self.bias[:, self.end] = 0
        if self._hidden is not None:
            self._hidden[:, :, self.end] = 0

    @property
    def capacity(self) -> int:
        """Number of columns."""
        return self.bias.shape[1]

    def place(self, lengths: Tensor, room: int) -> None:
        """Sequences of these lengths, with at least `room` columns after the newest tokens."""
        self.lengths = lengths
        self.end = int(lengths.max())
        room = max(room, self.end // 8)
        self._make_bias(-(-(self.end + room) // BLOCK) * BLOCK)

    def advance(self) -> None:
        """The column at `end` has been written."""
        self.end += 1
        self.steps += 1
        self.lengths += 1

    def placed(self, parts: Sequence["KeysAndValues"]) -> Tensor:
        """Keys and values of all sequences (2, sequences, groups, capacity, d), each up to its column before `end`."""
        like = parts[0].keys
        memory = like.new_empty(2, len(self.lengths), like.shape[1], self.capacity, like.shape[3])
        memory[:, :, :, self.end :] = 0  # hidden, and finite
        first = 0
        for keys, values, end in parts:
            rows, many = slice(first, first + len(keys)), min(end, self.end)
            memory[:, rows, :, : self.end - many] = 0
            for target, source in zip(memory, (keys, values), strict=True):
                target[rows, :, self.end - many : self.end] = source[:, :, end - many : end]
            first = rows.stop
        return memory


class KeysAndValues(NamedTuple):
    """Those of some sequences (sequences, groups, columns, d); the newest are in the column before `end`."""

    keys: Tensor
    values: Tensor
    end: int


class Rotations:
    """Rotary embedding from a table of all positions, for heads of which some are turned and the others are not.

    A channel of the first half of a head and its partner of the second half are a complex number.
    """

    def __init__(self, module: Any, attention: "Attention") -> None:
        self._module, self._turned, self._straight = module, attention.turned, attention.groups
        self._table = torch.zeros(0, 0, dtype=torch.complex64)

    def at(self, positions: Tensor, capacity: int) -> Tensor:
        """Factors of all heads at positions (sequences,): (sequences, heads, d / 2)."""
        if len(self._table) < capacity:
            cos, sin = (one[0].chunk(2, -1)[0] for one in self._module(torch.zeros(1), torch.arange(capacity)[None]))
            self._table = torch.complex(cos, sin)
        found = self._table[positions][:, None].repeat(1, self._turned + self._straight, 1)
        found[:, self._turned :] = 1
        return found


def interleaved(size: int) -> Tensor:
    """The channels of a head, each followed by its partner."""
    return torch.arange(size).view(2, -1).t().flatten()


def turned(heads: Tensor, factors: Tensor) -> Tensor:
    """Heads (sequences, heads, d) of interleaved channels, turned by their positions."""
    return torch.view_as_real(torch.view_as_complex(heads.unflatten(-1, (-1, 2))) * factors).flatten(-2)


class Attention:
    """Attention of a Llama or a NemotronH, with its keys and values."""

    def __init__(self, module: Any, number: int, copied: bool, scale: Tensor, *, rotated: bool = False) -> None:
        linears = (module.q_proj, module.k_proj, module.v_proj)
        size = module.head_dim
        heads, self.groups, _ = (len(linear.weight) // size for linear in linears)
        self.turned = heads + self.groups
        self._channels = interleaved(size) if rotated else torch.arange(size)
        order = torch.cat([self._channels + size * head for head in range(self.turned)])
        order = torch.cat([order, torch.arange(size * self.turned, size * (self.turned + self.groups))])
        self._into = Product(*linears, copied=copied, scale=scale, order=order if rotated else None)
        self._out = Product(module.o_proj, copied=copied)
        self._norm = self._norm_scale = None
        if hasattr(module, "q_norm"):
            norms = [Norm(module.q_norm)] * heads + [Norm(module.k_norm)] * self.groups
            self._norm, self._norm_scale = norms[0], torch.stack([norm.scale[self._channels] for norm in norms])
        self._scaling, self._size, self._number = module.scaling, size, number
        self._hold(torch.zeros(2, 0, self.groups, 0, size))

    def _hold(self, memory: Tensor) -> None:
        """Keys and values (2, sequences, groups, capacity, d)."""
        self._memory = memory
        self._keys, self._values = memory[0].flatten(0, 1).mT, memory[1].flatten(0, 1)

    def step(self, residual: Tensor, x: Tensor, columns: Columns, factors: Tensor | None) -> Tensor:
        """The sum of `residual` and the layer's output for the next tokens x, both (sequences, width)."""
        heads = self._into(x).view(len(x), -1, self._size)
        if self._norm is not None:
            both = heads[:, : self.turned]
            both.copy_(self._norm(both).mul_(self._norm_scale))
        heads = heads if factors is None else turned(heads, factors)
        queries, new = heads[:, : -2 * self.groups], heads[:, -2 * self.groups :]
        self._memory[:, :, :, columns.end] = new.unflatten(1, (2, -1)).transpose(0, 1)
        # over all columns, because whole tensors are read faster than parts of them
        tiles = queries.reshape(len(self._values), -1, self._size)
        scores = torch.bmm(tiles, self._keys)
        # an operation more than `baddbmm`, which copies the bias before it adds
        torch.add(columns.hidden(self.groups), scores, alpha=self._scaling, out=scores)
        return self._out.added(residual, torch.bmm(scores.softmax(-1), self._values).view(len(x), -1))

    def add(self, prefilled: Sequence[Prefilled], before: tuple[int, int], columns: Columns) -> None:
        """Put the keys of prefilled prompts behind those of `before`: (sequences, end)."""
        parts = [KeysAndValues(*self._memory[:, : before[0]], before[1])] if before[0] else []
        for cache, length in prefilled:
            layer: Any = cache.layers[self._number]
            parts.append(KeysAndValues(layer.keys[..., self._channels], layer.values, length))
        self._hold(columns.placed(parts))

    def move(self, rows: Tensor | None, end: int, columns: Columns) -> None:
        """Keep these sequences, or all, and place them anew."""
        memory = self._memory if rows is None else self._memory[:, rows]
        self._hold(columns.placed([KeysAndValues(*memory, end)]))


class Mamba:
    """A `NemotronHMamba2Mixer`, with its state, and a ring of the last inputs of its convolution."""

    def __init__(self, mixer: Any, number: int, copied: bool, scale: Tensor) -> None:
        self._number, self._act = number, mixer.act
        inner, self._heads, self._groups = mixer.intermediate_size, mixer.num_heads, mixer.n_groups
        self._splits = [inner, mixer.conv_dim, self._heads]
        wide = self._groups * mixer.ssm_state_size
        self._inner = [inner, wide, wide]
        shift = torch.cat([torch.zeros(inner + mixer.conv_dim), mixer.dt_bias.detach()])
        self._into = Product(mixer.in_proj, copied=copied, scale=scale, shift=shift)
        self._norm = Norm(mixer.norm, mixer.norm.group_size)
        self._out = Product(mixer.out_proj, copied=copied, scale=self._norm.scale)
        taps = mixer.conv1d.weight.detach().squeeze(1).t()  # (w, channels), that of the newest input last
        self._taps = [taps.roll(newest + 1, 0) for newest in range(len(taps))]
        self._bias = None if mixer.conv1d.bias is None else mixer.conv1d.bias.detach()
        self._decay, self._skip = -mixer.A_log.detach().exp(), mixer.D.detach()[:, None]
        self._ring = self._state = torch.zeros(0)

    def step(self, residual: Tensor, x: Tensor, columns: Columns, factors: Any) -> Tensor:
        """The sum of `residual` and the layer's output for the next tokens x, both (sequences, width)."""
        gate, mixed, dt = self._into(x).split(self._splits, -1)
        newest = columns.steps % len(self._taps)
        self._ring[:, newest] = mixed
        mixed = (self._ring * self._taps[newest]).sum(1)
        mixed = self._act(mixed if self._bias is None else mixed.add_(self._bias))
        inner, B, C = (part.unflatten(-1, (self._groups, -1)) for part in mixed.split(self._inner, -1))
        dt = F.softplus(dt)
        self._state.mul_((dt * self._decay).exp_()[..., None, None])
        by_group = self._state.view(*B.shape[:2], -1, B.shape[-1])  # (rows, groups, channels of a group, state size)
        inner = inner.view(*dt.shape, -1)
        by_group.addcmul_((inner * dt[..., None]).view(*B.shape[:2], -1, 1), B[:, :, None])
        y = torch.bmm(C.reshape(-1, 1, C.shape[-1]), by_group.flatten(0, 1).mT).view(inner.shape)
        y = self._act(gate).mul_(y.addcmul_(inner, self._skip).view(gate.shape))
        y = self._norm(y.unflatten(-1, (self._groups, -1))).flatten(1)
        return self._out.added(residual, y)

    def add(self, prefilled: Sequence[Prefilled], before: tuple[int, int], columns: Columns) -> None:
        """Put the states of prefilled prompts behind those of `before`: (sequences, end)."""
        parts = [(self._ring, self._state)] if before[0] else []
        for cache, _ in prefilled:
            layer: Any = cache.layers[self._number]
            ring = layer.conv_states[0].mT.roll(columns.steps, 1)  # so that the next step replaces the oldest input
            parts.append((ring, layer.recurrent_states[0]))
        self._ring, self._state = (torch.cat(states) for states in zip(*parts, strict=True))

    def move(self, rows: Tensor | None, end: int, columns: Columns) -> None:
        """Keep these sequences, or all."""
        if rows is not None:
            self._ring, self._state = self._ring[rows], self._state[rows]


class Gated:
    """The MLP of a Llama: down(act(gate(x)) * up(x))."""

    def __init__(self, module: Any, copied: bool, scale: Tensor) -> None:
        self._into = Product(module.gate_proj, module.up_proj, copied=copied, scale=scale)
        self._out, self._act = Product(module.down_proj, copied=copied), module.act_fn

    def step(self, residual: Tensor, x: Tensor, columns: Columns, factors: Any) -> Tensor:
        """The sum of `residual` and the layer's output for x, both (sequences, width)."""
        gate, up = self._into(x).chunk(2, -1)
        return self._out.added(residual, self._act(gate).mul_(up))


class Squared:
    """The MLP of a NemotronH: down(act(up(x)))."""

    def __init__(self, module: Any, copied: bool, scale: Tensor) -> None:
        self._up = Product(module.up_proj, copied=copied, scale=scale)
        self._down, self._act = Product(module.down_proj, copied=copied), module.act_fn

    def step(self, residual: Tensor, x: Tensor, columns: Columns, factors: Any) -> Tensor:
        """The sum of `residual` and the layer's output for x, both (sequences, width)."""
        return self._down.added(residual, self._act(self._up(x)))


class ExpertsProduct:
    """A product for each expert: (rows, a) in the order of their experts -> (rows, b).

    Args:
        weight: (experts, b, a)
        scale: (a) factors of the input.
    """

    def __init__(self, weight: Tensor, copied: bool, scale: Tensor | None = None) -> None:
        self._matrices, self._scale = weight.detach().mT, scale
        if copied:
            self._matrices = (self._matrices if scale is None else self._matrices * scale[:, None]).contiguous()
            self._scale = None

    def __call__(self, x: Tensor, ends: Tensor) -> Tensor:
        """`ends` (experts,): number of rows of each expert and of those before it, int32."""
        return F.grouped_mm(x if self._scale is None else x * self._scale, self._matrices, offs=ends)


class Experts:
    """A `NemotronHMoE`: each token's experts in the latent space, if there is one, and the shared one."""

    def __init__(self, mixer: Any, copied: bool, scale: Tensor) -> None:
        shared, experts = mixer.shared_experts, mixer.experts
        latent = isinstance(mixer.fc1_latent_proj, nn.Linear)
        into = [mixer.gate, shared.up_proj, *([mixer.fc1_latent_proj] if latent else [])]
        self._into = Product(*into, copied=copied, scale=scale)
        self._up = ExpertsProduct(experts.up_proj, copied, None if latent else scale)
        self._down = ExpertsProduct(experts.down_proj, copied)
        self._out = Product(mixer.fc2_latent_proj, copied=copied) if latent else None
        self._shared = Product(shared.down_proj, copied=copied)
        self._gate, self._act, self._shared_act = mixer.gate, experts.act_fn, shared.act_fn
        self._every = torch.arange(len(experts.up_proj))

    def step(self, residual: Tensor, x: Tensor, columns: Columns, factors: Any) -> Tensor:
        """The sum of `residual` and the layer's output for x, both (sequences, width)."""
        scores, shared, *latent = self._into(x).split(self._into.widths, -1)
        index, weights = chosen(self._gate, scores.sigmoid())
        residual = self._shared.added(residual, self._shared_act(shared))
        if self._out is None:
            return self._mixed(residual, x, index, weights)
        return self._out.added(residual, self._mixed(torch.zeros_like(latent[0]), latent[0], index, weights))

    def _mixed(self, to: Tensor, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """The sum of `to` and of each row's experts, weighed; rows are sorted by expert, and wait for nothing."""
        experts, order = index.flatten().sort()
        ends = torch.searchsorted(experts, self._every, right=True, out_int32=True)
        row = order // index.shape[1]
        found = self._down(self._act(self._up(x[row], ends)), ends)
        return to.index_add_(0, row, found.mul_(weights.flatten()[order, None]))


Part = tuple[Norm, Attention | Mamba | Gated | Squared | Experts]
"""A norm, and a layer with its residual."""


class Direct:
    """Sequences of a model for which `why_not` has no reason. The model's weights must not change."""

    def __init__(self, model: Any) -> None:
        body = model.base_model
        copied = sum(parameter.numel() for parameter in model.parameters()) <= LARGEST_COPY
        hybrid = isinstance(model, NemotronHForCausalLM)
        self._embeddings = model.get_input_embeddings()
        self._parts = _of_hybrid(body, copied) if hybrid else _of_llama(body, copied)
        self._norm = Norm(body.norm_f if hybrid else body.norm)
        self._head = Product(model.get_output_embeddings(), copied=copied, scale=self._norm.scale)
        first: Any = self._parts[0][1]
        self._rotations = None if hybrid else Rotations(body.rotary_emb, first)
        self.clear()

    def clear(self) -> None:
        """Forget all sequences."""
        self._columns = Columns()

    def add(self, *prefilled: Prefilled) -> None:
        """Add prefilled prompts."""
        columns = self._columns
        before = (len(columns.lengths), columns.end)
        lengths = [torch.full((cache_rows(cache),), length) for cache, length in prefilled]
        columns.place(torch.cat([columns.lengths, *lengths]), BLOCK)
        for _, layer in self._parts:
            if isinstance(layer, Attention | Mamba):
                layer.add(prefilled, before, columns)

    def step(self, ids: Tensor) -> Tensor:
        """Logits (sequences, vocabulary) after the next token of each sequence."""
        columns = self._columns
        if columns.end == columns.capacity:
            self._move(None)
        columns.open()
        factors = None if self._rotations is None else self._rotations.at(columns.lengths, columns.capacity)
        x = self._embeddings(ids)
        for norm, layer in self._parts:
            x = layer.step(x, norm(x), columns, factors)
        columns.advance()
        return self._head(self._norm(x))

    def keep(self, rows: list[int]) -> None:
        """Continue only these sequences."""
        self._move(torch.tensor(rows))

    def _move(self, rows: Tensor | None) -> None:
        columns = self._columns
        end = columns.end
        columns.place(columns.lengths if rows is None else columns.lengths[rows], BLOCK)
        for _, layer in self._parts:
            if isinstance(layer, Attention | Mamba):
                layer.move(rows, end, columns)


def sequences_of(model: Any) -> Direct | General:
    """What decodes this model; its weights must not change any more."""
    return General(model) if why_not(model) else Direct(model)


def _of_llama(body: Any, copied: bool) -> list[Part]:
    found: list[Part] = []
    for number, layer in enumerate(body.layers):
        norms = Norm(layer.input_layernorm), Norm(layer.post_attention_layernorm)
        found.append((norms[0], Attention(layer.self_attn, number, copied, norms[0].scale, rotated=True)))
        found.append((norms[1], Gated(layer.mlp, copied, norms[1].scale)))
    return found


def _of_hybrid(body: Any, copied: bool) -> list[Part]:
    made: dict[str, Callable[[Any, int, Tensor], Any]] = {
        "full_attention": lambda mixer, number, scale: Attention(mixer, number, copied, scale),
        "linear_attention": lambda mixer, number, scale: Mamba(mixer, number, copied, scale),
        "moe": lambda mixer, number, scale: Experts(mixer, copied, scale),
        "mlp": lambda mixer, number, scale: Squared(mixer, copied, scale),
    }
    norms = [Norm(layer.norm) for layer in body.layers]
    return [
        (norm, made[layer.block_type](layer.mixer, number, norm.scale))
        for number, (norm, layer) in enumerate(zip(norms, body.layers, strict=True))
    ]
