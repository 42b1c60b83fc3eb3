"""The policy bench: policies and peers on real workloads, in virtual time, with exact figures."""
