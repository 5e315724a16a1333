"""Measurements that need both sides: traces, evaluation, overhead, recovery, exactness, always against controls."""
