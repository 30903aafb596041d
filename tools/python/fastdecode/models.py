"""What a model's folder holds, without an engine."""

import ctypes
import json
import os
from typing import Any, Dict, Union

from . import _library as c


def inspect_model(model: Union[str, os.PathLike], memory_bytes: int = 0) -> Dict[str, Any]:
    """The fields that docs/MODELS.md names: architecture, layers, parameters, bytes of weights and KV, and what is not
    supported. No weights are read; a model that no Engine would load is described, too.

    memory_bytes: adds what fits into so much memory. Raises NotFound or InvalidArgument if there is no config.json, or it
    is not JSON.
    """
    library = c.load()
    made = c.owned_text()
    c.check(library.fd_model_inspect(os.fsencode(model), memory_bytes, ctypes.byref(made)))
    text = ctypes.string_at(made).decode("utf-8", "replace")
    library.fd_string_free(made)
    return json.loads(text)
