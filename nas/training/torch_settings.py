"""Torch's global settings that a trial may change and that affect later trials."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

Setting = tuple[Callable[[], Any], Callable[[Any], object]]
"""A function that reads a setting, and one that writes it."""


NEW_PRECISIONS = (
    *(("generic", "all"), ("cuda", "all"), ("mkldnn", "all")),
    *(("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn")),
    *(("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")),
)
"""Backends and operations with a precision of float32."""


class SavedSettings:
    """Values of settings at one moment, which can be restored."""

    def __init__(self, settings: Iterable[Setting]) -> None:
        self._saved = [(read, write, read()) for read, write in settings]

    def restore(self) -> None:
        """Writes each setting that has another value now."""
        for read, write, value in self._saved:
            if read() != value:
                write(value)


def attributes(owner: object, *names: str) -> Iterable[Setting]:
    """Yields a setting for each attribute of an object."""
    for name in names:
        yield partial(getattr, owner, name, None), partial(setattr, owner, name)


def torch_settings() -> Iterable[Setting]:
    """Yields torch's settings, the number of threads excepted."""
    import torch

    backends = torch.backends
    yield torch.get_default_dtype, torch.set_default_dtype
    yield _default_device, torch.set_default_device
    yield torch.is_grad_enabled, torch._C._set_grad_enabled
    yield _deterministic, lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1])
    yield _anomaly, lambda value: torch.autograd.set_detect_anomaly(*value)
    yield torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled
    yield from (_autocast(device) for device in ("cpu", "cuda", "xpu", "mps"))
    yield torch.is_warn_always_enabled, torch.set_warn_always
    yield torch._C._is_multithreading_enabled, torch._C._set_multithreading_enabled
    yield torch._C._check_sparse_tensor_invariants, torch._C._set_check_sparse_tensor_invariants
    yield from attributes(torch._tensor_str.PRINT_OPTS, *vars(torch._tensor_str.PRINT_OPTS))
    yield from attributes(torch.utils.deterministic, "fill_uninitialized_memory")
    yield from attributes(torch.jit._state._enabled, "enabled")
    conversion = torch.__future__
    yield conversion.get_swap_module_params_on_conversion, conversion.set_swap_module_params_on_conversion
    yield conversion.get_overwrite_module_params_on_conversion, conversion.set_overwrite_module_params_on_conversion
    yield backends.cuda.flash_sdp_enabled, backends.cuda.enable_flash_sdp
    yield backends.cuda.mem_efficient_sdp_enabled, backends.cuda.enable_mem_efficient_sdp
    yield backends.cuda.math_sdp_enabled, backends.cuda.enable_math_sdp
    yield backends.cuda.cudnn_sdp_enabled, backends.cuda.enable_cudnn_sdp
    yield backends.mha.get_fastpath_enabled, backends.mha.set_fastpath_enabled
    yield from attributes(backends.opt_einsum, "enabled", "strategy")
    names = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    yield from attributes(backends.cuda.matmul, *names)
    yield from attributes(backends.mkldnn, "enabled")
    yield from attributes(backends.cudnn, "enabled", "benchmark", "deterministic")
    yield from _precisions()
    yield from attributes(backends.quantized, "engine")
    yield torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy


def _precisions() -> Iterable[Setting]:
    """Yields the precisions of float32: by old names, and by new ones where torch has them."""
    import torch

    yield _old(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
    yield from (_old(*setting) for setting in attributes(torch.backends.cudnn, "allow_tf32"))
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        for place in NEW_PRECISIONS:  # defaults first, since the others read as them unless they are set
            yield partial(torch._C._get_fp32_precision_getter, *place), partial(_set_precision, place)


def _set_precision(place: tuple[str, str], value: str) -> None:
    import torch

    torch._C._set_fp32_precision_setter(*place, value)


def _old(read: Callable[[], Any], write: Callable[[Any], object]) -> Setting:
    """Returns a setting that reads as None once new names were used: torch raises then."""

    def read_old() -> Any:
        try:
            return read()
        except RuntimeError:
            return None

    return read_old, lambda value: None if value is None else write(value)


def _default_device() -> str | None:
    import torch

    device = str(torch.get_default_device())
    return None if device == "cpu" else device  # a default device of None is faster than "cpu"


def _deterministic() -> tuple[bool, bool]:
    import torch

    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _anomaly() -> tuple[bool, bool]:
    import torch

    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _autocast(device: str) -> Setting:
    import torch

    def write(value: tuple[bool, Any]) -> None:
        torch.set_autocast_enabled(device, value[0])
        torch.set_autocast_dtype(device, value[1])

    return lambda: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)), write
