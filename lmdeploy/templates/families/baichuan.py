"""Baichuan 1 and 2: a reserved token each for who speaks, and nothing else."""

from lmdeploy.templates.families.registration import builtin

builtin("baichuan", {"user": "<reserved_102>", "assistant": "<reserved_103>"})
builtin("baichuan2", {"user": "<reserved_106>", "assistant": "<reserved_107>"})
