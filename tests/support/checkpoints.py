"""Small random checkpoints in the published layout: same keys and names, tiny shapes.

The three sizes keep what tells the real ones apart: 3B has hidden / heads below head_dim, 14B above
it and a larger rope_theta, 8B equal.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB, MASK, EOS, BOS = 384, 100, 11, 1
SPECIALS = 128
RANK, ALPHA = 4, 16
_SIZES = {"3b": (48, 96, 1e6), "8b": (64, 128, 1e6), "14b": (80, 144, 1e9)}
HEADS, KV_HEADS, HEAD_DIM, LAYERS = 4, 2, 16, 3
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def published_config(size: str = "8b", **changes: Any) -> dict[str, Any]:
    """config.json of a size with the published keys; a change to None removes the key."""
    hidden, wide, theta = _SIZES[size]
    config = {
        "architectures": ["NemotronLabsDiffusionModel"],
        "model_type": "nemotron_labs_diffusion",
        "attn_implementation": "sdpa",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-5,
        "block_size": 32,
        "dlm_paradigm": "bidirectional",
        "ar_loss_weight": 1.0,
        "dlm_loss_weight": None,
        "mask_token_id": MASK,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_cache": False,
        "torch_dtype": "bfloat16",
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": 16.0,
            "original_max_position_embeddings": 16384,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    }
    config |= changes
    return {key: value for key, value in config.items() if value is not None}


def published_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random float32 weights under the published names, loud enough that logits are well apart."""
    generator = torch.Generator().manual_seed(seed)

    def noise(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * gain / columns**0.5

    hidden, wide, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    dim = config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    out = {"encoder.embed_tokens.weight": torch.randn(vocab, hidden, generator=generator)}
    for i in range(config["num_hidden_layers"]):
        base = f"encoder.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            out[f"{base}{name}.weight"] = 1 + 0.2 * torch.randn(hidden, generator=generator)
        out |= {
            base + "self_attn.q_proj.weight": noise(q, hidden, 2.0),
            base + "self_attn.k_proj.weight": noise(kv, hidden, 2.0),
            base + "self_attn.v_proj.weight": noise(kv, hidden),
            base + "self_attn.o_proj.weight": noise(hidden, q),
            base + "mlp.gate_proj.weight": noise(wide, hidden),
            base + "mlp.up_proj.weight": noise(wide, hidden),
            base + "mlp.down_proj.weight": noise(hidden, wide),
        }
    out["encoder.norm.weight"] = 1 + 0.2 * torch.randn(hidden, generator=generator)
    if not config.get("tie_word_embeddings"):
        out["diffusion_head.weight"] = noise(vocab, hidden, 4.0)
    return out


def published_adapter(config: dict[str, Any], seed: int = 1) -> dict[str, torch.Tensor]:
    """The draft adapter in PEFT names, float32, strong enough to be seen."""
    generator = torch.Generator().manual_seed(seed)
    q = config["num_attention_heads"] * config["head_dim"]
    out = {}
    for i in range(config["num_hidden_layers"]):
        base = f"base_model.model.encoder.layers.{i}.self_attn.o_proj."
        out[base + "lora_A.weight"] = torch.randn(RANK, q, generator=generator) / q**0.5
        up = torch.randn(config["hidden_size"], RANK, generator=generator)
        out[base + "lora_B.weight"] = up / ALPHA
    return out


def _write_tokenizer(folder: Path) -> None:
    """Bytes behind a page of control tokens, as in the published tokenizer family."""
    names = {BOS: "<s>", EOS: "<|im_end|>", 10: "<|im_start|>"}
    specials = [names.get(i, f"<SPECIAL_{i}>") for i in range(SPECIALS)]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {name: i for i, name in enumerate([*specials, *alphabet])}
    raw = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(name, special=True) for name in specials])
    raw.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": {"content": "<|im_end|>", "special": True}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")


def write_checkpoint(
    folder: Path,
    config: dict[str, Any] | None = None,
    *,
    tensors: dict[str, torch.Tensor] | None = None,
    adapter: dict[str, torch.Tensor] | None = None,
    shards: int = 1,
) -> Path:
    """Write a checkpoint folder; float32 weights, so that a comparison sees no rounding.

    Args:
        adapter: an empty dict leaves the adapter out.
        shards: above 1 the weights are spread over files with an index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = config or published_config()
    tensors = published_tensors(config) if tensors is None else tensors
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    names = sorted(tensors)
    if shards == 1:
        save_file({n: tensors[n].contiguous() for n in names}, folder / "model.safetensors")
    else:
        where = {}
        for part in range(shards):
            file = f"model-{part + 1:05}-of-{shards:05}.safetensors"
            chosen = names[part::shards]
            save_file({n: tensors[n].contiguous() for n in chosen}, folder / file)
            where |= dict.fromkeys(chosen, file)
        index = {"metadata": {}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    adapter = published_adapter(config) if adapter is None else adapter
    if adapter:
        home = folder / "linear_spec_lora"
        home.mkdir()
        save_file(adapter, home / "adapter_model.safetensors")
        settings = {
            "peft_type": "LORA",
            "r": RANK,
            "lora_alpha": ALPHA,
            "target_modules": ["o_proj"],
            "inference_mode": True,
        }
        (home / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    _write_tokenizer(folder)
    return folder
