"""What a recording says: latencies, causes, cost, verdict, tables."""
