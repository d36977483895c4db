"""What each number on the page means: the text that appears on hover. The definitions are those of docs/metrics.md.

>>> TERMS["ttft"]
"""
TERMS = {
    "attainment": "Arrivals of the window that met every limit of their SLO class / all arrivals of the window. Rejected, aborted and unfinished requests did not meet them.",
    "ttft": "Time to first token: first output token emitted - arrival at the router, queueing included. Percentiles over the window's completed requests, all replicas pooled.",
    "tpot": "Time per output token: (end-to-end latency - TTFT) / (output tokens - 1), one value per request. Requests with one output token have none.",
    "throughput": "Output tokens emitted inside the window / its length. The window is stated in the notes; a tail without arrivals lowers it.",
    "hit_rate": "Prompt tokens served from the prefix cache at a request's first admission / prompt tokens of admitted requests, whole cluster, full blocks only.",
    "ceiling": "The same with memory that never ends: per replica (same routing), and with one cache for the whole fleet. Their gap is what routing loses.",
    "kv": "Blocks that a running request holds / all blocks of the fleet; cached blocks that nobody holds are idle, not in use. Mean over the window; the peak is that of the fullest replica.",
    "gpu_hours": "Replicas x GPUs per replica x length of the window. Idle time counts: the fleet is rented whether it works or not.",
    "cost": "GPU-hours x your price / million output tokens emitted. No price, no cost.",
    "backlog": "How fast the work in the system grew over the second half of the window. Above zero, latency only says how long the run was, so no percentiles are given.",
    "extrapolated": "Share of simulated time whose step times lie outside the range the profile was made from. Treat such numbers with care.",
    "queue": "Requests that have arrived and wait for the engine, and requests the engine works on, all replicas.",
    "causes": (
        "Every prompt token is a hit or has one cause of missing it, the first that applies: partial block, in flight, on another replica, evicted, cache off, "
        "another tenant's, changed earlier in the prompt, cold. The shares sum to 100 %."
    ),
    "life": "The completed requests with the highest TTFT: time queued, prefill (first schedule to first token), decode, and time spent preempted (drawn at the end).",
    "worth": "The same requests simulated again with the prefix cache off. Fewer prefilled tokens are not proportionally less time or money: compare the lines.",
    "preemptions": "Times a running request lost its KV blocks because memory ran out, and the tokens computed again because of it.",
}
