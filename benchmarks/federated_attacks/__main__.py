"""Run the comparison: ``python -m benchmarks.federated_attacks``."""

from benchmarks.federated_attacks import main

if __name__ == "__main__":
    main()
