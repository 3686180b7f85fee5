"""Speed and size, measured: each module prints a table with ratios within one run. `python -m benchmarks` runs all."""
