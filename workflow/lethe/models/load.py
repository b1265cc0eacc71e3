"""Causal language models and tokenizers: from the hub or a folder into memory, and back as safetensors."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from lethe.data.text import Batch
from lethe.errors import LetheError

transformers_logging.disable_progress_bar()  # a bar a shard drowns the stages' own lines

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "auto": "auto"}


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_model(
    name: str | Path, *, revision: str | None = None, dtype: str = "float32", trust_remote_code: bool = False
) -> Any:
    """A causal LM from a folder or the hub, in evaluation mode; dtype `auto` is the file's. Pickles are refused.

    LetheError: no such folder or hub model, a hub that cannot be reached, weights that are not safetensors.
    """
    model = _from_pretrained(
        AutoModelForCausalLM,
        name,
        revision=revision,
        trust_remote_code=trust_remote_code,
        dtype=DTYPES[dtype],
        use_safetensors=True,
    )
    return model.to(device()).eval()


def load_tokenizer(name: str | Path, *, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    return _from_pretrained(AutoTokenizer, name, revision=revision, trust_remote_code=trust_remote_code)


def _from_pretrained(kind: Any, name: str | Path, **options: Any) -> Any:
    if _is_path(name) and not Path(name).is_dir():
        raise LetheError(f"{name}: no such model folder")
    try:
        return kind.from_pretrained(str(name), **options)
    except (OSError, ValueError, ImportError) as e:
        reason = " ".join(str(e).split())
        raise LetheError(f"{name}: cannot be loaded as a causal language model ({reason[:200]})") from None


def _is_path(name: str | Path) -> bool:
    """Hub names are `name` or `owner/name`; anything else, and what exists, is a folder."""
    text = str(name)
    return isinstance(name, Path) or text.startswith((".", "/", "~")) or text.count("/") > 1 or Path(text).exists()


def save_model(model: Any, tokenizer: Any, folder: str | Path, dtype: str = "float32") -> None:
    """Hugging Face format, safetensors. `dtype` is the file's; a narrower one rounds each weight once."""
    if dtype != "float32":
        model = copy.deepcopy(model).to(DTYPES[dtype])
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)


def weights_sha256(model: nn.Module) -> str:
    """Of names, shapes, types and values, so that it does not depend on how a file was written."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        value = value.detach().contiguous().cpu()
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.hexdigest()


def parameter_counts(model: Any) -> tuple[int, int]:
    """(all parameters, those outside the embeddings). Tied weights count once, as embeddings."""
    total = sum(p.numel() for p in model.parameters())
    embeddings = {id(m.weight): m.weight.numel() for m in (model.get_input_embeddings(), model.get_output_embeddings())}
    return total, total - sum(embeddings.values())


def layer_at(model: Any, depth: float) -> int:
    """Which decoder layer lies at this share of the depth, counted from 1: .25 is the 8th of 32, the first of 2."""
    return max(1, round(depth * len(model.get_decoder().layers)))


class SupervisedLM(nn.Module):
    """A causal LM whose forward pass returns logits, or one layer's activations, at chosen positions only, so that
    wrappers of modules (autocast, data parallel) see one call and (B, T, V) logits never exist."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, rows: Tensor, cols: Tensor, layer: int | None = None) -> Tensor:
        """ids (B, T), rows and cols (n,) -> logits (n, V), or the output (n, H) of the layer, counted from 1."""
        if layer is None:
            return _logits(self.model, ids, rows, cols)
        return _activations(self.model, ids, rows, cols, layer)


def logits_at(model: Any, batch: Batch) -> Tensor:
    """Logits (n, V) at the batch's supervised positions."""
    return _logits(model, batch.ids, batch.rows, batch.cols)


def activations_at(model: Any, batch: Batch, layer: int) -> Tensor:
    """Outputs (n, H) of a decoder layer, counted from 1, at the supervised tokens themselves (not before them)."""
    return _activations(model, batch.ids, batch.rows, batch.cols + 1, layer)


def _activations(model: Any, ids: Tensor, rows: Tensor, cols: Tensor, layer: int) -> Tensor:
    """Later layers are not run: in the usual settings of RMU they would be three quarters of the work."""
    decoder, found = model.get_decoder(), []
    layers = decoder.layers
    hook = layers[layer - 1].register_forward_hook(lambda module, args, output: found.append(output))
    decoder.layers = layers[:layer]
    try:
        decoder(input_ids=ids, use_cache=False)
    finally:
        decoder.layers = layers
        hook.remove()
    hidden = found[0][0] if isinstance(found[0], tuple) else found[0]  # before the decoder's final norm
    return hidden[rows, cols]


def _logits(model: Any, ids: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    # No attention mask: padding is on the right, where a causal model never looks from a supervised position.
    if not _has_plain_head(model):
        return model(input_ids=ids, use_cache=False).logits[rows, cols]
    hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    return model.get_output_embeddings()(hidden[rows, cols])


_PLAIN_HEAD: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def _has_plain_head(model: Any) -> bool:
    """Whether logits are the output embedding of the decoder's last state (some models cap or scale them). Asked of
    the model itself, once, on three tokens."""
    if model not in _PLAIN_HEAD:
        training = model.training
        model.eval()
        with torch.no_grad():
            ids = torch.arange(3, device=next(model.parameters()).device)[None]
            head = model.get_output_embeddings()
            plain = head is not None and torch.allclose(
                head(model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state).float(),
                model(input_ids=ids, use_cache=False).logits.float(),
                rtol=1e-3,
                atol=1e-4,
            )
        model.train(training)
        _PLAIN_HEAD[model] = plain
    return _PLAIN_HEAD[model]
