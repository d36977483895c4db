"""What each number on the page means: the text that appears on hover. The definitions are those of docs/metrics.md.

>>> TERMS["ttft"]
"""

TERMS = {
    "shock": (
        "Something that happens to the fleet for a while: more sessions, a restart that empties every cache, a replica"
        " that goes down, slow steps, or long prompts of one tenant. The same arrivals come with and without it."
    ),
    "regime": (
        "Stable: the load is held, and the fleet is back at its target within the stated time after a shock."
        " Metastable: it is held until disturbed. Unstable: it is not held."
    ),
    "branches": (
        "Attainment, hit rate and requests waiting under a load that rises and falls, ten minutes at each, over three"
        " seeds. Where the way down attains much less than the way up there is a second state, cold and overloaded, or"
        " a queue that is still draining."
    ),
    "remedies": (
        "At the lowest load from which the fleet does not come back after the standard burst: every change that kvcast"
        " knows to try, by the seeds it brings back, what it costs, and the share of requests it turns away."
    ),
    "attainment": (
        "Arrivals of the window that met every limit of their SLO class / all arrivals of the window. Rejected, aborted"
        " and unfinished requests did not meet them."
    ),
    "ttft": (
        "Time to first token: first output token emitted - arrival at the router, queueing included. Percentiles over"
        " the window's completed requests, all replicas pooled."
    ),
    "tpot": (
        "Time per output token: (end-to-end latency - TTFT) / (output tokens - 1), one value per request. Requests with"
        " one output token have none."
    ),
    "ttft_time": (
        "TTFT of the requests whose first token came in each interval of the run's clock, as a server's own metrics"
        " report it: the panel of the same name of vLLM's Grafana dashboard. Percentiles are exact, not of histogram"
        " buckets. All completed requests, the warm-up's too."
    ),
    "tpot_time": (
        "TPOT of the requests that ended in each interval of the run's clock: the panel of the same name of vLLM's"
        " Grafana dashboard. Percentiles are exact, not of histogram buckets. All completed requests, the warm-up's"
        " too."
    ),
    "block": (
        "KV memory is given out and reused in whole blocks of so many tokens: what lies beyond the last whole block"
        " that two prompts share is computed again."
    ),
    "life_prompts": (
        "Each prompt in the order in which the model reads it: tokens that came from the prefix cache, whole blocks"
        " from its beginning on, and tokens that had to be computed. A prompt's last token is always computed."
    ),
    "life_memory": (
        "Keys and values that the request holds in GPU memory: what the cache gave, what prefill and each output token"
        " add. The framed part is the step that is told."
    ),
    "verdict": (
        "Meets: the 95 % interval of every class lies at or above its target. Misses: that of some class lies below it,"
        " or the backlog grows. Not shown: the interval holds the target, so these requests do not tell. A run is one"
        " draw of its arrivals, a sketch; a plan settles its answer over independent runs."
    ),
    "interval": (
        "95 % interval: how far chance could move the number. From the requests in order of arrival, cut into batches"
        " (batch means); of a share, never narrower than Wilson's interval for independent requests, and open at the"
        " top where the misses are few bad episodes. It says nothing of how well the model of the GPU fits."
    ),
    "change": (
        "This run - the pinned baseline, paired request by request, with its 95 % interval. An interval that holds zero"
        " is no difference shown, which is not no difference."
    ),
    "throughput": (
        "Output tokens emitted inside the window / its length. The window is stated in the notes; a run that goes on"
        " until the last answer has a tail without arrivals, which lowers it."
    ),
    "hit_rate": (
        "Prompt tokens served from the prefix cache at a request's first admission / prompt tokens of admitted"
        " requests, whole cluster, full blocks only."
    ),
    "ceiling": (
        "The same with memory that never ends: per replica (same routing), and with one cache for the whole fleet."
        " Their gap is what routing loses."
    ),
    "kv": (
        "Blocks that a running request holds / all blocks of the fleet; cached blocks that nobody holds are idle, not"
        " in use. Mean over the window; the peak is that of the fullest replica."
    ),
    "gpu_hours": (
        "Replicas x GPUs per replica x length of the window. Idle time counts: the fleet is rented whether it works or"
        " not."
    ),
    "cost": (
        "GPU-hours x your price, the whole bill, / million output tokens emitted; beside it the same bill / million"
        " prompt tokens prefilled, and / both together: three views, not parts that add up. Short answers make the"
        " first one dear. No price, no cost."
    ),
    "backlog": (
        "How fast the work in the system grew over the second half of the window. Above zero, latency only says how"
        " long the run was, so no percentiles are given."
    ),
    "extrapolated": (
        "Share of simulated time whose step times lie outside the range the profile was made from. Treat such numbers"
        " with care."
    ),
    "fleet": "Replicas that hold their GPUs, loading and draining included, and the requests that are in the fleet.",
    "queue": "Requests that have arrived and wait for the engine, and requests the engine works on, all replicas.",
    "replica_load": (
        "Tokens each replica computed or emitted in a second of the window, and those it took from its cache; a request"
        " counts where it was admitted."
    ),
    "goodput": (
        "Requests per second that met every limit, at each offered rate: the same mix, sped up or slowed down. SLO"
        " capacity: the highest rate whose attainment meets the target. Knee: where more load stops adding goodput."
    ),
    "latency_by_rate": (
        "Percentiles of the same simulations. A rate at which the fleet is unstable has none: they would only say how"
        " long the run was."
    ),
    "users_served": (
        "Share of requests within their limits with so many users at once on the answer's fleet, by one run each. A"
        " fleet is an answer up to the load that it holds, and comes back from where that was asked."
    ),
    "prompt_layers": (
        "Layers of the average prompt in the order the model reads them. A cache reuses a prompt from its beginning up"
        " to the first text that has changed; what is hatched is shared text behind that."
    ),
    "fleets_tried": (
        "Every fleet that was simulated, by its cost and the share of requests within their limits, with its 95 %"
        " interval. A run is ended as soon as it cannot reach the target any more: then only an upper end is known."
    ),
    "candidates": (
        "Every fleet that was simulated, by TTFT p99 and cost. On the Pareto front of those that meet the target,"
        " nothing is both cheaper and faster. Unstable ones and those stopped early are in the table only."
    ),
    "binding": (
        "The resource whose +20 % raises attainment most, each simulated again on the same arrivals. Compute and memory"
        " bandwidth are estimates: measured step times scaled by what a roofline gains. Routing: an oracle router."
    ),
    "advice": (
        "Each change was simulated: the load that the same fleet holds with it and without it, or the fewest GPUs with"
        " it and without it. What saves neither is not here. Of a fleet that is larger for its burst alone: what lets a"
        " smaller one come back."
    ),
    "growth": (
        "Fewest replicas when the same mix arrives faster by this factor, as it is and with the first advice. By one"
        " run each: a sketch."
    ),
    "n_plus_1": "The same load with one replica down: whether the rest still meets the target.",
    "headroom": "1 - offered rate / the load it recovers from, or the SLO capacity where no burst was asked for.",
    "plan": (
        "The fewest GPUs with which every class meets its target with the stated confidence: the lower end of its"
        " interval does. Candidates see the same arrivals (common random numbers), by one run each; the chosen one, and"
        " the one with a replica less, are settled over independent runs."
    ),
    "causes": (
        "Every prompt token is a hit or has one cause of missing it, the first that applies: partial block, in flight,"
        " on another replica, not kept by a window, evicted, cache off, another tenant's, changed earlier in the"
        " prompt, cold. The shares sum to 100 %."
    ),
    "life": (
        "The completed requests with the highest TTFT: time queued, prefill (first schedule to first token), decode,"
        " and time spent preempted (drawn at the end)."
    ),
    "worth": (
        "The same requests simulated again with the prefix cache off. Fewer prefilled tokens are not proportionally"
        " less time or money: compare the lines."
    ),
    "preemptions": (
        "Times a running request lost its KV blocks because memory ran out, and the tokens computed again because"
        " of it."
    ),
    "scope": (
        "Prompt tokens by how widely their text is shared: global (everybody), project, session (the turns of one),"
        " dynamic (nobody). Shares of all prompt tokens."
    ),
    "explain": (
        "For the largest causes, each change that could recover their tokens is simulated alone on the same requests;"
        " one that does not help is said not to."
    ),
    "replay": (
        "The run's requests, in order of time, through one engine's cache of each size (only blocks with nothing cached"
        " below them go, what is served is pinned, answers are kept too), without an engine. Optimum: the most hits"
        " that any eviction could have, proven by a certificate. Ceiling: unlimited memory."
    ),
    "value": (
        "Fewest GPUs whose attainment meets the target, found by simulation for each size of KV memory, with the cache;"
        " the line is the cache off in the most memory."
    ),
    "order": (
        "A prompt is reusable up to the first text that differs. Each class is generated in its own order of layers and"
        " in the order global, project, session, dynamic, and read by an unlimited cache."
    ),
    "profile": (
        "What step times are made from: operator times of one GPU, model, precision and width. Its hash is over the"
        " points themselves: equal hashes mean equal numbers."
    ),
    "coverage": (
        "Simulated time by what its step times rest on: measured (on a point), interpolated (between points),"
        " extrapolated (outside the batches, contexts and lengths of the profile)."
    ),
    "covered": (
        "Grey: batches and contexts that the profile's decode times were measured at. Blue: the mean batch and context"
        " of this run, 400 times over its length. A step is extrapolated when its longest context or the sum of its"
        " contexts lies beyond what was measured."
    ),
    "left_out": (
        "Whole steps of the profile, each predicted from every other point of its tables: the error of interpolation on"
        " a grid twice as coarse. It says nothing of what the tables leave out."
    ),
    "step_time": (
        "Seconds of one engine step as the simulator reads them: linear between the points of the profile's tables,"
        " dense layers, attention, sampling and overhead added up."
    ),
    "accuracy": "What this kind of profile was held against, by kvcast validate, and what it was not.",
    "kv_arithmetic": (
        "Memory share x GPU memory - weights - overhead = KV, in blocks. The overhead is one constant, within 2.2 % on"
        " public engine logs."
    ),
    "jump": (
        "Places worth looking at: the completed request with the highest TTFT, the first request that lost its KV"
        " blocks, the moment with the most requests waiting."
    ),
    "by_replica": "Requests admitted and not yet finished on each replica; time spent preempted counts.",
    "lives": (
        "A row a request, in order of arrival: frontend (in the API server, where that takes time), queued (to the"
        " first schedule), loading (from a cache tier), prefill (its chunks), decode (first to last token), preempted"
        " (its blocks were taken; it waits and computes again)."
    ),
}
