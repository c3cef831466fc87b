"""Measuring: kernels by level, whole VAEs and jobs, reading and writing; and tuning a preset by it."""
