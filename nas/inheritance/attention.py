"""Parts of tensors: rows and columns of each head of an attention, halves of gated MLPs.

`nas.inheritance.attention_layouts` knows torch's, Hugging Face's and timm's attentions. One of your own has a method
``tensor_parts``, here for fused queries, keys and values::

    def tensor_parts(self):
        heads = (self.n_heads, self.head_size)
        return {"qkv.weight": (0, [heads] * 3), "qkv.bias": (0, [heads] * 3), "out.weight": (1, [heads])}

An entry has the dimension of the heads and, for each part in it, the sizes that it stacks, the outermost first. Rotary
positions that turn one half of a head against the other have sizes ``(n_heads, 2, head_size // 2)``.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nas.core.errors import ConfigurationError, CorruptError
from nas.inheritance.attention_layouts import known_parts
from nas.inheritance.gated_layouts import gated_parts
from nas.storage.record_values import checked_as
from nas.storage.tensor_parts import TensorParts


def parts_of(model: nn.Module) -> dict[str, TensorParts]:
    """Returns the heads of attentions and the halves of gated MLPs, by the tensors' names.

    Modules of unknown layout are left out.

    Raises:
        ConfigurationError: a module's ``tensor_parts`` names no tensor of it, or sizes that the tensor does not have.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    tensors = dict(model.named_parameters(remove_duplicate=False))
    found: dict[str, TensorParts] = {}
    for path, module in modules.items():
        if callable(declare := getattr(module, "tensor_parts", None)):
            named = module.named_parameters(remove_duplicate=False)
            own = {f"{path}.{name}".lstrip("."): tensor for name, tensor in named}
            found |= _declared(f"{path or type(module).__name__}.tensor_parts", path, declare(), own)
            continue
        gated = ((f"{path}.{name}".lstrip("."), dim, sizes) for name, dim, sizes in gated_parts(module))
        for name, dim, sizes in (*known_parts(path, modules), *gated):
            parts = TensorParts(dim, tuple(sizes))
            tensor = tensors.get(name)
            if tensor is not None and not is_lazy(tensor) and parts.fit(tensor.shape):
                found[name] = parts
    return found


def _declared(what: str, path: str, declared: object, tensors: Mapping[str, Tensor]) -> dict[str, TensorParts]:
    """Returns the parts that a module's ``tensor_parts`` gave."""
    if not isinstance(declared, Mapping):
        raise ConfigurationError(f"{what}={declared!r}: must be a dict. See nas.inheritance.attention.")
    found: dict[str, TensorParts] = {}
    for name, entry in declared.items():
        full = f"{path}.{name}".lstrip(".")
        if full not in tensors:
            raise ConfigurationError(f"{what}: {name!r}: must be a parameter of the module. Leave it out.")
        try:
            dim, sizes = entry
            parts = checked_as(TensorParts, {"dim": dim, "sizes": [list(part) for part in sizes]})
        except (TypeError, ValueError, CorruptError) as error:
            raise ConfigurationError(
                f"{what}: {name!r}={entry!r}: must be a dimension and the sizes of each part, "
                f"such as (0, [(4, 8)] * 3). {error}"
            ) from error
        if is_lazy(tensors[full]):
            continue
        if not parts.fit(tensors[full].shape):
            raise ConfigurationError(
                f"{what}: {name!r}={entry!r}: must add up to dimension {dim} of {tuple(tensors[full].shape)}. "
                "Multiply the sizes of each part, and add the parts."
            )
        found[full] = parts
    return found
