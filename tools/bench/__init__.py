"""What the profile tools share: workloads, clients, peers, statistics, reports."""
