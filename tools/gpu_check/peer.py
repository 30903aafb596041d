"""What PyTorch makes of the same GPU: copies, products of a layer's shapes, attention of decode steps."""

# Of llama-3-8b: (name, n, k) of a layer's products, which read each weight once.
PRODUCTS = (("qkv", 6144, 4096), ("o", 4096, 4096), ("gate/up", 28672, 4096), ("down", 4096, 14336))
BATCHES = (64, 256, 1024)
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128


def time_us(torch, work, repetitions=20):
    """The median of several runs, each of which has the GPU for itself."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repetitions):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return sorted(times)[len(times) // 2]


def copies(torch):
    size = 1 << 30
    source, target = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    us = time_us(torch, lambda: target.copy_(source))
    return {"what": "copy 1 GiB on the device", "us": us, "gb_per_s": 2 * size / us / 1e3}


def products(torch, rows):
    weights = {name: torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for name, n, k in PRODUCTS}
    inputs = {k: torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for _, _, k in PRODUCTS}
    us = sum(time_us(torch, lambda n=name, i=k: torch.nn.functional.linear(inputs[i], weights[n])) for name, _, k in PRODUCTS)
    flop = sum(2 * rows * n * k for _, n, k in PRODUCTS)
    return {"what": f"products of a layer of llama-3-8b, {rows} rows, bf16", "us": us, "tflop_per_s": flop / us / 1e6}


def attention(torch, sequences, context):
    """One query a sequence; KV heads are repeated by PyTorch itself."""
    q = torch.randn(sequences, HEADS, 1, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(sequences, KV_HEADS, context, HEAD_DIM, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    attend = torch.nn.functional.scaled_dot_product_attention
    us = time_us(torch, lambda: attend(q, k, v, enable_gqa=True))
    return {"what": f"scaled_dot_product_attention, {sequences} x {context}, 32 heads of 8, bf16", "us": us,
            "gb_per_s": 2 * k.nbytes / us / 1e3}


def figures(torch, quick):
    """One after the other."""
    yield copies(torch)
    if not quick:
        for rows in BATCHES:
            yield products(torch, rows)
        for sequences, context in ((64, 4096), (16, 16384)):
            yield attention(torch, sequences, context)


def measure(quick):
    """A list of figures, and why there are no more; or why there are none."""
    found = {}
    try:
        import torch
        if not torch.cuda.is_available():
            return {"none": f"PyTorch {torch.__version__} sees no GPU"}
        found = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(), "figures": []}
        for one in figures(torch, quick):
            found["figures"].append(one)
    except Exception as why:  # one that is not there, does not load or fails says so in many ways
        reason = (str(why).splitlines() or [type(why).__name__])[0]
        return {**found, "error": reason} if found.get("figures") else {"none": reason}
    return found
