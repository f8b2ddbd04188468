"""Decoding of known architectures in few and large operations, on memory that is written in place.

The step of a small model in transformers 5.23 is mostly calls: 46 operations in a layer of a Llama, not counting views,
with masks and positions made anew for each token, and keys that are copied to append one. Here it takes 27: queries,
keys and values are one product, as are gate and up; a key is written into its column; rotations come from a table; and
residuals are added by the products. Matrices are held in the layouts that a product with few rows reads fastest.

Supported are float32 models on a CPU without hooks, adapters or patches, of the classes in `DIRECT` with full
attention (`why_not` gives the reason for others). Results differ from transformers' by the rounding of sums.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache
from transformers.models.llama.modeling_llama import LlamaForCausalLM
from transformers.models.mistral.modeling_mistral import MistralForCausalLM
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

from nemotron_engines.decoding.general import General, cache_rows, joins
from nemotron_engines.kernels.mamba_install import is_older
from nemotron_engines.kernels.mamba_ops import causal_conv1d_update, rmsnorm_fn, selective_state_update

DIRECT = (LlamaForCausalLM, MistralForCausalLM, NemotronHForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
STATIC_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding whose angles do not depend on the length of the sequence."""
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
    if type(model) not in DIRECT:
        return f"{type(model).__name__} has no direct step"
    config, modules = model.config, [*model.modules()]
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
            isinstance(module, nn.Linear) and type(module) is not nn.Linear for module in modules
        ),
        "the installed transformers is too old": isinstance(model, NemotronHForCausalLM) and is_older(),
    }
    return next((reason for reason, is_so in reasons.items() if is_so), None)


class Product:
    """Several `nn.Linear` of the same input as one product: (rows, a) -> (rows, sum of their b).

    Args:
        copied: hold the matrix twice: transposed for few rows, and in the layout of oneDNN for more.
    """

    def __init__(self, *linears: nn.Linear, copied: bool) -> None:
        self._linears = linears
        self.widths = [linear.out_features for linear in linears]
        self._matrix = self._packed = self._bias = None
        if copied:
            whole = torch.cat([linear.weight.detach() for linear in linears])
            self._matrix = whole.t().contiguous()
            self._packed = ONEDNN._reorder_linear_weight(whole, MANY) if ONEDNN_IS_HERE else None
            if any(linear.bias is not None for linear in linears):
                zero = whole.new_zeros(())
                biases = [zero.expand(n.out_features) if n.bias is None else n.bias.detach() for n in linears]
                self._bias = torch.cat(biases)

    def __call__(self, x: Tensor) -> Tensor:
        if self._matrix is None:
            parts = [linear(x) for linear in self._linears]
            return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        if self._packed is not None and len(x) >= MANY:
            return ONEDNN._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return torch.mm(x, self._matrix) if self._bias is None else torch.addmm(self._bias, x, self._matrix)

    def added(self, to: Tensor, x: Tensor) -> Tensor:
        """The sum with `to` (rows, b)."""
        if self._matrix is None:
            return to + self(x)
        if self._packed is not None and len(x) >= MANY:
            return ONEDNN._linear_pointwise.binary(x, to, self._packed, self._bias, "add")
        return torch.addmm(to if self._bias is None else to + self._bias, x, self._matrix)


class Norm:
    """Root-mean-square norm of (..., d), in half of the operations that `F.rms_norm` of torch 2.13 takes on a CPU."""

    def __init__(self, module: Any) -> None:
        self._weight, self._epsilon = module.weight.detach(), torch.tensor(module.variance_epsilon)
        self._mean = torch.full_like(self._weight, 1 / len(self._weight))

    def __call__(self, x: Tensor) -> Tensor:
        """Normalised x."""
        power = torch.addmv(self._epsilon, (x * x).flatten(0, -2), self._mean)
        return (x * power.rsqrt_().view(*x.shape[:-1], 1)).mul_(self._weight)


class Columns:
    """Where sequences stand in the memory of keys: the newest token of each is in the column before `end`.

    Attributes:
        lengths: (sequences,) tokens of each.
        bias: (sequences, capacity): 0 for the columns of a sequence, -inf for all others.
    """

    def __init__(self) -> None:
        self.end = 0
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
        self.lengths += 1

    def moved(self, tensor: Tensor, end: int, rows: Tensor | None = None) -> Tensor:
        """Memory (sequences, heads, capacity, d) whose columns up to `end` now end at `self.end`.

        Args:
            rows: the sequences to take; all if it is None.
        """
        taken = tensor if rows is None else tensor[rows]
        many = min(end, self.end)
        new = tensor.new_zeros(len(taken), tensor.shape[1], self.capacity, tensor.shape[3])
        new[:, :, self.end - many : self.end] = taken[:, :, end - many : end]
        return new


class Rotations:
    """Rotary embedding from a table of all positions."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._cos = self._sin = torch.zeros(0, 0)

    def at(self, positions: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
        """Factors of a vector and of its exchanged halves at positions (sequences,): both (sequences, 1, d)."""
        if len(self._cos) < capacity:
            cos, sin = self._module(torch.zeros(1), torch.arange(capacity)[None])
            first, second = sin[0].chunk(2, -1)
            self._cos, self._sin = cos[0], torch.cat([-first, second], -1)
        return self._cos[positions][:, None], self._sin[positions][:, None]


def rotated(x: Tensor, factors: tuple[Tensor, Tensor]) -> Tensor:
    """Vectors (sequences, heads, d) turned by their positions."""
    cos, sin = factors
    exchanged = x.unflatten(-1, (2, -1)).flip(-2).flatten(-2)
    return torch.addcmul(x * cos, exchanged, sin)


class Attention:
    """Attention of a Llama or a NemotronH, with its keys and values."""

    def __init__(self, module: Any, number: int, copied: bool) -> None:
        self._into = Product(module.q_proj, module.k_proj, module.v_proj, copied=copied)
        self._out = Product(module.o_proj, copied=copied)
        self._norms = [Norm(norm) for norm in _head_norms(module)]
        self._scaling, self._size, self._number = module.scaling, module.head_dim, number
        self._heads, self._groups = (width // module.head_dim for width in self._into.widths[:2])
        self._keys = self._values = torch.zeros(0, self._groups, 0, self._size)

    def step(self, residual: Tensor, x: Tensor, columns: Columns, factors: tuple[Tensor, Tensor] | None) -> Tensor:
        """The sum of `residual` and the layer's output for the next tokens x, both (sequences, width)."""
        heads = self._into(x).view(len(x), -1, self._size)
        both, values = heads[:, : self._heads + self._groups], heads[:, self._heads + self._groups :]
        if self._norms:
            parts = both.split([self._heads, self._groups], 1)
            both = torch.cat([norm(part) for part, norm in zip(parts, self._norms, strict=True)], 1)
        both = both if factors is None else rotated(both, factors)
        self._keys[:, :, columns.end] = both[:, self._heads :]
        self._values[:, :, columns.end] = values
        seen = self._attend(both[:, : self._heads], columns.hidden(self._groups))
        return self._out.added(residual, seen)

    def _attend(self, queries: Tensor, hidden: Tensor) -> Tensor:
        """Over all columns, because whole tensors are read faster than parts of them."""
        keys, values = self._keys.flatten(0, 1), self._values.flatten(0, 1)
        tiles = queries.reshape(len(keys), -1, self._size)
        scores = torch.baddbmm(hidden, tiles, keys.mT, alpha=self._scaling)
        return torch.bmm(scores.softmax(-1), values).view(len(queries), -1)

    def add(self, cache: Any, length: int, before: tuple[int, int], columns: Columns) -> None:
        """Put the keys of prefilled prompts of this length behind those of `before`: (sequences, end)."""
        layer = cache.layers[self._number]
        parts = []
        for old, new in ((self._keys, layer.keys), (self._values, layer.values)):
            joined = [columns.moved(old[: before[0]], before[1])] if before[0] else []
            parts.append(torch.cat([*joined, columns.moved(new, length)]))
        self._keys, self._values = parts

    def move(self, rows: Tensor | None, end: int, columns: Columns) -> None:
        """Keep these sequences, or all, and place them anew."""
        self._keys, self._values = (columns.moved(one, end, rows) for one in (self._keys, self._values))


def _head_norms(module: Any) -> list[Any]:
    """Norms of queries and keys, if the architecture has them."""
    return [module.q_norm, module.k_norm] if hasattr(module, "q_norm") else []


class Mamba:
    """A `NemotronHMamba2Mixer`, with its state."""

    def __init__(self, mixer: Any, number: int, copied: bool) -> None:
        self._mixer, self._number = mixer, number
        self._into, self._out = (Product(one, copied=copied) for one in (mixer.in_proj, mixer.out_proj))
        self._splits = [mixer.intermediate_size, mixer.conv_dim, mixer.num_heads]
        wide = mixer.n_groups * mixer.ssm_state_size
        self._inner = [mixer.intermediate_size, wide, wide]
        self._taps = mixer.conv1d.weight.detach().squeeze(1)
        shape = (mixer.num_heads, mixer.head_dim)
        self._decay = (-mixer.A_log.detach().exp())[:, None, None].expand(*shape, mixer.ssm_state_size)
        self._skip, self._step = (one.detach()[:, None].expand(shape) for one in (mixer.D, mixer.dt_bias))
        self._window = self._state = torch.zeros(0)

    def step(self, residual: Tensor, x: Tensor, columns: Columns, factors: Any) -> Tensor:
        """The sum of `residual` and the layer's output for the next tokens x, both (sequences, width)."""
        mixer, rows = self._mixer, len(x)
        gate, mixed, dt = self._into(x).split(self._splits, -1)
        mixed = causal_conv1d_update(mixed, self._window, self._taps, mixer.conv1d.bias, mixer.activation)
        inner, B, C = mixed.split(self._inner, -1)
        y = selective_state_update(
            self._state, inner.view(rows, mixer.num_heads, -1), dt[..., None].expand(-1, -1, mixer.head_dim),
            self._decay, B.view(rows, mixer.n_groups, -1), C.view(rows, mixer.n_groups, -1), self._skip,
            dt_bias=self._step, dt_softplus=True,
        )  # fmt: skip
        norm = mixer.norm
        y = rmsnorm_fn(
            y.flatten(1), norm.weight, None, gate, norm.variance_epsilon, norm.group_size, norm_before_gate=False
        )
        return self._out.added(residual, y)

    def add(self, cache: Any, length: int, before: tuple[int, int], columns: Columns) -> None:
        """Put the states of prefilled prompts behind those of `before`: (sequences, end)."""
        layer = cache.layers[self._number]
        old = [self._window, self._state] if before[0] else []
        new = [layer.conv_states[0], layer.recurrent_states[0]]
        self._window, self._state = (torch.cat(pair) for pair in zip(*([old] if old else []), new, strict=True))

    def move(self, rows: Tensor | None, end: int, columns: Columns) -> None:
        """Keep these sequences, or all."""
        if rows is not None:
            self._window, self._state = self._window[rows], self._state[rows]


class Gated:
    """The MLP of a Llama: down(act(gate(x)) * up(x))."""

    def __init__(self, module: Any, copied: bool) -> None:
        self._into = Product(module.gate_proj, module.up_proj, copied=copied)
        self._out, self._act = Product(module.down_proj, copied=copied), module.act_fn

    def step(self, residual: Tensor, x: Tensor, columns: Columns, factors: Any) -> Tensor:
        """The sum of `residual` and the layer's output for x, both (sequences, width)."""
        gate, up = self._into(x).chunk(2, -1)
        return self._out.added(residual, self._act(gate).mul_(up))


class Squared:
    """The MLP of a NemotronH: down(act(up(x)))."""

    def __init__(self, module: Any, copied: bool) -> None:
        self._up, self._down = (Product(one, copied=copied) for one in (module.up_proj, module.down_proj))
        self._act = module.act_fn

    def step(self, residual: Tensor, x: Tensor, columns: Columns, factors: Any) -> Tensor:
        """The sum of `residual` and the layer's output for x, both (sequences, width)."""
        return self._down.added(residual, self._act(self._up(x)))


class Experts:
    """A `NemotronHMoE`: each token's experts in the latent space, if there is one, and the shared one."""

    def __init__(self, mixer: Any, copied: bool) -> None:
        self._gate, experts = mixer.gate, mixer.experts
        self._shared = Squared(mixer.shared_experts, copied)
        latent = [one for one in (mixer.fc1_latent_proj, mixer.fc2_latent_proj) if isinstance(one, nn.Linear)]
        self._latent = [Product(one, copied=copied) for one in latent]
        self._up, self._down = (one.detach().mT for one in (experts.up_proj, experts.down_proj))
        if copied:
            self._up, self._down = self._up.contiguous(), self._down.contiguous()
        self._act = experts.act_fn

    def step(self, residual: Tensor, x: Tensor, columns: Columns, factors: Any) -> Tensor:
        """The sum of `residual` and the layer's output for x, both (sequences, width)."""
        _, weights, index = self._gate(x)
        inner = self._latent[0](x) if self._latent else x
        mixed = self._mixed(inner, index.tolist(), weights)
        shared = self._shared.step(residual, x, columns, factors)
        return self._latent[1].added(shared, mixed) if self._latent else shared.add_(mixed)

    def _mixed(self, x: Tensor, index: list[list[int]], weights: Tensor) -> Tensor:
        """The weighed sum of each row's experts; only those that some row has chosen are computed."""
        rows: dict[int, list[tuple[int, int]]] = {}
        for row, chosen in enumerate(index):
            for place, expert in enumerate(chosen):
                rows.setdefault(expert, []).append((row, place))
        mixed = torch.zeros_like(x)
        for expert in sorted(rows):
            taken, places = torch.tensor(rows[expert]).unbind(1)
            inner = self._act(torch.mm(x[taken], self._up[expert]))
            mixed.index_add_(0, taken, torch.mm(inner, self._down[expert]).mul_(weights[taken, places, None]))
        return mixed


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
        self._head = Product(model.get_output_embeddings(), copied=copied)
        self._rotations = None if hybrid else Rotations(body.rotary_emb)
        self.clear()

    def clear(self) -> None:
        """Forget all sequences."""
        self._columns = Columns()

    def add(self, cache: DynamicCache, length: int) -> None:
        """Add prefilled prompts of this length."""
        columns = self._columns
        before = (len(columns.lengths), columns.end)
        columns.place(torch.cat([columns.lengths, torch.full((cache_rows(cache),), length)]), BLOCK)
        for _, layer in self._parts:
            if isinstance(layer, Attention | Mamba):
                layer.add(cache, length, before, columns)

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
        found.append((Norm(layer.input_layernorm), Attention(layer.self_attn, number, copied)))
        found.append((Norm(layer.post_attention_layernorm), Gated(layer.mlp, copied)))
    return found


def _of_hybrid(body: Any, copied: bool) -> list[Part]:
    made: dict[str, Callable[[Any, int], Any]] = {
        "full_attention": lambda mixer, number: Attention(mixer, number, copied),
        "linear_attention": lambda mixer, number: Mamba(mixer, number, copied),
        "moe": lambda mixer, number: Experts(mixer, copied),
        "mlp": lambda mixer, number: Squared(mixer, copied),
    }
    return [(Norm(layer.norm), made[layer.block_type](layer.mixer, number)) for number, layer in enumerate(body.layers)]
