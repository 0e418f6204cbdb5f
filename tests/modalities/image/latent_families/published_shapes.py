"""Names and shapes of published checkpoints, a pattern a layer, as their makers' modules and configurations give them.

`{0..n}` in a name stands for layers 0 to n - 1.

NextStep-1-Large and NextStep-1.1: models/nextstep_model.py and models/heads.py of stepfun-ai/NextStep-1.1 (the same
modules are in github.com/stepfun-ai/NextStep-1 and vllm-project/vllm-omni), with config.json of the releases. MAR:
models/mar.py, models/diffloss.py and the README of github.com/LTH14/mar; attention blocks are timm's.
"""

from __future__ import annotations

import re

Shapes = dict[str, tuple[int, ...]]


def unfold(patterns: Shapes) -> Shapes:
    """Return every layer of every pattern."""
    shapes: Shapes = {}
    for name, shape in patterns.items():
        found = re.search(r"\{0\.\.(\d+)\}", name)
        if found is None:
            shapes[name] = shape
            continue
        for layer in range(int(found[1])):
            shapes[name.replace(found[0], str(layer))] = shape
    return shapes


def adaln(prefix: str, inputs: int, outputs: int, condition: int, width: int, depth: int) -> Shapes:
    """Return the shapes of the head of both families."""
    block = f"{prefix}.res_blocks.{{0..{depth}}}"
    linear: dict[str, tuple[int, int]] = {
        "time_embed.mlp.0": (width, 256), "time_embed.mlp.2": (width, width), "cond_embed": (width, condition),
        "input_proj": (width, inputs), "final_layer.linear": (outputs, width),
        "final_layer.adaLN_modulation.1": (2 * width, width),
    }  # fmt: skip
    shapes: Shapes = {}
    for name, shape in linear.items():
        shapes |= {f"{prefix}.{name}.weight": shape, f"{prefix}.{name}.bias": shape[:1]}
    for name, rows in {"mlp.0": width, "mlp.2": width, "adaLN_modulation.1": 3 * width}.items():
        shapes |= {f"{block}.{name}.weight": (rows, width), f"{block}.{name}.bias": (rows,)}
    return shapes | {f"{block}.in_ln.weight": (width,), f"{block}.in_ln.bias": (width,)}


NEXTSTEP_CONFIG = {  # config.json of NextStep-1.1, without what nothing reads
    "attention_bias": True, "base_image_grid_size": 64, "boi": 151667, "bos_token_id": 151643, "eoi": 151668,
    "genloss_depth": 12, "genloss_width": 1536, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
    "image_placeholder_id": 151669, "image_size": 64, "intermediate_size": 13824, "max_position_embeddings": 131072,
    "mlp_bias": False, "model_type": "nextstep", "num_attention_heads": 40, "num_channels": 16,
    "num_hidden_layers": 48, "num_key_value_heads": 8, "o_attention_bias": False, "patch_size": 2,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "tie_word_embeddings": False, "vocab_size": 152064,
}  # fmt: skip
RENAMED = {  # by the config.json of NextStep-1-Large
    "genloss_depth": "fm_head_layers", "genloss_width": "fm_head_dim", "num_channels": "latent_channels",
    "patch_size": "latent_patch_size", "image_size": "latent_size",
}  # fmt: skip
NEXTSTEP_1_CONFIG = {RENAMED.get(name, name): value for name, value in NEXTSTEP_CONFIG.items()}
NEXTSTEP = unfold(
    {
        "embed_tokens.weight": (152064, 5120), "norm.weight": (5120,), "lm_head.weight": (152064, 5120),
        "layers.{0..48}.input_layernorm.weight": (5120,), "layers.{0..48}.post_attention_layernorm.weight": (5120,),
        "layers.{0..48}.self_attn.q_proj.weight": (5120, 5120), "layers.{0..48}.self_attn.q_proj.bias": (5120,),
        "layers.{0..48}.self_attn.k_proj.weight": (1024, 5120), "layers.{0..48}.self_attn.k_proj.bias": (1024,),
        "layers.{0..48}.self_attn.v_proj.weight": (1024, 5120), "layers.{0..48}.self_attn.v_proj.bias": (1024,),
        "layers.{0..48}.self_attn.o_proj.weight": (5120, 5120),
        "layers.{0..48}.mlp.gate_proj.weight": (13824, 5120), "layers.{0..48}.mlp.up_proj.weight": (13824, 5120),
        "layers.{0..48}.mlp.down_proj.weight": (5120, 13824),
        "image_in_projector.weight": (5120, 64), "image_in_projector.bias": (5120,),
        "image_out_projector.weight": (5120, 5120), "image_out_projector.bias": (5120,),
    }
    | adaln("image_head.net", 64, 64, 5120, 1536, 12)
)  # fmt: skip


def mar(width: int, depth: int, head_width: int, head_depth: int) -> Shapes:
    """Return the shapes of a MAR of 256 tokens of 16 values, 1000 classes and a buffer of 64 positions."""
    shapes: Shapes = {
        "class_emb.weight": (1000, width), "fake_latent": (1, width), "mask_token": (1, 1, width),
        "encoder_pos_embed_learned": (1, 320, width), "decoder_pos_embed_learned": (1, 320, width),
        "diffusion_pos_embed_learned": (1, 256, width), "z_proj.weight": (width, 16), "z_proj.bias": (width,),
        "decoder_embed.weight": (width, width), "decoder_embed.bias": (width,),
    }  # fmt: skip
    for norm in ("z_proj_ln", "encoder_norm", "decoder_norm"):
        shapes |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
    for half in ("encoder", "decoder"):
        block = f"{half}_blocks.{{0..{depth}}}"
        for norm in ("norm1", "norm2"):
            shapes |= {f"{block}.{norm}.weight": (width,), f"{block}.{norm}.bias": (width,)}
        linear = {"attn.qkv": (3, 1), "attn.proj": (1, 1), "mlp.fc1": (4, 1), "mlp.fc2": (1, 4)}
        for name, (rows, columns) in linear.items():
            shapes |= {
                f"{block}.{name}.weight": (rows * width, columns * width),
                f"{block}.{name}.bias": (rows * width,),
            }
    return unfold(shapes | adaln("diffloss.net", 16, 32, width, head_width, head_depth))


MAR = {
    "MAR-B": mar(768, 12, 1024, 6),
    "MAR-L": mar(1024, 16, 1280, 8),
    "MAR-H": mar(1280, 20, 1536, 12),
}
MAR_GIGABYTES = {
    "MAR-B": 0.832,
    "MAR-L": 1.91,
    "MAR-H": 3.77,
}  # of the files in fp32 at huggingface.co/jadechoghari/mar
