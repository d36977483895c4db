"""From measurements of a GPU to the step-time function and the KV capacity that the simulator reads."""
