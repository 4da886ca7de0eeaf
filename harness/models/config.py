"""What a dense decoder is: the numbers that fix its computation, and the tensors that it must have."""

from dataclasses import dataclass

FAMILIES = ("llama", "qwen3")


@dataclass(frozen=True)
class RopeScaling:
    """Llama-3's stretching of the slow rotary frequencies; the only kind that the dense model computes.

    Wavelengths are in tokens: those above `original_context / low_freq_factor` are stretched by `factor`, those below
    `original_context / high_freq_factor` are left alone, those between are blended.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class ModelConfig:
    family: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    context_length: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tied_head: bool
    qk_norm: bool
    end_tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raises ValueError for numbers that no dense decoder can have; the loader adds the file's name."""
        sizes = ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "intermediate_size",
                 "vocab_size", "context_length", "rms_norm_eps", "rope_theta")
        for name in sizes:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name} is {value!r}, not a positive number")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} heads cannot share {self.num_kv_heads} key/value heads")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd, so it has no rotary pairs")
        for token in self.end_tokens:
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"end token {token} is outside the vocabulary of {self.vocab_size}")


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model by its Hugging Face name, with its shape; matrices are [out, in]."""
    hidden, mlp = config.hidden_size, config.intermediate_size
    q_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (q_width, hidden),
        "self_attn.k_proj": (kv_width, hidden),
        "self_attn.v_proj": (kv_width, hidden),
        "self_attn.o_proj": (hidden, q_width),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (mlp, hidden),
        "mlp.up_proj": (mlp, hidden),
        "mlp.down_proj": (hidden, mlp),
    }
    if config.qk_norm:
        layer |= {"self_attn.q_norm": (config.head_dim,), "self_attn.k_norm": (config.head_dim,)}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for index in range(config.num_layers):
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied_head:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes
